"""The page on served requests: made from the folder alone, with what there is data for and nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from synthetic_serving import Method, Rule, World, write_served

from sfl_sim.errors import ScenarioError
from sfl_sim.report.pages.serving import headline, write_serving
from sfl_sim.report.serving_load import load_serving

if TYPE_CHECKING:
    from pathlib import Path

SECTIONS = ["Results", "How long an answer takes", "Where the time goes", "Under load", "What accuracy costs"]


def page_of(folder: Path) -> str:
    return write_serving(folder, folder / "serving.html").read_text(encoding="utf-8")


def sections_of(page: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", page)[:-1]  # the last explains the numbers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, an oracle and a label-free rule, three rates, two seeds."""
    return write_served(tmp_path_factory.mktemp("served") / "sweep", World())


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return page_of(folder)


def test_a_sweep_over_rates_with_rules_has_every_section(page: str) -> None:
    assert sections_of(page) == [*SECTIONS, "Thresholds over time"]
    assert page.count('class="plotly-graph-div"') == 1 + 2 + 4 + 2 + 3


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


def test_the_settings_are_there_where_they_were_stored(tmp_path: Path) -> None:
    folder = write_served(tmp_path / "stored", replace(World(), seeds=(0,), requests=100))
    (folder / "scenario.yaml").write_text("{name: doors, data: {name: digits}, serving: {requests: 100}}")

    page = page_of(folder)

    assert "Data: digits, " in page
    assert "requests: 100, arrivals poisson" in page
    assert "<h2>Settings</h2>" in page
    assert "<title>Doors &amp; &lt;windows&gt; – serving</title>" in page


def test_one_variant_at_one_rate_has_no_load_figure_and_no_choice_of_thresholds(tmp_path: Path) -> None:
    world = replace(World(), methods=World().methods[:1], rules=(Rule("oracle"),), rates=(20.0,), seeds=(0,))
    page = page_of(write_served(tmp_path / "one", world))

    assert sections_of(page) == [name for name in SECTIONS if name != "Under load"]
    assert page.count('class="plotly-graph-div"') == 1 + 2 + 1
    assert "At 20\u00a0requests/s" in page
    assert "quickest" not in page


def test_a_timing_only_run_has_no_accuracy(tmp_path: Path) -> None:
    world = replace(World(), rules=(Rule("probability", 0.4),), trained=False, status="interrupted")
    page = page_of(write_served(tmp_path / "timing", world))

    assert sections_of(page) == SECTIONS[:-1]
    assert '<th scope="col">Accuracy</th>' not in page
    assert len(re.findall('<p class="warning">', page)) == 2


def test_more_requests_make_the_page_no_larger(tmp_path: Path) -> None:
    world = World(methods=(Method("a", 0.8, 0.8),), rates=(20.0,), seeds=(0,))
    few, many = (len(page_of(write_served(tmp_path / str(n), replace(world, requests=n)))) for n in (12_000, 24_000))
    assert abs(many - few) < 2000


def test_a_folder_without_served_requests_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"without serving\.json, requests\.parquet"):
        write_serving(tmp_path, tmp_path / "page.html")


@pytest.mark.parametrize(("left", "problem"), [([], "nothing to report"), ([{"variant": "a", "seed": 0}], "series")])
def test_a_damaged_folder_is_refused(tmp_path: Path, left: list[dict[str, object]], problem: str) -> None:
    (tmp_path / "requests.parquet").touch()
    (tmp_path / "serving.json").write_text(json.dumps({"scenario": "damaged", "trials": left}))
    with pytest.raises(ScenarioError, match=problem):
        write_serving(tmp_path, tmp_path / "page.html")
