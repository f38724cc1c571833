"""The page of a what-if: made from the folder alone, with what there is data for and nothing else."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from read_table import numbers, read, said
from rich.console import Console
from synthetic_whatif import BANDWIDTHS, Vary, World, write_whatif

from sfl_sim.errors import ScenarioError
from sfl_sim.features.whatif.figures import firsts, intervals
from sfl_sim.features.whatif.load import WhatIfFolder, load_whatif
from sfl_sim.features.whatif.page import (
    SURVIVAL,
    best_points,
    headline,
    panels,
    survivors,
    warnings,
    whatif_in_terminal,
)
from sfl_sim.features.whatif.page import write_whatif as write_page
from sfl_sim.report import display
from sfl_sim.report.lead import BestSpan
from sfl_sim.report.panel import Panel

FEW_CUTS = Vary("model.cut", (1, 3, 11, 23), ("dw1", "dw2", "dw6", "dw12"), base=0)
SMALL = World(axes=(FEW_CUTS, BANDWIDTHS), clients=6)
SECTIONS = [
    "Time of a round by cut",
    "At other values of bandwidth",
    "Where the best cut changes",
    "The best choice for each class of devices",
    "What it costs a client",
    "Configurations that were trained",
]


def page_of(folder: Path) -> str:
    return write_page(folder, folder / "whatif.html").read_text(encoding="utf-8")


def panels_of(folder: Path) -> dict[str, Panel]:
    """The panels by their titles, with their figures drawn."""
    return {panel.title: panel.drawn() for panel in panels(load_whatif(folder))}


def in_terminal(folder: Path) -> str:
    printed = io.StringIO()
    Console(file=printed, width=80).print(whatif_in_terminal(folder))
    return printed.getvalue()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> WhatIfFolder:
    """Four cuts at five bandwidths, three seeds."""
    return load_whatif(write_whatif(tmp_path_factory.mktemp("whatif") / "small", replace(SMALL, seeds=(0, 1, 2))))


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> WhatIfFolder:
    """Four cuts alone, one seed."""
    return load_whatif(write_whatif(tmp_path_factory.mktemp("whatif") / "cuts", replace(SMALL, axes=(FEW_CUTS,))))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> WhatIfFolder:
    """Two series, of which the second one's server is slower; two of the cuts were trained."""
    world = replace(SMALL, axes=(FEW_CUTS,), series=(("a", 1.0), ("b", 500.0)), trained=(0, 1))
    return load_whatif(write_whatif(tmp_path_factory.mktemp("whatif") / "two", world))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cuts of MobileNetV1 at five bandwidths, some of them trained."""
    return write_whatif(tmp_path_factory.mktemp("whatif") / "full", World(trained=(1, 6, 10, 18)))


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return page_of(folder)


@pytest.fixture(scope="module")
def whatif(folder: Path) -> WhatIfFolder:
    return load_whatif(folder)


@pytest.fixture(scope="module")
def shown(folder: Path) -> dict[str, Panel]:
    return panels_of(folder)


def test_what_survives_is_told_on_the_page_and_in_the_terminal(tmp_path: Path) -> None:
    """In four systems all is as undrawn; in the fifth the shallowest cut is the best."""
    folder = write_whatif(tmp_path / "draws", replace(SMALL, draws=5))
    whatif = load_whatif(folder)
    assert panels(whatif)[1].title == SURVIVAL
    _, survives, _ = headline(whatif)
    first, other = ("splitfed_v2", 2), ("splitfed_v2", 0)
    assert survives.facts == {"first": first, "share": 0.8, "next": other, "its share": 0.2}
    assert said(survives.text).startswith("In 80 % of 5 drawn systems")
    assert "5 drawn systems" in in_terminal(folder)


def test_draws_along_an_axis_of_numbers_and_of_several_variants_are_drawn(tmp_path: Path) -> None:
    axes = (Vary("server.speedup", (1000.0, 10.0, 100.0), base=2),)
    folder = write_whatif(tmp_path / "numbers", replace(SMALL, axes=axes, draws=2, series=(("one", 1.0), ("two", 2.0))))
    whatif = load_whatif(folder)
    assert [sorted(trace.x) for trace in intervals(whatif).data] == [[10.0, 100.0, 1000.0]] * 2
    assert all((trace.error_y.array >= 0).all() for trace in intervals(whatif).data)
    assert max(max(trace.y) for trace in firsts(whatif).data) == 100.0
    assert all(len(row) == 5 for row in survivors(whatif).rows)


def test_all_cuts_at_all_bandwidths_with_a_run_have_every_section(page: str, shown: dict[str, Panel]) -> None:
    assert [len(panel.figures) for panel in shown.values()] == [1, 4, 2, 2, 2, 2]
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == [*SECTIONS, "Look for yourself", "Settings", "How to read the numbers", "Machine"]
    assert list(shown) == SECTIONS
    assert page.count('class="plotly-graph-div"') == 1 + 4 + 2 + 2 + 2 + 2
    assert page.count('<p class="headline">') == 3
    assert " – what-if</title>" in page


def test_it_says_which_cut_is_the_best_what_it_saves_and_where_that_changes(whatif: WhatIfFolder) -> None:
    points = whatif.points
    round_s = points[points[BANDWIDTHS.key] == whatif.others[0].shown].set_index("model.cut")["round_s"]
    best, second = round_s.nsmallest(2).index
    where, trained, changes = headline(whatif)

    assert (where.facts["first"], where.facts["next"]) == ([("splitfed_v2", best)], ("splitfed_v2", second))
    assert where.facts["medians"][("splitfed_v2", 1)] == round_s[1]
    assert f"<b>2 pw1</b>, the scenario’s own, has {display.duration(round_s[1])}" in where.text
    assert changes.facts["spans"] == [BestSpan(22, 0, 1), BestSpan(best, 2, 3), BestSpan(2, 4, 4)]
    assert "<b>23 dw12</b> at ×0.1 to ×0.3" in changes.text
    assert trained.facts["not told apart"][0] == ("splitfed_v2", 10)  # of one seed
    assert trained.facts["late"] == {("splitfed_v2", 1): (0, 1)}


def test_the_page_is_whole_without_the_network_and_names_are_no_tags(tmp_path: Path) -> None:
    script = "<script>alert(1)</script>"
    axes = (replace(FEW_CUTS, names=(script, "a", "b", "c")), Vary("server.order", ("fcfs", script), base=0))
    world = replace(SMALL, name=script, axes=axes, series=((script, 1.0), ("b", 2.0)), trained=(0, 1))
    page = page_of(write_whatif(tmp_path / "script", world))
    body = page[page.index("<body>") :]

    assert script not in page
    assert "alert(1)" in body
    assert "two &lt;slow&gt; cores" in body
    assert "clients arrive in another &lt;order&gt;" in body
    assert "http" not in body.replace("http://www.w3.org", "")


def test_the_table_has_the_best_cut_of_every_bandwidth(shown: dict[str, Panel]) -> None:
    (table,) = shown["Where the best cut changes"].tables
    assert [(said(heading.text), said(cut.text)) for heading, cut, *_ in table.rows] == [
        ("bandwidth ×0.1", "23 dw12"), ("bandwidth ×0.3", "23 dw12"), ("bandwidth ×1", "11 dw6"),
        ("bandwidth ×3", "11 dw6"), ("bandwidth ×10", "3 dw2"),
    ]  # fmt: skip
    assert [said(heading.below) for heading, *_ in table.rows] == ["", "", "the scenario’s own", "", ""]


def test_tables_are_headed_by_these_words(shown: dict[str, Panel]) -> None:
    trained = ["Cut", "A round", "Accuracy reached", "Rounds to target", "Time to target", "Valid"]
    assert [list(map(said, table.titles)) for panel in shown.values() for table in panel.tables] == [
        ["Bandwidth", "Best cut", "A round", "2 pw1 instead", "Device", "Uplink", "Queue", "Server", "Downlink",
         "Waiting", "Aggregation", "Client memory", "Client energy"],
        trained, trained,
    ]  # fmt: skip


def test_what_cannot_be_taken_over_must_be_trained(shown: dict[str, Panel]) -> None:
    own, elsewhere = shown["Configurations that were trained"].tables
    for table, bandwidths in ((own, 1), (elsewhere, 4)):
        valid = [(row[-1].text, row[-1].below) for row in table.rows]
        assert valid.count(("must be trained", "clients arrive in another <order>")) == bandwidths
        assert [cell.text for row in table.rows for cell in row].count("not reached") == 2 * bandwidths
    assert (own.folded, elsewhere.folded) == (False, True)


def test_the_legend_of_trained_points_names_each_series_in_its_colour(two: WhatIfFolder) -> None:
    (panel,) = (panel for panel in panels(two) if panel.title == SECTIONS[5])
    assert panel.drawn().legend == [("color: #0072B2", "●", "a"), ("color: #D55E00", "●", "b")]


def test_without_other_axes_there_is_neither_a_map_nor_a_boundary(cuts: WhatIfFolder) -> None:
    found = panels(cuts)
    assert [panel.title for panel in found] == [SECTIONS[0], *SECTIONS[3:5]]
    assert len(headline(cuts)) == 1
    assert "Best cut" in found[0].tables[0].titles


def test_of_a_third_axis_one_value_is_drawn_and_all_are_in_the_table(tmp_path: Path) -> None:
    axes = (FEW_CUTS, BANDWIDTHS, Vary("server.workers", (1, 4)))
    found = panels_of(write_whatif(tmp_path / "three", replace(SMALL, axes=axes)))
    # None is the scenario's own: the middle one.
    assert "All of it at bandwidth ×1, workers 4." in found[SECTIONS[0]].caption
    (table,) = found["Where the best cut changes"].tables
    assert len([row for row in table.rows if re.match(r"bandwidth ×[\d.]+ · workers \d", row[0].text)]) == 10


def test_the_line_of_setup_has_the_number_of_clients_unless_it_is_varied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfl_sim.features.whatif.page.panels", lambda whatif: [])
    for axes, told in (((FEW_CUTS,), "clients: 6, "), ((FEW_CUTS, Vary("clients.count", (6, 9))), "clients: 9, ")):
        folder = write_whatif(tmp_path / told, replace(SMALL, axes=axes))
        (folder / "scenario.yaml").write_text("{name: a, data: {name: digits}, clients: {count: 9, compute: 1e9}}")
        assert told in page_of(folder)


def test_without_cuts_the_first_axis_takes_their_place(tmp_path: Path) -> None:
    axes = (Vary("server.speedup", (1000.0, 10.0, 100.0), base=2), BANDWIDTHS)
    folder = write_whatif(tmp_path / "speedup", replace(SMALL, axes=axes))
    found = panels_of(folder)
    best, always = headline(load_whatif(folder))
    assert best.facts["first"] == [("splitfed_v2", 2), ("splitfed_v2", 1)]  # which read alike
    assert always.facts["spans"] == [BestSpan(2, 0, 4)]
    assert "Time of a round by server/client compute ratio" in found
    assert "Memory does not depend on server/client compute ratio" in found["What it costs a client"].caption


def test_several_seeds_have_a_spread_and_say_how_many_agree(small: WhatIfFolder) -> None:
    best, *_ = headline(small)
    assert best.facts["seeds"] == 3
    assert best.facts["ahead"] <= 3
    row = next(row for row in read(best_points(small)).values() if row["Best cut"][0] == "11 dw6")
    assert row["A round"][1].startswith("± ")


def test_of_several_variants_the_first_is_told_at_its_best(two: WhatIfFolder) -> None:
    (best, _) = headline(two)
    first, second = (two.best(series) for series in two.series)
    assert (best.facts["first"], best.facts["next"]) == ([("a", first)], ("b", second))
    assert set(best.facts["medians"]) == {("a", first), ("b", second)}


def test_of_several_variants_all_points_that_read_as_short_as_the_best_are_first(two: WhatIfFolder) -> None:
    alike = replace(two, points=two.points.assign(round_s=two.points["series"].map({"a": 10.0, "b": 28.0})))
    (best, *_) = headline(alike)
    assert best.facts["first"] == [("a", cut) for cut in range(len(alike.along.values))]
    assert best.facts["next"][0] == "b"


def test_the_scenario_s_own_cut_may_be_the_best(cuts: WhatIfFolder) -> None:
    own = replace(cuts, axes=[replace(cuts.along, base=2)])
    (best,) = headline(own)
    assert best.facts["first"] == [("splitfed_v2", 2)]
    assert "the scenario’s own" not in best.text


def test_unknown_power_and_memory_are_said_and_not_drawn(cuts: WhatIfFolder) -> None:
    unknown = float("nan")
    points = cuts.points.assign(client_memory_bytes=unknown, client_joule=unknown)
    found = panels(replace(cuts, points=points, clients=cuts.clients.assign(memory_bytes=unknown, joule=unknown)))
    caption = found[2].caption
    assert caption.count("known") == 2
    assert "<code>clients.power</code>" in caption
    assert not found[2].drawings
    assert "Client memory" not in found[0].tables[0].titles


def test_an_interrupted_study_shows_what_there_is(tmp_path: Path) -> None:
    folder = write_whatif(tmp_path / "interrupted", replace(SMALL, status="interrupted"))
    points = pd.read_parquet(folder / "points.parquet")
    points[points[SMALL.axes[0].key] == SMALL.axes[0].values[0]].iloc[:2].to_parquet(folder / "points.parquet")
    found = panels_of(folder)
    assert "interrupted" in warnings(load_whatif(folder))[0]
    assert sum(len(table.rows) for panel in found.values() for table in panel.tables) == 2


def test_it_tells_of_no_seed_and_of_no_bandwidth_that_it_has_not_walked(small: WhatIfFolder) -> None:
    points, shown = small.points, small.others[0].shown
    here = (points[BANDWIDTHS.key] == shown) & ((points["seed"] == 0) | (points["model.cut"] == 0))
    (best,) = headline(replace(small, points=points[here]))
    assert (best.facts["first"], best.facts["seeds"]) == ([("splitfed_v2", 2)], 1)
    assert "nan" not in best.text


def test_a_table_without_an_axis_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = write_whatif(tmp_path / "damaged", SMALL)
    points = pd.read_parquet(folder / "points.parquet")
    points.drop(columns="model.cut").to_parquet(folder / "points.parquet")
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_whatif(folder)


def test_a_folder_without_a_what_if_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"whatif\.json, points\.parquet"):
        write_page(tmp_path, tmp_path / "page.html")


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    folder = write_whatif(tmp_path / "damaged", SMALL)
    (folder / "whatif.json").write_text(json.dumps({"scenario": "damaged"}))
    with pytest.raises(ScenarioError, match="axes"):
        load_whatif(folder)


def test_the_terminal_has_every_cut_of_the_own_system_with_the_own_one_marked(folder: Path) -> None:
    said, cuts = in_terminal(folder).replace("\u00a0", " ").split("\n\n")
    assert "11 dw6" in said
    title, *rows = cuts.split("One seed")[0].splitlines()
    assert title.split() == ["Cut", "Round"]
    assert len(rows) == len(load_whatif(folder).along.values) == 25
    assert [row.split()[:2] for row in rows if "(own)" in row] == [["2", "pw1"]]
    assert [row.split()[:2] for row in rows if "(best)" in row] == [["11", "dw6"]]
    assert all("×)" in row for row in rows if "(best)" not in row)


WORLD_S = Vary("clients.network.scale", (0.1, 1.0, 10.0), base=1)
WORKERS = Vary("server.speedup", (10.0, 100.0, 1000.0), base=1)


@pytest.mark.parametrize("axes", [(WORLD_S, WORKERS), (WORKERS, WORLD_S)])
def test_what_the_user_decides_is_the_choice_in_whatever_order_it_came(tmp_path: Path, axes: tuple[Vary, ...]) -> None:
    whatif = load_whatif(write_whatif(tmp_path / "two", replace(SMALL, axes=axes)))
    assert (whatif.along.key, [axis.key for axis in whatif.others]) == (WORKERS.key, [WORLD_S.key])
    assert best_points(whatif).titles[:2] == ["Bandwidth", "Best server/client compute ratio"]
    assert headline(whatif)[0].facts["first"][0] == ("splitfed_v2", 2)


def test_of_two_keys_that_the_user_decides_the_best_pair_is_told(tmp_path: Path) -> None:
    whatif = load_whatif(write_whatif(tmp_path / "pair", replace(SMALL, axes=(WORLD_S, FEW_CUTS, WORKERS))))
    best, changes = headline(whatif)
    here = whatif.middle[whatif.middle[WORLD_S.key] == 1].set_index(["series", "model.cut", WORKERS.key])["round_s"]
    assert best.facts["first"][0] == here.idxmin()
    assert best.facts["medians"] == here.to_dict()
    assert changes.text.startswith("The best cut at server/client compute ratio 100 changes with bandwidth")


def test_every_number_on_top_is_in_the_stored_tables(tmp_path: Path) -> None:
    """Cuts, of which some were trained, at several bandwidths, with three seeds and five drawn systems."""
    world = replace(SMALL, seeds=(0, 1, 2), draws=5, trained=(0, 1, 2))
    folder = write_whatif(tmp_path / "asked", world)
    points, draws, trained = (pd.read_parquet(folder / f"{table}.parquet") for table in ("points", "draws", "overlay"))
    shortest, survives, in_time = headline(load_whatif(folder))

    own = points[points[BANDWIDTHS.key] == 1.0]
    first, second, *_ = own.groupby("model.cut")["round_s"].median().sort_values().items()
    by_seed = own.pivot(index="seed", columns="model.cut", values="round_s")
    agree = int((by_seed[first[0]] < by_seed[second[0]]).sum())
    middle = own.groupby("model.cut")["round_s"].median()[1]  # the scenario's own cut
    wanted = [display.duration(first[1]), display.duration(second[1]), f"{second[1] / first[1]:.2f}", f"{agree} of 3"]
    assert numbers(shortest.text) == numbers(*wanted, display.duration(middle))

    drawn = draws[draws[BANDWIDTHS.key] == 1.0].set_index(["model.cut", "seed", "draw"])["round_s"].unstack("model.cut")
    ahead = drawn.le(1.01 * drawn.min(axis="columns"), axis="index").mean().sort_values(ascending=False)
    assert ahead.index[0] == first[0]
    assert numbers(survives.text) == numbers(f"{100 * ahead.iloc[0]:.0f} of 5", f"{100 * ahead.iloc[1]:.0f}")

    known = trained[(trained[BANDWIDTHS.key] == 1.0) & trained["valid"]]
    reached = known.dropna(subset="time_to_accuracy_s").groupby("model.cut")["time_to_accuracy_s"].median()
    assert numbers(in_time.text) == numbers("60", display.duration(reached.item()), "60")

    *_, changes = headline(load_whatif(write_whatif(tmp_path / "plain", replace(world, draws=0, trained=()))))
    best = points.groupby([BANDWIDTHS.key, "model.cut"])["round_s"].median().unstack().idxmin(axis="columns")
    ends = best.reset_index().groupby((best != best.shift()).cumsum().to_numpy())[BANDWIDTHS.key].agg(["min", "max"])
    told = [f"{low:g} {high:g}" if low < high else f"{low:g}" for low, high in ends.itertuples(index=False)]
    assert numbers(changes.text) == numbers(*told)


def test_where_the_world_decides_all_what_was_asked_beside_it_is_told(tmp_path: Path) -> None:
    world = replace(SMALL, axes=(replace(BANDWIDTHS, base=0),), draws=5, trained=(0, 1, 2))
    folder = write_whatif(tmp_path / "world", world)
    points, trained = (pd.read_parquet(folder / f"{table}.parquet") for table in ("points", "overlay"))
    draws = pd.read_parquet(folder / "draws.parquet").assign(contest=lambda rows: rows[BANDWIDTHS.key].rank())
    draws.to_parquet(folder / "draws.parquet")  # a world competes with no other
    whatif = load_whatif(folder)
    changes, drawn, in_time = headline(whatif)

    round_s = points.set_index(BANDWIDTHS.key)["round_s"]
    least, most = round_s.idxmin(), round_s.idxmax()
    wanted = [display.duration(round_s[least]), f"{least:g}", display.duration(round_s[most]), f"{most:g}"]
    assert numbers(changes.text) == numbers(*wanted, f"{round_s[most] / round_s[least]:.2f}")
    low_s, high_s = draws[draws[BANDWIDTHS.key] == 0.1]["round_s"].quantile([0.1, 0.9])
    assert drawn.facts == {"80 % of draws": (low_s, high_s)}
    assert numbers(drawn.text) == numbers("80", "5", "0.1", display.duration(low_s), display.duration(high_s))
    assert trained["time_to_accuracy_s"][0] != trained["time_to_accuracy_s"][0]  # it never gets there
    assert in_time.facts["late"] == {("splitfed_v2",): (0, 1)}
    (panel,) = (panel for panel in panels(whatif) if panel.title == SURVIVAL)
    assert list(panel.tables[0].titles) == ["Bandwidth", "As priced", "Median", "80 % of draws"]
    assert [heading for heading, _ in panel.figures] == ["Time of a round"]


def test_where_the_world_decides_all_nobody_chooses(tmp_path: Path) -> None:
    folder = write_whatif(tmp_path / "world", replace(SMALL, axes=(WORLD_S, Vary("clients.count", (3, 6), base=1))))
    whatif = load_whatif(folder)
    bandwidth, clients = headline(whatif)
    seconds = whatif.times(whatif.series[0])
    assert (bandwidth.facts["shortest"], bandwidth.facts["longest"]) == (seconds.idxmin(), seconds.idxmax())
    assert bandwidth.facts["times"] == seconds.max() / seconds.min()
    assert clients.facts["axis"] == "clients.count"
    told = page_of(folder) + in_terminal(folder)
    body = re.sub("<script.*?</script>", "", told, flags=re.DOTALL)
    assert "the best" not in body.lower().partition("how to read the numbers")[0]
    assert [len(panel.tables[0].rows) for panel in panels(whatif) if panel.tables] == [6]


def test_of_variants_in_a_varied_world_the_variant_is_the_choice(tmp_path: Path) -> None:
    world = replace(SMALL, axes=(WORLD_S,), series=(("a", 1.0), ("b", 500.0)))
    best, where = headline(load_whatif(write_whatif(tmp_path / "variants", world)))
    assert best.text.startswith("<b>a</b>")  # a name keeps its letters
    assert (best.facts["first"], best.facts["next"]) == ([("a",)], ("b",))
    assert where.facts["spans"] == [BestSpan(0, 0, 2)]
