"""The list of runs: a row for each, with its link, its best variant, and numbers by which the page sorts."""

import json
import re
from pathlib import Path
from shutil import copytree

import pytest

from sfl_sim.report.pages.run_list import write_run_list


@pytest.fixture
def reports(small_folder: Path, tmp_path: Path) -> Path:
    """A finished run with a page, and under a name that needs care a later one of which only a part is there."""
    first, later = (copytree(small_folder, tmp_path / "reports" / name) for name in ("run", "a <b> & c"))
    (first / "report.html").write_text("its page")
    (later / "report.html").write_text("its page")
    (later / "manifest.json").write_text(json.dumps({"status": "running", "created": "2026-11-22T00:00:00+00:00"}))
    (later / "summary.json").unlink()
    return tmp_path / "reports"


def rows_of(page: str) -> list[list[tuple[str, str]]]:
    """The number to sort by and the text of every cell."""
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    cells = re.compile(r'<t[hd][^>]*?(?:data-order="([^"]*)")?>(.*?)</t[hd]>', re.DOTALL)
    return [[(order, text.strip()) for order, text in cells.findall(row)] for row in body.split("</tr>") if "<t" in row]


def test_a_row_of_a_run_has_its_link_its_best_variant_and_numbers_to_sort_by(reports: Path) -> None:
    page = write_run_list(reports, reports / "index.html").read_text()
    killed, finished = rows_of(page)
    trials = json.loads((reports / "run" / "summary.json").read_text())["variants"]
    best = max(trials, key=lambda trial: trial["accuracy"])
    assert finished[0] == ("1", '<a href="run/report.html">run</a>')
    assert [text for _, text in finished[2:5:2]] == ["finished", "6\u00a0min 52\u00a0s"]
    order, text = finished[3]
    assert float(order) == best["accuracy"]
    assert best["name"] in text
    assert killed[0] == ("0", '<a href="a%20%3Cb%3E%20%26%20c/report.html">a &lt;b&gt; &amp; c</a>')
    assert [text for _, text in killed[2:5]] == ["not finished", "", ""]
    assert float(killed[1][0]) - float(finished[1][0]) == 77400  # seconds
    assert "Plotly.newPlot" not in page


def test_a_score_that_half_of_the_seeds_lack_is_none(reports: Path) -> None:
    file = reports / "run" / "summary.json"
    summary = json.loads(file.read_text())
    (one, *_), summary["variants"] = summary["variants"], []
    summary["variants"] = [one | {"seed": 0}, one | {"seed": 1, "accuracy": None}]
    file.write_text(json.dumps(summary))
    _, finished = rows_of(write_run_list(reports, reports / "index.html").read_text())
    assert finished[3] == ("", "")


def test_links_lead_from_wherever_the_page_is(reports: Path) -> None:
    page = write_run_list(reports, reports.parent / "pages" / "runs.html").read_text()
    assert 'href="../reports/run/report.html"' in page
    assert len(page) < 50_000
