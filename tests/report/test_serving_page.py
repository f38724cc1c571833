"""The page on served requests: made from the folder alone, with what there is data for and nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from synthetic_serving import Method, Rule, World, write_served

from sfl_sim.errors import ScenarioError
from sfl_sim.report.pages.serving import headline, panels, results, warnings, write_serving
from sfl_sim.report.serving_load import Served, load_serving

if TYPE_CHECKING:
    from pathlib import Path

FIGURES = {"How long an answer takes": 1, "Where the time goes": 2, "Under load": 4, "What accuracy costs": 2}


def page_of(folder: Path) -> str:
    return write_serving(folder, folder / "serving.html").read_text(encoding="utf-8")


def figures_of(served: Served) -> dict[str, int]:
    """How many figures each panel has, drawn, by its title."""
    return {panel.title: len(panel.figures) for panel in panels(served)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, an oracle and a label-free rule, three rates, two seeds."""
    return write_served(tmp_path_factory.mktemp("served") / "sweep", World())


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return page_of(folder)


def test_a_sweep_over_rates_with_rules_has_every_section(folder: Path, page: str) -> None:
    every = FIGURES | {"Thresholds over time": 3}
    assert figures_of(load_serving(folder)) == every
    assert re.findall("<h2>(.*?)</h2>", page) == ["Results", *every, "How to read the numbers"]
    assert page.count('class="plotly-graph-div"') == sum(every.values())


def test_the_page_is_whole_without_the_network_and_names_are_no_tags(page: str) -> None:
    body = page[page.index("<body>") :]
    assert "http" not in body.replace("http://www.w3.org", "")
    assert "<windows>" not in page
    assert "Doors &amp; &lt;windows&gt;" in page
    assert "harmony <b>" not in body
    assert "harmony &lt;b&gt;" in body


def test_it_says_who_is_quick_and_when_who_falls_behind(page: str) -> None:
    headlines = re.findall('<p class="headline">(.*?)</p>', page)
    assert "is the quickest: it answers 95 % of its requests within" in headlines[0]
    assert "become saturated between 80 and 320\u00a0requests/s" in headlines[-1]
    assert "· saturated" in page


def test_all_variants_are_saturated_only_if_that_is_known_of_all(folder: Path) -> None:
    served = load_serving(folder)
    unknown = served.trials["series"] == served.series[0].label
    few = replace(served, trials=served.trials.assign(falls_behind=served.trials["falls_behind"].mask(unknown)))
    assert headline(served)[-1].startswith("All variants become saturated")
    assert headline(few)[-1].startswith(served.series[1].html + ", ")


def test_the_settings_are_there_where_they_were_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfl_sim.report.pages.serving.panels", lambda served: [])
    folder = write_served(tmp_path / "stored", replace(World(), seeds=(0,), requests=100))
    (folder / "scenario.yaml").write_text("{name: doors, data: {name: digits}, serving: {requests: 100}}")

    page = page_of(folder)

    assert "Data: digits, " in page
    assert "requests: 100, arrivals poisson" in page
    assert "<h2>Settings</h2>" in page
    assert "<title>Doors &amp; &lt;windows&gt; – serving</title>" in page


def test_one_variant_at_one_rate_has_no_load_figure_and_no_choice_of_thresholds(tmp_path: Path) -> None:
    world = replace(World(), methods=World().methods[:1], rules=(Rule("oracle"),), rates=(20.0,), seeds=(0,))
    served = load_serving(write_served(tmp_path / "one", world))

    assert figures_of(served) == {"How long an answer takes": 1, "Where the time goes": 2, "What accuracy costs": 1}
    assert "At 20\u00a0requests/s" in headline(served)[0]
    assert "quickest" not in headline(served)[0]


def test_a_timing_only_run_has_no_accuracy(tmp_path: Path) -> None:
    world = replace(World(), rules=(Rule("probability", 0.4),), trained=False, status="interrupted")
    served = load_serving(write_served(tmp_path / "timing", world))

    assert list(figures_of(served)) == list(FIGURES)[:-1]
    assert "Accuracy" not in results(served)[0].titles
    assert len(warnings(served)) == 2


def test_more_requests_make_the_figures_no_larger(tmp_path: Path) -> None:
    def size(requests: int) -> int:
        world = World(methods=(Method("a", 0.8, 0.8),), rates=(20.0,), seeds=(0,), requests=requests)
        shown = panels(load_serving(write_served(tmp_path / str(requests), world)))
        return sum(len(figure.to_json()) for panel in shown for _, figure in panel.figures)

    assert abs(size(24_000) - size(12_000)) < 2000


def test_a_folder_without_served_requests_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"without serving\.json, requests\.parquet"):
        write_serving(tmp_path, tmp_path / "page.html")


@pytest.mark.parametrize(("left", "problem"), [([], "nothing to report"), ([{"variant": "a", "seed": 0}], "series")])
def test_a_damaged_folder_is_refused(tmp_path: Path, left: list[dict[str, object]], problem: str) -> None:
    (tmp_path / "requests.parquet").touch()
    (tmp_path / "serving.json").write_text(json.dumps({"scenario": "damaged", "trials": left}))
    with pytest.raises(ScenarioError, match=problem):
        write_serving(tmp_path, tmp_path / "page.html")
