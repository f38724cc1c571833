"""The page on served requests: how long answers take, where the time goes, and what accuracy costs under load."""

from __future__ import annotations

import html
from itertools import count
from string import Template
from typing import TYPE_CHECKING

from sfl_sim.report import serving_accuracy, serving_latency, serving_rates
from sfl_sim.report.display import percent, plural
from sfl_sim.report.page import asset, panel_html, paragraphs, write_page
from sfl_sim.report.panel import Panel
from sfl_sim.report.serving_load import ONLINE, load_serving
from sfl_sim.report.serving_words import groups_table, headline, results, shown_rate, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from sfl_sim.report.serving_load import Served


def write_serving(folder: Path, out: Path) -> Path:
    """Write the page on what `sfl-sim serve` left in `folder` to the file `out` and return its path.

    Raises:
        ScenarioError: the folder holds no served requests, or the page cannot be written.
    """
    served = load_serving(folder)
    title = html.escape(served.name)
    figure_ids = (f"figure-{number}" for number in count(1))
    body = Template(asset("serving.html")).substitute(
        title=title,
        about=_about(served),
        headline=paragraphs(headline(served), "headline"),
        warnings=paragraphs(warnings(served), "warning"),
        results=_results(served),
        panels="\n".join(panel_html(panel, figure_ids) for panel in _panels(served)),
    )
    return write_page(title, body, out)


def _about(served: Served) -> str:
    cells = served.cells
    variants, seeds = plural(cells["variant"].nunique(), "variant"), plural(cells["seed"].nunique(), "seed")
    warm_up = ", ".join(percent(share, 0) for share in cells["warm_up"].unique())
    return (
        f"{variants}, {seeds}, {plural(cells['requests'].sum(), 'request')}, of which the first {warm_up} do not count"
    )


def _results(served: Served) -> str:
    """The table at one rate, and below it, to be opened, that of all rates and that of groups of clients."""
    more = {}
    if len(served.at_rate) < len(served.cells):
        more["All rates"] = results(served, served.cells)
    if served.groups["group"].nunique() > 1:
        more["Groups of clients"] = groups_table(served)
    scrolling = '<div class="scroll">{}</div>'.format
    return scrolling(results(served, served.at_rate)) + "".join(
        f"<details><summary>{summary}</summary>{scrolling(body)}</details>" for summary, body in more.items()
    )


def _panels(served: Served) -> list[Panel]:
    """All sections that there are data for."""
    return [_latency(served), _parts(served), *_load(served), *_accuracy(served), *_rules(served)]


def _shown(served: Served) -> str:
    """Which of the requests are drawn."""
    drawn, series = len(served.detailed), len(served.series)
    return shown_rate(served) + (f"; {drawn} of {series} variants" if drawn < series else "")


def _latency(served: Served) -> Panel:
    return Panel(
        "How long an answer takes",
        "The share of requests that take longer than so much: the farther left, the quicker, and the steeper, the "
        f"more alike. Marks: p50, p95 and p99 ({_shown(served)}; seeds together).",
        [("Latency of requests", serving_latency.survival(served))],
    )


def _parts(served: Served) -> Panel:
    return Panel(
        "Where the time goes",
        "Waiting for the device or a link counts as that device or link; the warm colour is waiting at the server, for "
        "a free lane or for a batch to fill. Requests near p95 show what makes the tail "
        f"({_shown(served)}; means over requests and seeds).",
        [
            ("All requests", serving_latency.parts(served)),
            ("Requests near p95", serving_latency.parts(served, "tail_")),
        ],
        columns=2,
    )


def _load(served: Served) -> list[Panel]:
    if not served.is_sweep:
        return []
    caption = (
        "The rate is that of all clients. Hollow marks: the fleet falls behind, and its latencies grow with the "
        "length of the run. A bar ends where a fleet last keeps up, and its pale end where it does no longer "
        "(medians over seeds, ± standard deviation)."
    )
    figures = [("p95, and how far each keeps up", serving_rates.p95(served))]
    if served.cells["latency_eq12"].notna().all():
        figures.append(("Simulated mean latency over Eq. (12)", serving_rates.eq12(served)))
        caption += (
            " HARMONY's Eq. (12) knows no queues: 1 is what it says, in a unit that fits the middle of all variants at "
            "their lowest rates."
        )
    if any(series.threshold in ONLINE for series in served.series):  # else the load does not matter to them
        figures.append(("Offload probability", serving_rates.share(served, "offload_probability", "offloaded (%)")))
        if served.knows_accuracy:
            figures.append(("Accuracy", serving_rates.share(served, "accuracy", "accuracy (%)")))
    return [Panel("Under load", caption, figures, columns=2)]


def _accuracy(served: Served) -> list[Panel]:
    caption = (
        "A higher threshold keeps more requests on the device, where answers are quick, but only as right as the exit "
        "is. The oracle has seen the labels: an upper bound."
    )
    figures = []
    if len(serving_accuracy.choices(served)) >= serving_accuracy.MIN_CHOICES:
        figures.append((f"Served requests at {shown_rate(served)}", serving_accuracy.by_latency(served)))
    answers = served.answers()
    if answers is not None:
        figures.append(("Whole test sets, whatever the load", serving_accuracy.by_offload(served, answers)))
        caption += " Of whole test sets: one threshold for all clients, and means over clients and seeds."
    return [Panel("What accuracy costs", caption, figures, columns=len(figures))] if figures else []


def _rules(served: Served) -> list[Panel]:
    if not serving_latency.adapting(served):
        return []
    caption = (
        "These rules see no labels: each client moves its threshold with every request, to hold a share of offloaded "
        "requests or a latency (dotted). From the first request on, warm-up included "
        f"({_shown(served)}; first seed)."
    )
    return [Panel("Rules at work", caption, serving_latency.over_time(served), columns=3)]
