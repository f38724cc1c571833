"""The figures of the page in reading order: what each is called, and what to see in it."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from sfl_sim.report import breakdown, fleet, gantt, labels, learning, queueing
from sfl_sim.report.frames import Frames
from sfl_sim.report.snapshot import RoundView, round_views


@dataclass(frozen=True)
class Panel:
    """One section of figures: a title, a sentence that says what to see, and each figure with its heading (HTML)."""

    title: str
    caption: str
    figures: list[tuple[str, go.Figure]]
    columns: int = 1


def panels(frames: Frames) -> list[Panel]:
    """All sections that the runs have data for."""
    views = round_views(frames)
    learned = [] if frames.timing_only else [_learning(frames), *_labels(frames)]
    return [*learned, _breakdown(frames), _queue(frames, views), _gantt(frames, views), _fleet(frames)]


def _learning(frames: Frames) -> Panel:
    return Panel(
        "Accuracy",
        "The same rounds twice: a method that leads per round can trail on the clock. Lines are medians over seeds at "
        "the end of each round, bands their range.",
        [
            ("Against simulated time", learning.accuracy_over_time(frames)),
            ("Against rounds", learning.accuracy_over_rounds(frames)),
        ],
        columns=2,
    )


def _labels(frames: Frames) -> list[Panel]:
    if frames.labels.empty:
        return []
    return [
        Panel(
            "Which labels are forgotten",
            "Rows are labels in the cyclic order of the seed, the first to be served on top: rows that stay pale are "
            "forgotten, and paleness that fades downwards says that the labels served last overwrite the first. "
            "Below, the performance gap (PG), by which the average label trails the best.",
            [(variant.html, labels.label_history(frames, variant)) for variant in frames.variants],
            columns=min(len(frames.variants), 3),
        ),
        Panel(
            "What the last rounds remember",
            f"Median over the last {labels.LAST_ROUNDS} rounds and over seeds, band: range over seeds. A flat line "
            "forgets nobody; a slope is the price of the order of service.",
            [("Accuracy by place in the cyclic order", labels.accuracy_by_rank(frames))],
            ),
    ]


def _breakdown(frames: Frames) -> Panel:
    return Panel(
        "Where the time goes",
        "The round of the average participating client, averaged over rounds and seeds. Warm colours are waiting: in "
        "the server's queue, or for slower clients at the end of the round.",
        [("Mean time of a round by resource", breakdown.round_breakdown(frames))],
    )


def _queue(frames: Frames, views: list[RoundView]) -> Panel:
    return Panel(
        "The server's queue",
        f"Jobs that wait, during round {frames.typical_round}, the most typical in duration. Dashed: the "
        "mean over the whole run. Red marks: the server is idle although jobs wait, because it holds the turn for a "
        "client that has not come.",
        [("Jobs waiting for the server", queueing.server_queue(views))],
    )


def _gantt(frames: Frames, views: list[RoundView]) -> Panel:
    until_s = gantt.first_sight_s(views)
    return Panel(
        "One round, operation by operation",
        f"Round {frames.typical_round}, first seed. Lanes (dominant label and client) stand in the cyclic order of the labels; a "
        "job in the server's lane has its client's colour, so a cyclic order repeats one ramp from dark to bright and "
        "arrival order mixes it. Blank is waiting for others. Drag to zoom; double-click for the whole round.",
        [(view.variant.html, gantt.gantt(frames, view, until_s)) for view in views],
    )


def _fleet(frames: Frames) -> Panel:
    return Panel(
        "The fleet",
        "How unequal the clients are: the wider a curve spreads along its logarithmic axis, the longer the fast wait "
        "for the slow.",
        [("Device speeds", fleet.device_speeds(frames)), ("Link rates", fleet.link_rates(frames))],
        columns=2,
    )
