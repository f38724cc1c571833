"""The page of a benchmark: its table, its sentences, and what it does not say."""

import math

import numpy as np
import pandas as pd
import pytest
from command import sfl_sim

from sfl_sim.errors import ScenarioError
from sfl_sim.report.load import BENCHMARK, BENCHMARK_BEFORE, OWN_LINKS
from sfl_sim.report.pages import benchmark

TRAITS = {"is_split": True, "sends_labels": True, "gets_gradients": True, "keeps_graphs": True, "uploads_model": True}
METHODS = {
    "splitfed_v1": {"score": 0.60, "seconds_to_target": 100.0, "client_memory_bytes": 1000},
    "quick": {"score": 0.58, "seconds_to_target": 40.0, "client_memory_bytes": 500, "gets_gradients": False},
    "never": {"score": 0.20, "seconds_to_target": math.nan, "client_memory_bytes": 250, "keeps_graphs": False},
}


def table(seeds=(1, 2, 3), links=(OWN_LINKS, "wifi")):
    rows = [
        TRAITS | {"track": "small", "variant": name, "seed": seed, "links": link,
                  "control": "", "superseded": "", "optimizer": "sgd", "server_lr": 0.05, "option": "", "at_edge": "",
                  "holds": name != "quick" or link == OWN_LINKS, "lr": 0.1, "rounds": 10, "simulated_s": 200.0,
                  "bytes_up": 1e6, "bytes_down": 1e6, "joule": 5.0,
                  "performance_gap": 0.1, "backward_transfer": 0.0, "perplexity": math.nan, "server_model_bytes": 9.0,
                  "target": 0.5, "rounds_to_target": own["seconds_to_target"] / 10,
                  "bytes_to_target": own["seconds_to_target"] * 1e4, "joule_to_target": own["seconds_to_target"] / 50,
                  "score_in_half_time": 0.3, "score_in_half_bytes": 0.3, "ssim": math.nan}
        | own | {"score": own["score"] + 0.01 * seed}
        for link in links for name, own in METHODS.items() for seed in seeds
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture
def folder(tmp_path):
    table().to_csv(tmp_path / BENCHMARK, index=False)
    return tmp_path


def test_each_method_stands_beside_the_reference_with_what_it_spares(folder):
    cards = {card.titles[1]: {row[0].text: row[1].text for row in card.rows}
             for card in benchmark.cards(benchmark.load_compared(folder))}  # fmt: skip
    assert cards["splitfed_v1"]["Accuracy"].startswith("0.0 points")
    assert cards["quick"]["Accuracy"] == "−2.0 points more than splitfed_v1 [−2.0, −2.0]; rank 2.0 [2.0, 2.0] of 3"
    needs = ("Client memory", "Time to target", "Bytes to target")
    assert [cards["quick"][title].rpartition(", ")[2] for title in needs] == ["0.50×", "0.40×", "0.40×"]
    assert [cards["never"][title].rpartition(", ")[2] for title in needs] == ["0.25×", "not reached", "not reached"]
    assert "gradient" in cards["quick"]["What it is like"]
    assert "backward" in cards["never"]["What it is like"]
    assert cards["quick"]["Tuned to"] == "sgd, rate 0.1, 0.05 at the server"


@pytest.mark.parametrize(
    ("number", "first", "medians"),
    [(0, "splitfed_v1", {"splitfed_v1": 0.62, "quick": 0.60, "never": 0.22}),
     (1, "quick", {"splitfed_v1": 100.0, "quick": 40.0, "never": math.inf}),
     (2, "quick", {"splitfed_v1": 1e6, "quick": 4e5, "never": math.inf})],
)  # fmt: skip
def test_headlines_name_the_best_and_who_is_late(folder, number, first, medians):
    sentence = benchmark.headlines(benchmark.load_compared(folder))[number]
    assert sentence.facts["first"] == [first]
    assert sentence.facts["medians"] == pytest.approx(medians)
    assert sentence.facts["late"] == ({"never": (0, 3)} if number else {})
    assert sentence.facts["ahead"] == sentence.facts["seeds"] == 3


def test_methods_whose_mean_ranks_overlap_are_not_told_apart(tmp_path):
    """Ranks of 1, 2 and 1: 1.33 ± 4.30 · 0.58 / √3 = 1.43, within which lies the other's mean of 1.67."""
    rows = table(links=(OWN_LINKS,))
    rows.loc[rows["variant"] == "quick", "score"] = [0.7, 0.6, 0.7]
    rows.to_csv(tmp_path / BENCHMARK, index=False)
    first = benchmark.headlines(benchmark.load_compared(tmp_path))[0]
    assert (first.facts["first"], first.facts["not told apart"]) == ([], ["quick", "splitfed_v1"])
    assert "70.0\u00a0%" in first.text
    assert "never" not in first.text


def test_three_equal_methods_crown_nobody(tmp_path):
    rows = table(links=(OWN_LINKS,)).assign(score=0.5)
    rows.to_csv(tmp_path / BENCHMARK, index=False)
    accuracy = benchmark.headlines(benchmark.load_compared(tmp_path))[0]
    assert "best" not in accuracy.text


def test_tables_are_headed_by_these_words(folder):
    shown = [table for panel in benchmark.panels(benchmark.load_compared(folder)) for table in panel.tables]
    assert [list(table.titles) for table in shown] == [
        ["Variant", "Accuracy", "Rank", "Time to target", "Rank", "Bytes to target", "Rank", "Energy to target",
         "Rounds to target", "Client memory", "In half the time", "With half the bytes", "PG (points)", "BW (points)",
         "All rounds", "Sent up", "Sent down", "Server memory", "Rate of clients", "Rate of the server"],
        ["Variant", "The scenario's links", "wifi"],
        *(["", name] for name in METHODS),
    ]  # fmt: skip


def test_a_method_that_misses_the_target_says_so_and_is_no_candidate(folder):
    found = benchmark.load_compared(folder)
    shown = benchmark.table(found, benchmark.columns(found))
    place = list(shown.titles).index("Time to target")
    late = shown.rows[2][place]
    assert (late.text, late.below, late.order) == ("not reached", "0 of 3 seeds", "Infinity")
    assert shown.best[place] == "40 s".replace(" ", "\u00a0")
    assert "Leakage (SSIM)" not in shown.titles, "it was not measured"


def test_times_on_links_on_which_another_thing_might_be_learned_are_marked(folder):
    found = benchmark.load_compared(folder)
    rows = {row[0].text: row for row in benchmark.on_links(found, ["wifi"]).rows}
    assert rows["quick"][2].text.startswith("~ ")
    assert not rows["splitfed_v1"][2].text.startswith("~")


def test_the_page_sorts_and_can_be_opened_offline(folder):
    page = benchmark.write_benchmark(folder, folder / "benchmark.html").read_text()
    assert 'data-order="40.0"' in page
    assert 'data-order="Infinity"' in page
    assert '<script src="http' not in page


def test_a_page_is_written_again_from_its_table_to_which_rows_of_another_benchmark_were_appended(folder, capsys):
    theirs = table()[lambda rows: rows["variant"] == "quick"].assign(variant="mine")
    pd.concat([pd.read_csv(folder / BENCHMARK), theirs]).to_csv(folder / BENCHMARK, index=False)
    sfl_sim("report", str(folder))
    page = folder / "benchmark.html"
    assert capsys.readouterr().out.strip() == str(page)
    assert "4 variants, 3 seeds" in page.read_text()


def test_names_are_escaped(tmp_path):
    rows = table(links=(OWN_LINKS,)).replace({"variant": {"quick": "<b>quick</b>"}})
    rows.to_csv(tmp_path / BENCHMARK, index=False)
    assert "<b>quick</b></th>" not in benchmark.write_benchmark(tmp_path, tmp_path / "page.html").read_text()


def test_a_folder_without_a_table_is_refused(tmp_path):
    with pytest.raises(ScenarioError) as raised:
        benchmark.load_compared(tmp_path)
    assert (raised.value.key, raised.value.found) == ("folder", str(tmp_path))


def test_a_table_of_an_earlier_version_is_refused(folder):
    table().drop(columns=["superseded", "control"]).to_csv(folder / BENCHMARK, index=False)
    with pytest.raises(ScenarioError, match="earlier version"):
        benchmark.load_compared(folder)


def test_all_methods_have_their_names_beside_the_figures_where_none_hides_another(tmp_path):
    """Thirty variants as accurate as one another, and `quick` below them; a line ends at the height of each name."""
    rows = table(links=(OWN_LINKS,))
    crowd = [rows[rows["variant"] == "splitfed_v1"].assign(variant=f"variant {n}", score=0.7) for n in range(30)]
    pd.concat([rows[rows["variant"] == "quick"], *crowd]).to_csv(tmp_path / BENCHMARK, index=False)
    figure = benchmark.fronts(benchmark.load_compared(tmp_path))[0][1]()
    heights = {note.text.removeprefix("<b>").removesuffix("</b>"): note.y for note in figure.layout.annotations}
    assert set(heights) == {"quick", *(f"variant {n}" for n in range(30))}
    assert min(heights, key=heights.get) == "quick"
    places = sorted(heights.values())
    px = (figure.layout.height - 90) * np.diff(places) / (places[-1] - places[0])
    assert px.min() >= benchmark.NAME_PX
    lines, marks = figure.data
    assert sorted(lines.y[1::3]) == places
    assert dict(zip(marks.text, marks.y, strict=True))["quick"] == pytest.approx(60)


def test_a_table_without_controls_still_tells_its_target(folder):
    assert benchmark.about_target(benchmark.load_compared(folder)).startswith("The target, 50.0\u00a0%")


def test_methods_that_learn_the_same_count_once_in_accuracy_and_apart_in_costs(tmp_path):
    """`same` learns as `splitfed_v1` does, in another time: `quick` is second of three, not third of four."""
    rows = table(links=(OWN_LINKS,))
    same = rows[rows["variant"] == "splitfed_v1"].assign(variant="same", seconds_to_target=70.0)
    pd.concat([rows, same]).to_csv(tmp_path / BENCHMARK, index=False)
    found = benchmark.load_compared(tmp_path)
    by_accuracy, by_time = (benchmark.ranked_by(found, key)["rank"].to_dict() for key in ("score", "seconds_to_target"))
    assert by_accuracy == {"splitfed_v1": 1, "same": 1, "quick": 2, "never": 3}
    assert by_time == {"quick": 1, "same": 2, "splitfed_v1": 3, "never": 4}
    assert "<b>splitfed_v1 = same</b>" in benchmark.headlines(found)[0].text


def test_controls_and_superseded_rows_stand_beside_the_methods_and_have_no_rank(tmp_path):
    rows = table(links=(OWN_LINKS,))
    rows.loc[rows["variant"] == "quick", "superseded"] = "ran as another method"
    top = pd.DataFrame([{"track": "small", "variant": "trained centrally", "control": "trained centrally", "seed": seed,
                         "links": OWN_LINKS, "score": 0.9} for seed in (1, 2, 3)])  # fmt: skip
    pd.concat([rows, top]).to_csv(tmp_path / BENCHMARK, index=False)
    found = benchmark.load_compared(tmp_path)
    assert found.variants == ["splitfed_v1", "never"]
    assert found.beside == {"quick": "superseded: ran as another method", "trained centrally": "control"}
    shown = benchmark.table(found, benchmark.columns(found))
    assert [row[0].text for row in shown.rows] == ["splitfed_v1", "never", "quick", "trained centrally"]
    assert [row[1].text for row in shown.rows[2:]] == ["60.0\u00a0%", "90.0\u00a0%"]
    assert shown.best[1] == "62.0\u00a0%", "a control is no candidate"
    assert benchmark.about_target(found).endswith("In the last rounds: trained centrally 90.0\u00a0%.")


def test_what_moved_since_the_version_before_has_its_reason(tmp_path):
    before = table(links=(OWN_LINKS,))
    now = before.copy()
    now.loc[now["variant"] == "quick", ["lr", "score"]] = [0.2, 0.9]
    now.loc[now["variant"] == "never", "superseded"] = "ran as another method"
    new = before[before["variant"] == "never"].assign(variant="late")
    before.to_csv(tmp_path / BENCHMARK_BEFORE, index=False)
    pd.concat([now, new]).to_csv(tmp_path / BENCHMARK, index=False)
    both = [benchmark.load_compared(tmp_path, name) for name in (BENCHMARK_BEFORE, BENCHMARK)]
    why = {row[0].text: row[-1].text for row in benchmark.moved(*both)}
    assert why == {
        "splitfed_v1": "others came, went or moved",
        "quick": "tuned to sgd, rate 0.2, 0.05 at the server; before to sgd, rate 0.1, 0.05 at the server",
        "never": "superseded: ran as another method",
        "late": "new",
    }
    assert "What moved" in benchmark.write_benchmark(tmp_path, tmp_path / "page.html").read_text()
    back = {row[0].text: row[-1].text for row in benchmark.moved(*reversed(both))}
    assert back["never"] == "before superseded: ran as another method"
