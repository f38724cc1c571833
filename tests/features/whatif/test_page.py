"""The page of a what-if: made from the folder alone, with what there is data for and nothing else."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from read_table import read, said
from rich.console import Console
from synthetic_whatif import BANDWIDTHS, CUTS, Vary, World, write_whatif

from sfl_sim.errors import ScenarioError
from sfl_sim.features.whatif.figures import firsts, intervals
from sfl_sim.features.whatif.load import load_whatif
from sfl_sim.features.whatif.page import best_points, headline, panels, survivors, warnings, whatif_in_terminal
from sfl_sim.features.whatif.page import write_whatif as write_page

if TYPE_CHECKING:
    from pathlib import Path

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


def headlines_of(folder: Path) -> list[str]:
    return [re.sub("<.*?>", "", told).replace("\u00a0", " ") for told in headline(load_whatif(folder))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cuts of MobileNetV1 at five bandwidths, some of them trained."""
    return write_whatif(tmp_path_factory.mktemp("whatif") / "full", World(trained=(1, 6, 10, 18)))


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return page_of(folder)


@pytest.fixture(scope="module")
def shown(folder: Path) -> dict[str, Panel]:
    return panels_of(folder)


def test_what_survives_is_told_in_words_and_tables_on_the_page_and_in_the_terminal(tmp_path: Path) -> None:
    """In four systems all is as undrawn; in the fifth the shallowest cut is the best."""
    folder = write_whatif(tmp_path / "draws", replace(SMALL, draws=5))
    assert list(panels_of(folder))[1] == "Does it survive what is not known?"
    first, other = "11 dw6", "1 dw1"
    assert (
        f"In 80 % of 5 drawn systems from the errors of prices and profiles, {first} is the first or as good; "
        f"{other} is in 20 %."
    ) in headlines_of(folder)
    shown = io.StringIO()
    Console(file=shown, width=200).print(whatif_in_terminal(folder))
    assert "Does it survive what is not known?" in shown.getvalue()
    assert "First in" in shown.getvalue()


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
    assert titles == [*SECTIONS, "Settings", "How to read the numbers", "Machine"]
    assert list(shown) == SECTIONS
    assert page.count('class="plotly-graph-div"') == 1 + 4 + 2 + 2 + 2 + 2
    assert page.count('<p class="headline">') == 3
    assert " – what-if</title>" in page


def test_it_says_which_cut_is_the_best_what_it_saves_and_where_that_changes(folder: Path) -> None:
    points = pd.read_parquet(folder / "points.parquet")
    round_s = points[points[BANDWIDTHS.key] == 1].set_index("model.cut")["round_s"]
    best, second = round_s.nsmallest(2).index
    name = f"{best} {CUTS.names[best - 1]}"
    where, changes, trained = headlines_of(folder)

    assert where.startswith(
        f"Cutting after {name} takes the least time of the 25 cuts tried, {round_s[best]:.0f} s a round (one seed)"
    )
    assert f"{1 - round_s[best] / round_s[1]:.0%}".replace("%", " %") + " less than 1 dw1 (the shallowest)" in where
    assert "less than 25 dw13 (the deepest)" in where
    assert "less than 2 pw1 (the scenario’s own)" in where
    assert f"The second best, {second} {CUTS.names[second - 1]}, takes" in where
    assert re.search(r"The largest part of the average client’s round there is straggler wait, \d\d %", where)
    stretches = f"23 dw12 from ×0.1 to ×0.3, {name} from ×1 to ×3 and 3 dw2 at ×10, of the values tried"
    assert changes == f"The best cut changes with bandwidth: {stretches}."
    assert "11 dw6 is the first to reach 60 % accuracy" in trained


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


def test_what_cannot_be_taken_over_must_be_trained(shown: dict[str, Panel]) -> None:
    own, elsewhere = shown["Configurations that were trained"].tables
    for table, bandwidths in ((own, 1), (elsewhere, 4)):
        valid = [(row[-1].text, row[-1].below) for row in table.rows]
        assert valid.count(("must be trained", "clients arrive in another <order>")) == bandwidths
        assert [cell.text for row in table.rows for cell in row].count("not reached") == 2 * bandwidths
    assert (own.folded, elsewhere.folded) == (False, True)


def test_the_legend_of_trained_points_names_each_series_in_its_colour(tmp_path: Path) -> None:
    world = replace(SMALL, axes=(FEW_CUTS,), series=(("a", 1.0), ("b", 2.0)), trained=(0, 1))
    legend = panels_of(write_whatif(tmp_path / "legend", world))["Configurations that were trained"].legend
    assert legend == [("color: #0072B2", "●", "a"), ("color: #D55E00", "●", "b")]


def test_without_other_axes_there_is_neither_a_map_nor_a_boundary(tmp_path: Path) -> None:
    folder = write_whatif(tmp_path / "one", replace(SMALL, axes=(FEW_CUTS,)))
    found = panels_of(folder)
    assert list(found) == [SECTIONS[0], *SECTIONS[3:5]]
    assert len(headlines_of(folder)) == 1
    assert "Best cut" in found[SECTIONS[0]].tables[0].titles


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
    best, always = headlines_of(folder)
    assert best.startswith("Server/client compute ratio 1000 takes the least time")
    assert always == "Server/client compute ratio 1000 is the best at every bandwidth."
    assert "Time of a round by server/client compute ratio" in found
    assert "Memory does not depend on server/client compute ratio" in found["What it costs a client"].caption


def test_several_seeds_have_a_spread_and_say_how_many_agree(tmp_path: Path) -> None:
    folder = write_whatif(tmp_path / "seeds", replace(SMALL, seeds=(0, 1, 2)))
    assert re.search(r"\(median of 3 seeds, ± \S+ m?s; the best with (all|\d) of them\)", headlines_of(folder)[0])
    row = next(row for row in read(best_points(load_whatif(folder))).values() if row["Best cut"][0] == "11 dw6")
    assert row["A round"][1].startswith("± ")


def test_of_several_variants_each_headline_is_short_and_says_whose_it_is(tmp_path: Path) -> None:
    told = headlines_of(write_whatif(tmp_path / "two", replace(SMALL, series=(("one", 1.0), ("two", 2.0)))))
    assert [headline.partition(": ")[0][-3:] for headline in told] == ["one", "one", "two", "two"]
    assert all(headline.count(". ") <= 2 for headline in told)


def test_cuts_within_one_percent_are_as_good(tmp_path: Path) -> None:
    folder = write_whatif(tmp_path / "tie", replace(SMALL, axes=(FEW_CUTS,)))
    points = pd.read_parquet(folder / "points.parquet")
    for other, told in (
        (1.009, "Within 1 %, 23 dw12 is as good."),
        (1.02, "The second best, 23 dw12, takes 2 % more."),
    ):
        points.assign(round_s=[90.0, 50.0, 10.0, 10.0 * other]).to_parquet(folder / "points.parquet")
        assert told in headlines_of(folder)[0]


def test_the_scenario_s_own_cut_may_be_the_best(tmp_path: Path) -> None:
    axes = (replace(FEW_CUTS, base=2),)
    folder = write_whatif(tmp_path / "own", replace(SMALL, axes=axes))
    assert headlines_of(folder)[0].startswith("Cutting after 11 dw6, the scenario’s own, takes the least time")


def test_unknown_power_and_memory_are_said_and_not_drawn(tmp_path: Path) -> None:
    folder = write_whatif(tmp_path / "unknown", replace(SMALL, axes=(FEW_CUTS,), powered=False))
    points, clients = (pd.read_parquet(folder / name) for name in ("points.parquet", "clients.parquet"))
    points.assign(client_memory_bytes=float("nan")).to_parquet(folder / "points.parquet")
    clients.assign(memory_bytes=float("nan")).to_parquet(folder / "clients.parquet")
    found = panels_of(folder)
    assert "<code>clients.power</code>" in found["What it costs a client"].caption
    assert "How much memory training takes is not known" in found["What it costs a client"].caption
    assert "Client memory" not in found[SECTIONS[0]].tables[0].titles


def test_an_interrupted_study_shows_what_there_is(tmp_path: Path) -> None:
    folder = write_whatif(tmp_path / "interrupted", replace(SMALL, status="interrupted"))
    points = pd.read_parquet(folder / "points.parquet")
    points[points[SMALL.axes[0].key] == SMALL.axes[0].values[0]].iloc[:2].to_parquet(folder / "points.parquet")
    (folder / "layers.parquet").unlink()
    found = panels_of(folder)
    assert "interrupted" in warnings(load_whatif(folder))[0]
    assert sum(len(table.rows) for panel in found.values() for table in panel.tables) == 2


def test_it_tells_of_no_seed_and_of_no_bandwidth_that_it_has_not_walked(tmp_path: Path) -> None:
    folder = write_whatif(tmp_path / "begun", replace(SMALL, seeds=(0, 1), status="interrupted"))
    points = pd.read_parquet(folder / "points.parquet")
    at_first_cut = points["model.cut"] == SMALL.axes[0].values[0]
    here = (points[BANDWIDTHS.key] == 1) & ((points["seed"] == 0) | at_first_cut)
    points[here].to_parquet(folder / "points.parquet")
    (best,) = headlines_of(folder)
    assert "takes the least time" in best
    assert not re.search("median|nan", best)


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
    cuts, _ = in_terminal(folder).replace("\u00a0", " ").split("\n\n")
    title, *rows = cuts.split("One seed")[0].splitlines()
    assert title.split() == ["Cut", "Round"]
    assert len(rows) == len(load_whatif(folder).along.values) == 25
    assert [row.split()[:2] for row in rows if "(own)" in row] == [["2", "pw1"]]
    assert [row.split()[:2] for row in rows if "(best)" in row] == [["11", "dw6"]]
    assert all("×)" in row for row in rows if "(best)" not in row)


def test_the_terminal_has_the_best_cut_of_every_bandwidth_and_what_the_own_one_costs(folder: Path) -> None:
    title, *rows = in_terminal(folder).replace("\u00a0", " ").split("\n\n")[1].splitlines()
    assert title.split() == ["Bandwidth", "Best", "cut", "Round", "2", "pw1", "instead"]
    assert [row.split()[:3] for row in rows] == [
        ["0.1", "23", "dw12"], ["0.3", "23", "dw12"], ["1", "11", "dw6"], ["3", "11", "dw6"], ["10", "3", "dw2"]
    ]  # fmt: skip
    assert all(row.rstrip().endswith("×") for row in rows)
