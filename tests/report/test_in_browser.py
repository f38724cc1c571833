"""The pages as a browser shows them: opened from a file, on a desk and on a phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from browser import needs_browser, open_pages
from markupsafe import Markup
from synthetic_leaks import add_leaks
from synthetic_run import World, write_run
from synthetic_serving import World as Served
from synthetic_serving import write_served
from synthetic_whatif import Vary, write_whatif
from synthetic_whatif import World as Asked

from sfl_sim.features.serve.page import write_serving
from sfl_sim.features.whatif.page import write_whatif as write_whatif_page
from sfl_sim.report.html_page import write_page
from sfl_sim.report.lead import Sentence
from sfl_sim.report.pages.privacy import write_privacy
from sfl_sim.report.pages.run import write_report

pytestmark = needs_browser

WIDTHS_PX = (1280, 390)
WATCH = """<script>
const errors = [];
console.error = (...told) => errors.push(told.join(" "));
addEventListener("error", (event) => errors.push(event.message));
addEventListener("securitypolicyviolation", (event) => errors.push(`refused to load ${event.blockedURI}`));
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
addEventListener("load", () => setTimeout(() => {
  const figures = [...document.querySelectorAll(".js-plotly-plot, .plotly-graph-div")];
  parent.postMessage(JSON.stringify({
    width_px: innerWidth,
    errors,
    figures: figures.length,
    drawn: figures.filter((figure) => figure.querySelector("svg.main-svg")).length,
    overflow_px: Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth),
  }), "*");
}, 1000));
</script>"""
"""Tells the frame around a page what became of it: files cannot look into each other, but may send messages."""


class Seen(NamedTuple):
    """What became of a page at one width."""

    width_px: int
    errors: list[str]
    figures: int
    drawn: int
    overflow_px: int


def look_at(page: Path) -> list[Seen]:
    """Open a page at both widths, in frames: windows of a headless browser are never as narrow as a phone."""
    frames = [(page, px) for px in WIDTHS_PX]
    told = open_pages(frames, WATCH, page.parent)
    return sorted((Seen(**seen) for seen in told), reverse=True)


def report_of_a_run(folder: Path) -> Path:
    run = write_run(folder, World(variants=World().variants[:2], clients=4, rounds=4, batches=3, seeds=(0,)))
    return write_report([run], folder / "report.html")


def report_of_a_serving(folder: Path) -> Path:
    return write_serving(write_served(folder, Served(seeds=(0,), requests=200)), folder / "serving.html")


def page_of_leaks(folder: Path) -> Path:
    run = write_run(folder, World(variants=World().variants[:2], clients=4, rounds=4, batches=3, seeds=(0,)))
    return write_privacy(add_leaks(run, {}), folder / "privacy.html")


def page_of_a_whatif(folder: Path) -> Path:
    cuts = Vary("model.cut", (1, 3, 11), ("dw1", "dw2", "dw6"), base=0)
    bandwidths = Vary("clients.network.scale", (0.25, 1.0), ("0.25", "1"), base=1)
    return write_whatif_page(write_whatif(folder, Asked(axes=(cuts, bandwidths), clients=4)), folder / "whatif.html")


@pytest.mark.parametrize("write", [report_of_a_run, report_of_a_serving, page_of_a_whatif, page_of_leaks])
def test_every_figure_is_drawn_without_an_error_and_nothing_hangs_over(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    at_desk, on_phone = look_at(write(tmp_path / "page"))

    assert (at_desk.width_px, on_phone.width_px) == WIDTHS_PX
    for seen in (at_desk, on_phone):
        assert seen.errors == []
        assert seen.drawn == seen.figures > 4
        assert seen.overflow_px == 0


def test_a_page_that_is_broken_is_found_out(tmp_path: Path) -> None:
    body = """<div style="width: 700px">wider than a phone</div>
    <div class="plotly-graph-div">a figure that nobody draws</div>
    <script>console.error("said"); Promise.reject("rejected"); nobody_defined_this()</script>"""
    at_desk, on_phone = look_at(
        write_page(tmp_path / "page" / "broken.html", "page", title="broken", headlines=[Sentence(Markup(body))])
    )

    assert at_desk.overflow_px == 0
    assert on_phone.overflow_px > 300
    assert (on_phone.figures, on_phone.drawn) == (1, 0)
    assert len(on_phone.errors) == 3
