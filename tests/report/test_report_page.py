import html
import inspect
import json
import re
import shutil
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from markupsafe import Markup
from plotly.offline import get_plotlyjs
from read_table import numbers, read
from synthetic_run import ARRIVAL, CYCLIC, HYDRA, FramesOf, Setting, World, retold, write_run

from sfl_sim import report
from sfl_sim.errors import ScenarioError
from sfl_sim.report import figures, style
from sfl_sim.report.about import warnings
from sfl_sim.report.comparison import repriced_table
from sfl_sim.report.display import duration, percent
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.html_page import Parts, share_plotly, write_page
from sfl_sim.report.load import load
from sfl_sim.report.pages.run import SECTIONS, PageSection, headline, panels, write_report
from sfl_sim.report.panel import Panel
from sfl_sim.report.results import aims, results_table
from sfl_sim.report.terminal import results_in_terminal

TARGET = "Time to 70\u00a0% accuracy"
"""The section "Accuracy" of a run with a target."""
FRONTIER = "What less forgetting costs in time"  # of three variants or more
LABELS = ["Which labels are forgotten", "Accuracy by place in the order"]
"""The section "Labels"."""
NOT_DRAWN_HERE = {
    "The servers", "Perplexity", "Your metrics", "Early exits", "Inputs of the last layer", "Labels within a round",
    "Availability and dropouts", "Staleness", "Replay", "Labels in the order of service", "Labels held by each client",
    "Cuts that change",
}  # fmt: skip
"""Sections for which a synthetic run has no data."""


def expected(trained: bool = True) -> list[str]:
    """The titles that a synthetic run of three variants should have, as the sections are declared."""
    found = []
    for name, section in SECTIONS.items():
        if name not in NOT_DRAWN_HERE and (trained or not section.trained):
            found += {"Accuracy": [TARGET], "Labels": LABELS}.get(name, [name])
    return found


def titles(frames: Frames) -> list[str]:
    return [panel.title for panel in panels(frames)]


class Page(HTMLParser):
    """What a browser would see: section titles, the text outside scripts, and what tags load."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.titles: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self._open: list[str] = []
        # Plotly itself is a program of megabytes that holds tags as strings: its text is no part of the page.
        self.feed(self.source.replace(get_plotlyjs(), ""))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.loads += [value or "" for name, value in attributes if name in ("src", "href", "srcset", "data")]

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "h2":
            self.titles.append(data)
        if not {"script", "style", "nav"} & set(self._open):
            self.text += data


@pytest.fixture(scope="session")
def page(run_folder: Path) -> Page:
    return Page(write_report([run_folder], run_folder / "report.html"))


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the sections, for tests of what stands around them."""
    monkeypatch.setattr("sfl_sim.report.pages.run.SECTIONS", {})


def test_every_section_stands_in_its_place(page: Page, frames: Frames) -> None:
    after = ["Settings", "How to read the numbers", "Versions and digests"]
    assert titles(frames) == expected()
    assert page.titles == ["Results", *expected(), *after]
    assert expected()[0] == TARGET
    assert expected()[-1] == "The fleet"


def test_seconds_of_live_runs_are_called_measured(folder: Path) -> None:
    def words() -> str:
        frames = merge([load(folder)])
        shown = [[panel.title, panel.caption, *(heading for heading, _ in panel.drawings)] for panel in panels(frames)]
        axes = [str(figure.layout.xaxis.title.text) for _, figure in panels(frames)[0].figures]
        return " ".join(
            [*chain(*shown), *axes, *results_table(frames).titles, *map(str, results_in_terminal(folder).columns)]
        )

    assert "imulated time" in words()
    pd.DataFrame({"node": []}).to_parquet(folder / "steps.parquet")
    assert "easured time" in words()
    assert "imulated time" not in words()


@pytest.fixture
def regression(frames: Frames) -> Frames:
    """The frames as if numbers had been predicted: R² of what was the accuracy, and groups in place of labels."""
    scores = {"accuracy": np.nan, "performance_gap": np.nan, "backward_transfer": np.nan}
    rounds, summary = (own.assign(r2=own["accuracy"], **scores) for own in (frames.rounds, frames.summary))
    held = list(np.eye(10, dtype=int)[frames.clients["dominant_label"]] * 5)
    clients = frames.clients.assign(label_samples=held)
    return replace(frames, rounds=rounds, summary=summary.assign(target_accuracy=0.7), clients=clients,
                   labels=frames.labels.head(0))  # fmt: skip


def test_a_regression_has_no_labels_and_no_percent_of_r2(regression: Frames) -> None:
    shown = panels(regression)
    words = " ".join(
        f"{panel.title} {panel.caption} {' '.join(heading for heading, _ in panel.drawings)}" for panel in shown
    ).replace("label_aware", "")
    assert re.findall("[^.]*label[^.]*", words, re.I) == []
    assert {"Groups in the order of service", "Groups held by each client"} <= {panel.title for panel in shown}
    assert shown[0].title == "Time to R² of 0.7"

    middle = regression.summary.query("variant == @HYDRA")["r2"].median()
    assert read(results_table(regression))[HYDRA]["R²"][0] == f"{middle:.3f}"
    axis = shown[0].figures[0][1].layout.yaxis.title.text
    assert axis == "R²"
    line = next(shown[0].figures[1][1].select_traces({"name": HYDRA}))
    by_round = regression.rounds.query("variant == @HYDRA").groupby("round")["r2"].median()
    assert list(line.y) == pytest.approx(list(by_round))
    in_time, in_score, *_ = headline(regression)
    assert in_time.facts["compared"] == "time to R² of 0.7"
    assert in_score.facts["compared"] == "R²"
    assert "%" not in in_time.text + in_score.text


def test_a_run_that_trained_nothing_knows_that_it_has_no_labels(frames_of: FramesOf, small: World) -> None:
    frames = frames_of(replace(small, trained=False))
    assert frames.group == "label"
    numbers = replace(frames, summary=frames.summary.assign(goal="numbers"))
    assert numbers.group == "group"
    assert [panel.title for panel in panels(numbers) if "abel" in panel.title] == []


def test_a_run_that_trained_nothing_beside_one_that_did_does_not_miss_the_target(frames: Frames) -> None:
    untrained = frames.summary["variant"] == HYDRA
    columns = ["accuracy", "best_accuracy", "time_to_accuracy_s"]
    summary = frames.summary.assign(**{name: frames.summary[name].mask(untrained) for name in columns})
    assert read(results_table(replace(frames, summary=summary)))[HYDRA]["Time to target"] == ("–", "")


def test_the_tutorial_names_what_is_on_the_page(frames: Frames) -> None:
    text = (Path(__file__).parents[2] / "docs/tutorial/1-first-run.md").read_text(encoding="utf-8")
    named = re.findall(r"^\d\. \*\*(.*?)\*\*", text, re.M)[1:]  # after the headline
    shown = {name for panel in panels(frames) for name in (panel.title, *(heading for heading, _ in panel.drawings))}
    assert named
    assert set(named) <= shown


def test_tables_are_headed_by_these_words(page: Page) -> None:
    titles = re.findall('<th scope="col">(.*?)</th>', page.source)
    assert [html.unescape(title) for title in titles] == [
        "Variant", "Time to target", "Accuracy", "Performance gap (points)", "Backward transfer (points)",
        "Simulated time", "Sent up", "Sent down",
        "Variant", "Accuracy", "Performance gap (points)",
        "Variant", "Time to target", "Speed-up in time", "Rounds to target", "Speed-up in rounds", "Bytes to target",
        "Best accuracy",
        "Variant", "Device", "Uplink", "Server", "Downlink", "Aggregation", "Most on it", "Median slack", "Most slack",
        "Variant", "Seed", "Timeline", "Weights",
        "Key", "Value",
    ]  # fmt: skip


def test_details_are_folded_below_where_the_time_goes(page: Page) -> None:
    folded = re.findall("<details><summary><h2>(.*?)</h2>", page.source)

    below = page.titles[page.titles.index("Where the time goes") + 1 :]
    assert folded == [title.replace("'", "&#39;") for title in below if title != "Settings"]


def test_forgetting_is_folded_where_no_variants_are_compared_in_it(tmp_path: Path, small: World) -> None:
    def folded(variants: tuple[Setting, ...], name: str) -> bool:
        frames = merge([load(write_run(tmp_path / name, replace(small, variants=variants)))])
        return next(panel.folded for panel in panels(frames) if panel.title == "Forgetting")

    cyclic, hydra = World().variants[1:]
    assert folded((cyclic,), "alone")
    assert folded((cyclic, replace(cyclic, name="lr=0.1")), "one_method_and_order")
    assert not folded((cyclic, hydra), "two_methods")


def test_the_same_run_gives_the_same_page(page: Page, run_folder: Path, tmp_path: Path) -> None:
    again = write_report([run_folder], tmp_path / "again.html")

    assert again == tmp_path / "again.html"
    assert page.source == again.read_text(encoding="utf-8")


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four variants, as if there were a single colour; the accuracy of the last is the target of all."""
    monkeypatch.setattr("sfl_sim.report.style.MAX_LOOKS", 1)
    variants = tuple(Setting(f"lr={n}", "splitfed_v2", "fcfs", 0.9, 0.1) for n in range(4))
    world = World(variants=variants, seeds=(0,), clients=2, rounds=2, batches=1, reference="lr=3")
    return write_run(tmp_path / "grid", world)


def test_of_a_large_grid_as_much_is_drawn_as_can_be_told_apart(grid: Path) -> None:
    """Drawn are the first variant and the one whose accuracy is its target."""
    frames = merge([load(grid)])

    assert [variant.name for variant in frames.drawn.variants] == ["lr=0", "lr=3"]
    assert frames.drawn.typical_round == frames.typical_round
    assert {variant.colour for variant in frames.variants[1:]} == {style.MUTED}, "no other variant's colour"
    named = {trace.name for panel in panels(frames)[:1] for _, figure in panel.figures for trace in figure.data}
    assert named - {None} == {"lr=0", "lr=3"}


@pytest.mark.parametrize(("n_looks", "n_drawn"), [(3, 3), (4, 4), (5, 4)])
def test_as_many_variants_are_drawn_as_can_be_told_apart(
    n_looks: int, n_drawn: int, grid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfl_sim.report.style.MAX_LOOKS", n_looks)
    frames = merge([load(grid)])
    assert len(replace(frames, summary=frames.summary.assign(reference=None)).drawn.variants) == n_drawn


@pytest.mark.usefixtures("no_figures")
def test_a_page_says_how_much_of_a_large_grid_is_drawn(grid: Path) -> None:
    page = Page(write_report([grid], grid / "report.html"))

    assert "Drawn are 2 of the 4 variants" in page.text
    drawn, all_results = page.text[page.text.index("Results") :].split("All 4 variants")
    assert "lr=0" in drawn
    assert "lr=1" not in drawn
    assert all_results.count("lr=1") == all_results.count("lr=2") == 2  # in the table, and among the digests


def test_a_page_of_few_variants_draws_them_all_and_folds_nothing(frames: Frames, page: Page) -> None:
    assert frames.drawn is frames
    assert "Drawn are" not in page.text
    assert "All 3 variants" not in page.text


def failing(error: Exception) -> Any:
    def section(*_: object, **__: object) -> Any:
        raise error

    return section


TOO_LARGE = MemoryError("Unable to allocate 74.5 GiB for an array with shape (100001, 99999)")


@pytest.mark.leaves_out
def test_what_takes_too_much_memory_is_left_out_with_a_sentence_and_all_else_is_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = {"The fleet": SECTIONS["The fleet"]}
    monkeypatch.setattr("sfl_sim.report.pages.run.SECTIONS", fleet | {"Replay": PageSection(failing(TOO_LARGE))})
    for part in ("headline", "results_table"):
        monkeypatch.setattr(f"sfl_sim.report.pages.run.{part}", failing(TOO_LARGE))

    page = Page(write_report([folder], folder / "report.html"))

    for part in ("The summary", "The table of results", "The section “Replay”"):
        assert f"{part} is left out: MemoryError: Unable to allocate 74.5 GiB" in page.text
    assert page.titles[:2] == ["Results", "The fleet"]


def a_figure(error: Exception | None = None) -> Panel:
    return Panel("Title", "Caption.", [("Heading", failing(error) if error else partial(figures.canvas, 100))])


@pytest.mark.leaves_out
def test_a_figure_that_cannot_be_written_is_a_sentence_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plotly.graph_objects.Figure.to_html", failing(TOO_LARGE))
    page = Page(write_page(tmp_path / "page.html", "page", title="a", panels=[a_figure()]))
    assert "A figure is left out: MemoryError" in page.text


@pytest.mark.leaves_out
def test_every_other_error_is_raised_unless_a_run_is_to_be_published() -> None:
    sections = {"One": lambda: [a_figure(KeyError("uplink\nbps"))], "Two": lambda: [a_figure()]}
    told: list[str] = []
    counted: list[tuple[int, int]] = []
    with pytest.raises(KeyError):
        Parts().draw(sections)

    parts = Parts(Exception, told.append, lambda *numbers: counted.append(numbers))

    assert [panel.title for panel in parts.draw(sections)] == ["Title"]
    assert told == parts.left_out
    assert told[0].startswith("The section “One” is left out: KeyError: 'uplink\\nbps'")
    assert counted == [(0, 2), (1, 2), (2, 2)]


def test_titles_captions_and_tables_wait_for_no_figure() -> None:
    panel = a_figure(TOO_LARGE)
    assert (panel.title, panel.caption, panel.tables) == ("Title", "Caption.", ())
    with pytest.raises(MemoryError):
        panel.drawn()


def test_the_contents_lead_to_every_section(page: Page) -> None:
    names = re.findall('<section id="(.*?)"', page.source)

    assert page.loads == [f"#{name}" for name in names]
    assert len(names) == len(page.titles)


@pytest.mark.usefixtures("no_figures")
def test_the_glossary_has_the_words_of_the_page_alone(page: Page, tmp_path: Path, small: World) -> None:
    timing = Page(write_report([write_run(tmp_path / "run", replace(small, trained=False))], tmp_path / "report.html"))

    for word in ("Performance gap (PG)", "Backward transfer (BW)", "Straggler wait"):
        assert f"<dt>{word}</dt>" in page.source
        assert f"<dt>{word}</dt>" not in timing.source
    assert "<dt>Waiting for assistants</dt>" not in page.source
    assert "<dt>Simulated time</dt>" in timing.source


def test_the_tab_says_what_page_it_is_and_figures_and_tables_have_names(page: Page) -> None:
    assert "<title>heterogeneous_bw – report</title>" in page.source
    assert 'role="img" aria-label="Figure: Accuracy against rounds"' in page.source
    assert page.source.count('<div class="scroll" role="region" aria-label="') == page.source.count("<table")


def test_pages_of_a_folder_can_share_plotly(tmp_path: Path) -> None:
    page = write_page(tmp_path / "report.html", "page", title="a", panels=[a_figure()])
    share_plotly(page)
    share_plotly(page)  # again: nothing is left to do

    assert (tmp_path / "plotly.min.js").read_text(encoding="utf-8") == get_plotlyjs()
    text = page.read_text(encoding="utf-8")
    assert '<script src="plotly.min.js"></script>' in text
    assert "script-src 'unsafe-inline' 'self' file:;" in text
    assert len(text) < 1_000_000


def test_it_opens_offline(page: Page) -> None:
    assert {link[0] for link in page.loads} == {"#"}, "nothing but the contents, which lead to places on the page"
    assert "link" not in page.tags
    assert "iframe" not in page.tags
    assert not re.search(r"@import|url\(", page.source.replace(get_plotlyjs(), ""))
    assert page.source.count(get_plotlyjs()) == 1


def test_it_is_no_heavier_than_plotly_and_a_megabyte(page: Page) -> None:
    assert len(page.source) < len(get_plotlyjs()) + 1_000_000


def test_settings_and_digests_are_there(page: Page) -> None:
    assert "kind: dominant_label" in page.text
    assert page.text.count("9f3c" * 7) == 6


def test_what_was_set_stands_there_and_defaults_are_folded(run_folder: Path) -> None:
    run = load(run_folder)
    assert yaml.safe_load(run.as_set)["train"] == {"rounds": 30, "batch_size": 16}  # the rate is the default
    assert replace(run, scenario={"modell": {}}).as_set == ""


def test_names_are_text_and_never_markup(tmp_path: Path, small: World) -> None:
    evil = Setting("<b>bold</b> & <script>alert(1)</script>", "<i>m</i>", "fcfs", 0.8, 0.1)
    tiny = replace(small, name="<u>run</u>", variants=(evil,), clients=1, rounds=1, status="<s>failed</s>")
    folder = write_run(tmp_path / "run", tiny)
    labels = pd.read_parquet(folder / "labels.parquet")
    labels.assign(label_name="<em>" + labels["label_name"]).to_parquet(folder / "labels.parquet")

    page = Page(write_report([folder], tmp_path / "report.html"))

    assert evil.name in page.text
    assert not {"u", "s", "em"} & set(page.tags)
    figures = page.source.replace(get_plotlyjs(), "").replace("\\u003c", "<").replace("\\u003e", ">")
    assert not re.search("<script>alert|<b>bold|<em>", figures)


def test_no_two_of_21_variants_look_alike() -> None:
    named = [style.Named(Markup("variant"), **style.look(i)) for i in range(21)]
    assert len({variant.html for variant in named}) == style.MAX_LOOKS == 21
    assert len({(variant.colour, variant.symbol) for variant in named}) == 21
    assert len({(variant.colour, variant.dash) for variant in named}) == 21


def test_a_variant_has_the_mark_of_its_heading_in_the_frontiers_legend_too(eight: Frames) -> None:
    (panel,) = (panel for panel in panels(eight) if panel.title == FRONTIER)
    for variant in eight.variants:
        glyph = re.search(r">(.)</span>", variant.html)[1]
        assert (f"color: {variant.colour}", glyph, variant.label) in panel.legend
    assert eight.variants[-1].html.count("◆") == 1


def test_who_is_left_out_of_the_details_is_told(frames: Frames, eight: Frames) -> None:
    def told(each: Frames) -> list[str]:
        return [panel.title for panel in panels(each) if "the first 6 of 8 variants" in panel.caption]

    details = [name for name, section in SECTIONS.items() if section.details and name not in NOT_DRAWN_HERE]
    assert told(eight) == details != []
    assert told(frames) == []


def test_a_run_without_a_target_has_its_curves_all_the_same(frames: Frames) -> None:
    without = replace(frames, summary=frames.summary.assign(target_accuracy=float("nan")))

    first, second, *_ = panels(without)

    assert (first.title, second.title) == ("Accuracy", "Accuracy by label")
    assert not first.tables


def test_a_timing_only_run_has_no_figures_of_accuracy(tmp_path: Path, small: World) -> None:
    frames = merge([load(write_run(tmp_path / "run", replace(small, trained=False)))])

    shown = [panel.drawn() for panel in panels(frames)]

    assert [panel.title for panel in shown] == expected(trained=False)
    assert "timing-only" in warnings(frames)[0]
    cells = [cell for panel in shown for table in panel.tables for row in table.rows for cell in row]
    assert not re.search(r"\b(nan|inf|None)\b", " ".join(f"{cell.text} {cell.below}" for cell in cells))


def test_an_interrupted_run_with_one_round_can_be_reported(tmp_path: Path, small: World) -> None:
    frames = merge([load(write_run(tmp_path / "run", replace(small, rounds=1, status="interrupted")))])

    shown = [panel.drawn().title for panel in panels(frames)]

    assert shown == [title for title in expected() if title != FRONTIER]
    assert "interrupted after round 1 of 30" in warnings(frames)[0]


@pytest.mark.usefixtures("no_figures")
def test_two_runs_stand_side_by_side(tmp_path: Path, small: World) -> None:
    alone = replace(small, name="other", variants=small.variants[:1], trained=False)
    folders = [write_run(tmp_path / "one", small), write_run(tmp_path / "two", alone)]

    page = Page(write_report(folders, tmp_path / "report.html"))

    assert "heterogeneous_bw: splitfed_v2, cyclic" in page.text
    assert "other: timing-only" in page.text
    assert page.text.count(": scenario.yaml") == 2


def test_two_runs_of_one_name_are_told_apart_by_folder(small_folder: Path, folder: Path) -> None:
    labels = [variant.label for variant in merge([load(small_folder), load(folder)]).variants]

    assert f"{small_folder}: splitfed_v2, cyclic" in labels
    assert f"{folder}: splitfed_v2, cyclic" in labels


def test_a_method_without_a_server_can_be_reported(folder: Path) -> None:
    ops = pd.read_parquet(folder / "ops.parquet")
    ops[ops["node"] != "server"].to_parquet(folder / "ops.parquet")

    shown = {panel.title: panel.drawn() for panel in panels(merge([load(folder)]))}

    assert "held idle for 0\u00a0% of the round" in shown["The server's queue"].figures[0][0]


def test_a_run_whose_operations_are_lost_can_be_reported(folder: Path) -> None:
    pd.read_parquet(folder / "ops.parquet").head(0).to_parquet(folder / "ops.parquet")

    shown = [panel.drawn().title for panel in panels(merge([load(folder)]))]

    assert "Why a round takes so long" in shown


def test_a_folder_without_a_run_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="not a complete run folder"):
        write_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_the_example_that_tells_how_to_add_a_figure_works(frames: Frames) -> None:
    example = re.search(r"for example:\n\n(.*)\n\nIn `SECTIONS`", inspect.getdoc(report) or "", re.S)
    assert example is not None
    names: dict[str, Any] = {}
    exec(dedent(example[1]), names)
    (panel,) = names["upload_panels"](frames)
    assert [entry.name for entry in panel.legend] == [variant.label for variant in frames.variants]
    nothing = frames.rounds.assign(bytes_up=0)
    assert names["upload_panels"](replace(frames, rounds=nothing)) == []


# The sentences on top


def test_it_opens_with_who_reaches_the_target_first_who_is_most_accurate_and_whom_to_choose(frames: Frames) -> None:
    time_s = frames.summary.groupby("variant")["time_to_accuracy_s"].median().sort_values()
    accuracy = frames.summary.groupby("variant")["accuracy"].median()

    in_time, in_score, chosen = headline(of_labels(frames, {}))

    assert in_time.facts["medians"] == pytest.approx(time_s.to_dict())
    assert (in_time.facts["first"], in_time.facts["next"]) == ([time_s.index[0]], time_s.index[1])
    assert in_score.facts["first"] == [accuracy.idxmax()]
    assert chosen.facts["figures"][1] == "performance gap"


def test_every_number_on_top_of_runs_side_by_side_is_in_their_tables(run_folder: Path, tmp_path: Path) -> None:
    """The second run is the first one, twice as slow and 10 points more accurate: all variants of both are compared."""
    later = Path(shutil.copytree(run_folder, tmp_path / "later"))
    stored = json.loads((later / "summary.json").read_text())
    for trial in stored["variants"]:
        trial |= {"time_to_accuracy_s": 2 * trial["time_to_accuracy_s"], "accuracy": trial["accuracy"] + 0.1}
    (later / "summary.json").write_text(json.dumps(stored))
    folders = {"": run_folder, "later": later}
    trials = pd.concat(
        pd.DataFrame(json.loads((folder / "summary.json").read_text())["variants"]).assign(run=run)
        for run, folder in folders.items()
    )
    middle = trials.groupby(["run", "name"])[["time_to_accuracy_s", "accuracy", "target_accuracy"]].median()
    in_time, *_, in_score = headline(of_labels(merge([load(folder) for folder in folders.values()]), {}))[:2]

    (target,) = {f"{100 * share:.0f}" for share in middle["target_accuracy"]}
    seconds, shares = middle["time_to_accuracy_s"].sort_values(), middle["accuracy"].sort_values(ascending=False)
    ratio = f"{seconds.iloc[1] / seconds.iloc[0]:.2f}"
    assert numbers(in_time.text) == numbers(target, *map(duration, seconds.iloc[:2]), ratio, "2 2")
    assert numbers(in_score.text) == numbers(*map(percent, shares.iloc[:2]), "2 2")


def test_the_reference_is_named_with_the_share_that_the_target_is_of_its_best(frames: Frames) -> None:
    seconds = {ARRIVAL: [90.0, 90.0], CYCLIC: [60.0, 60.0], HYDRA: [30.0, 30.0]}
    told = retold(frames, time_to_accuracy_s=seconds)
    summary = told.summary.assign(best_accuracy=0.7 / 0.995, reference=ARRIVAL)
    text = headline(replace(told, summary=summary))[0].text
    assert text.count("99.5\u00a0%") == text.count(ARRIVAL) == 1


def test_a_target_that_nobody_reaches_is_told_before_the_best_accuracy(frames_of: FramesOf, small: World) -> None:
    frames = of_labels(frames_of(small), {})
    best = frames.summary.groupby("variant")["accuracy"].median().idxmax()
    unreached, most_accurate, *_ = headline(frames)
    assert unreached.facts["first"] == most_accurate.facts["first"] == []  # of one seed
    assert most_accurate.facts["not told apart"][0] == best


def test_a_single_variant_is_not_compared(frames_of: FramesOf) -> None:
    alone = World(variants=(Setting("hydra, cyclic", "hydra", "cyclic", 0.9, 0.0),), clients=3)
    sentences = headline(frames_of(alone))
    assert [sentence.facts["first"] for sentence in sentences] == [[HYDRA], [HYDRA]]
    assert not any("next" in sentence.facts for sentence in sentences)


def of_labels(frames: Frames, accuracy: dict[tuple[str, str], list[float]]) -> Frames:
    """The frames in which labels of variants have this accuracy with the seeds 0 and 1, and all others 80 %."""
    labels = frames.labels.assign(accuracy=0.8)
    for (variant, label), by_seed in accuracy.items():
        rows = (labels["variant"] == variant) & (labels["label_name"] == label)
        labels.loc[rows, "accuracy"] = labels.loc[rows, "seed"].map(dict(enumerate(by_seed)))
    return replace(frames, labels=labels)


def test_labels_that_a_variant_has_not_learned_are_told_before_who_is_most_accurate(frames: Frames) -> None:
    """Below chance, which is 10 % with ten labels, in the median over seeds: 6 % and 12 % are, 8 % and 14 % are not."""
    known = {(ARRIVAL, "cat"): [0.06, 0.12], (ARRIVAL, "dog"): [0.08, 0.14], (HYDRA, "ship"): [0.0, 0.0]}
    in_time, missed, in_score = headline(of_labels(frames, known))

    assert missed.facts == {"not learned": {ARRIVAL: ["cat"], HYDRA: ["ship"]}, "chance": [0.1]}
    for word in (ARRIVAL, "cat", HYDRA, "ship", "10.0\u00a0%", "2 seeds"):
        assert word in missed.text
    assert "dog" not in missed.text
    assert [in_time.facts["compared"][:4], in_score.facts["compared"]] == ["time", "accuracy"]


def test_of_tokens_nobody_knows_chance(frames: Frames) -> None:
    summary = frames.summary.assign(perplexity=3.0)
    tokens = replace(of_labels(frames, {(ARRIVAL, "cat"): [0.0, 0.0]}), summary=summary)
    assert not any("not learned" in sentence.facts for sentence in headline(tokens))


def test_of_many_targets_the_first_two_are_told(eight: Frames) -> None:
    targets = eight.summary["variant"].rank(method="dense") / 20  # 5 % to 40 %
    frames = replace(eight, summary=eight.summary.assign(target_accuracy=targets, time_to_accuracy_s=1.0))
    first, score, second = headline(of_labels(frames, {}))
    assert score.facts["compared"] == "accuracy"
    assert [each.facts["compared"] for each in (first, second)] == [f"time to {aim.name}" for aim in aims(frames)[:2]]


def test_a_timing_only_run_tells_lost_clients_beside_the_time(frames_of: FramesOf, small: World) -> None:
    frames = frames_of(replace(small, trained=False))
    fast = frames.summary.groupby("variant")["simulated_s"].median().idxmin()
    rounds = frames.rounds.assign(present=4.0, lost_device_s=0.0, lost_bytes=0.0)
    rounds["lost"] = np.where(rounds["variant"] == fast, 2.0, 0.0)

    (sentence,) = headline(replace(frames, rounds=rounds))

    assert (sentence.facts["compared"], sentence.facts["first"]) == ("time of a round", [fast])
    assert "(50\u00a0% of its participants drop out) has" in sentence.text
    assert "(0\u00a0% of" in sentence.text

    (nobody_lost,) = headline(replace(frames, rounds=rounds.assign(lost=0.0)))
    assert "drop out" not in nobody_lost.text


def repriced(frames: Frames, doubtful: str | None) -> Frames:
    """As if this run had been repriced, with another bandwidth, and one variant would have to be trained."""
    verdicts = [
        {"variant": name, "seed": int(seed), "rounds": 30, "valid_rounds": 30 * (name != doubtful),
         "reason": "round 1: client 1 would be served before client 0" if name == doubtful else None,
         "before_s": 200.0 + seed, "after_s": 100.0, "to_accuracy_before_s": 50.0}
        for name, seed in frames.summary[["variant", "seed"]].itertuples(index=False)
    ]  # fmt: skip
    source = {"folder": "reports/run", "scenario": "0", "changes": {"clients.network.scale": ["1.0", "4.0"]}}
    (run,) = frames.runs
    return merge([replace(run, manifest=run.manifest | {"repriced_from": source, "repriced": verdicts})])


def test_a_repriced_page_speaks_only_of_variants_whose_learning_holds(frames: Frames) -> None:
    fastest = frames.summary.groupby("variant")["time_to_accuracy_s"].median().idxmin()

    change, first, *_ = headline(repriced(frames, doubtful=fastest))
    _, all_hold, *_ = headline(repriced(frames, doubtful=None))

    assert change.facts["changes"] == "clients.network.scale 1\u00a0→ 4"
    assert change.facts["medians"][ARRIVAL] == {"before_s": 200.5, "after_s": 100.0}
    assert "2 of 3 variants" in first.text
    assert fastest not in first.facts["medians"]
    assert all_hold.facts["first"] == [fastest]


def test_the_table_of_a_repriced_run_has_before_and_after(frames: Frames) -> None:
    table = repriced_table(repriced(frames, doubtful=HYDRA))

    assert table is not None
    first, _, last = read(table).values()
    assert first["Simulated time"][0] == "3 min 20 s → 1 min 40 s"
    assert first["Times as fast"][0] == "2.00×"
    assert (first["What it learned"][0], last["What it learned"][0]) == ("holds", "must be trained")
    assert repriced_table(frames) is None


def test_a_seed_that_misses_the_target_is_infinitely_late_before_and_after(frames: Frames) -> None:
    every = repriced(frames, doubtful=None)
    name, verdicts = every.variants[0].label, every.runs[0].manifest["repriced"]
    first, second = (verdict for verdict in verdicts if verdict["variant"] == name)

    def times() -> str:
        table = repriced_table(every)
        assert table is not None
        return read(table)[name]["Time to target"][0]

    reached = times()
    first["to_accuracy_before_s"] = None
    never_before = times()
    every.summary.loc[every.summary["variant"] == name, "time_to_accuracy_s"] = [40.0, np.nan]
    never = times()
    first["to_accuracy_before_s"], second["reason"] = 50.0, "round 1: client 1 would be served before client 0"
    unknown = times()

    assert reached.startswith("50 s → ")
    assert never_before == "–" + reached.removeprefix("50 s")
    assert never == "–"
    assert unknown == "50 s → –"
