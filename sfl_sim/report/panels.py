"""The figures of the page in reading order: what each is called, and what to see in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfl_sim.metrics.accuracy import LAST_ROUNDS
from sfl_sim.report import breakdown, confusion, fleet, frontier, gantt, labels, layers, learning, partition, queueing
from sfl_sim.report.curves import BANDS, LINES, MAX_BANDS, MAX_NARROW_BANDS
from sfl_sim.report.display import percent
from sfl_sim.report.round_view import MAX_VARIANTS, RoundView, round_views
from sfl_sim.report.way import Aim, aims, way_table

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames


@dataclass(frozen=True)
class Panel:
    """One section of figures: a title, what to see in them, each figure with its heading, a table below (all HTML)."""

    title: str
    caption: str
    figures: list[tuple[str, go.Figure]]
    columns: int = 1
    table: str = ""


def panels(frames: Frames) -> list[Panel]:
    """All sections that the runs have data for."""
    views = round_views(frames)
    learned = [] if frames.timing_only else [*_learning(frames), *_labels(frames), *_inside(frames), *_frontier(frames)]
    world = [*_cuts(frames), *_holdings(frames), _fleet(frames)]
    return [*learned, _breakdown(frames), *_served(frames, views), _queue(frames, views), _gantt(frames, views), *world]


def _drawn(frames: Frames) -> str:
    """What to say where only the first variants are drawn."""
    n_variants = len(frames.variants)
    return f"; the first {MAX_VARIANTS} of {n_variants} variants" if n_variants > MAX_VARIANTS else ""


def _learning(frames: Frames) -> list[Panel]:
    bands = BANDS if len(frames.variants) <= MAX_BANDS else LINES
    forgetting = Panel(
        "Forgetting",
        "The performance gap (PG) is how far the best label is ahead of the mean of all: the lower, the less is "
        f"forgotten ({bands}).",
        [
            ("Performance gap against simulated time", learning.gap_over_time(frames)),
            ("Performance gap against rounds", learning.gap_over_rounds(frames)),
        ],
        columns=2,
    )
    return [*(_accuracy(frames, aim) for aim in aims(frames)), forgetting]


def _accuracy(frames: Frames, aim: Aim) -> Panel:
    figures = [
        ("Accuracy against simulated time", learning.accuracy_over_time(frames, aim)),
        ("Accuracy against rounds", learning.accuracy_over_rounds(frames, aim)),
    ]
    if frames.has_client_accuracy:
        figures.append(("Client accuracy against rounds", learning.client_accuracy_over_rounds(frames, aim.variants)))
    twice = "The same rounds twice: what leads per round can trail on the clock"
    drawn = BANDS if len(aim.variants) <= MAX_NARROW_BANDS else LINES
    if aim.target is None:
        return Panel("Accuracy", f"{twice} ({drawn}).", figures, columns=2)
    return Panel(
        f"The way to {aim.name}",
        f"{_compared(aim)}{twice}. A dotted line comes down where a variant reaches the target; a cross ends the curve "
        f"of one that does not ({drawn}).",
        figures,
        columns=2,
        table=way_table(aim),
    )


def _compared(aim: Aim) -> str:
    """Where the target comes from, and with whom the others are compared."""
    if aim.reference:
        share = percent(aim.share, 0)
        return f"The target is {share} of the best accuracy of {aim.reference.html}, the baseline of speed-ups. "
    if aim.baseline:
        return f"The baseline of speed-ups is {aim.baseline.html}, the slowest that reaches the target. "
    return ""


def _labels(frames: Frames) -> list[Panel]:
    trained = [variant for variant in frames.variants if variant.label in set(frames.labels["variant"])]
    if not trained:
        return []
    by_rank = (
        [("Accuracy by place in the cyclic order", labels.accuracy_by_rank(frames, trained))]
        if len(trained) <= MAX_BANDS
        else [(variant.html, labels.accuracy_by_rank(frames, [variant])) for variant in trained]
    )
    return [
        Panel(
            "Which labels are forgotten",
            "Rows are labels in the cyclic order of the seed, the first on top: where paleness fades downwards, "
            "labels served last overwrite the first, and the performance gap (PG) below stays high "
            f"({BANDS}; colours: medians).",
            [(variant.html, labels.label_history(frames, variant)) for variant in trained],
            columns=min(len(trained), 3),
        ),
        Panel(
            "What the last rounds remember",
            f"A flat line forgets nobody, a slope is the price of the order (per seed the median of the last "
            f"{LAST_ROUNDS} rounds; {BANDS}).",
            by_rank,
            columns=min(len(by_rank), 4),
        ),
    ]


def _inside(frames: Frames) -> list[Panel]:
    films = confusion.round_films(frames)
    if not films:
        return []
    return [
        Panel(
            "What is known while a round goes on",
            "Above, the share of each label that the global model would answer right if the round ended there; dots "
            "are the server's jobs, at their clients' dominant labels. A row that darkens at its dots and pales after "
            "them is learned and forgotten within the round. Below, what is taken for what: a dark column is a label "
            f"that everything is taken for (first seed; labels in its cyclic order{_drawn(frames)}).",
            [(f"{film.variant.html}, round {film.round}", confusion.round_film(film)) for film in films],
            columns=min(len({film.round for film in films}), confusion.FILMED_ROUNDS),
        )
    ]


def _frontier(frames: Frames) -> list[Panel]:
    found = frontier.frontier(frames)
    if found is None:
        return []
    when = "" if found.cost == frontier.OF_A_ROUND else ", the time when the target was first reached"
    late = ", or does not reach the target" if found.anyone_late else ""
    return [
        Panel(
            "What less forgetting costs on the clock",
            "The best corner is the lower left. Along the line, the Pareto front, less forgetting costs more time; a "
            f"pale variant has a rival that is no worse in both{late}. The gap is that of the last {LAST_ROUNDS} "
            f"rounds{when}. Large: medians over seeds with ± standard deviation; small: single seeds. Clients differ "
            "from seed to seed: times of single seeds, and their ±, are divided by how slow the seed is for the "
            "average variant.",
            [(f"Performance gap against {found.cost}", frontier.figure(frames, found))],
        )
    ]


def _breakdown(frames: Frames) -> Panel:
    return Panel(
        "Where the time goes",
        "Warm colours are waiting, in the server's queue or for slower clients; all else is work of the average "
        "participating client (mean over rounds and seeds).",
        [("Mean time of a round by resource", breakdown.round_breakdown(frames))],
    )


def _queue(frames: Frames, views: list[RoundView]) -> Panel:
    longest_s = max(view.duration_s for view in views)
    most_waiting = max([1, *(view.queue["waiting"].max() for view in views if len(view.queue))])
    by_clock = (
        "Above, the labels of the same jobs by the clock, where they do not blur. "
        if any(queueing.tells_labels(view, longest_s) for view in views)
        else ""
    )
    return Panel(
        "The server's queue",
        "Red marks are the price of turns: jobs wait, yet the server idles for a client that has not come. "
        f"{by_clock}(Round {frames.typical_round}, a typical one, of the first seed{_drawn(frames)}.)",
        [(_held(view), queueing.server_queue(view, longest_s, most_waiting)) for view in views],
    )


def _served(frames: Frames, views: list[RoundView]) -> list[Panel]:
    told = [view for view in views if len(view.training) and view.label_samples.size]
    if not told:
        return []
    return [
        Panel(
            "Which label was trained when",
            "A column for every training job of the server, dark at the labels that its client holds: where clients "
            "share part-2, a long dark stretch overwrites what was learned before, and what comes round soon is kept "
            f"(round {frames.typical_round}, a typical one, of the first seed; labels in its cyclic order"
            f"{_drawn(frames)}).",
            [(view.variant.html, queueing.service_order(view)) for view in told],
            columns=min(len(told), 2),
        )
    ]


def _held(view: RoundView) -> str:
    held_s = (view.held["ended_s"] - view.held["started_s"]).sum()
    return f"{view.variant.html}: held idle for {percent(held_s / view.duration_s, 0)} of the round"


def _gantt(frames: Frames, views: list[RoundView]) -> Panel:
    until_s = gantt.first_sight_s(views)
    clients = max(frames.rounds.loc[frames.rounds["round"] == frames.typical_round, "participants"])
    cut = f" Of {clients} clients, {gantt.MAX_CLIENTS} are drawn." if clients > gantt.MAX_CLIENTS else ""
    sorting = "by label" if frames.labels.empty else "in the cyclic order"
    return Panel(
        "One round, operation by operation",
        "In the server's lane a job has its client's colour: a fixed order repeats one ramp, arrival order mixes it "
        f"(round {frames.typical_round}, first seed; clients with their dominant labels, {sorting}; blank is waiting "
        f"for the others{_drawn(frames)}). Drag to zoom, double-click for the whole round.{cut}",
        [(view.variant.html, gantt.gantt(frames, view, until_s)) for view in views],
    )


def _cuts(frames: Frames) -> list[Panel]:
    models = layers.models(frames)
    caption = (
        "A bar for every cut: what a sample's activations take on the uplink (and their gradient on the downlink), and "
        "below it how much of the model the client computes. Strong colours are Pareto cuts: no other saves bytes or "
        "work at no cost in the other. Triangles are the cuts in use, larger where more clients have them."
    )
    figures = [(layers.model_title(model), layers.cut_costs(frames, variants, model)) for variants, model in models]
    return [Panel("Where to cut", caption, figures)] if figures else []


def _holdings(frames: Frames) -> list[Panel]:
    held = partition.held(frames)
    return [holdings_panel(held)] if held else []


def holdings_panel(held: list[tuple[list[str], pd.DataFrame]]) -> Panel:
    """Heat maps of label counts (clients x labels), each with the names (HTML) of those who have it."""
    headings = [names[0] + (f" and {len(names) - 1} alike" if len(names) > 1 else "") for names, _ in held]
    return Panel(
        "Who holds what",
        "One column a client, with its number of samples above: the darker, the larger the share of a label among its "
        "samples; white is none. On a diagonal every client has labels of its own, on an even field all are alike.",
        [(heading, partition.holdings(counts)) for heading, (_, counts) in zip(headings, held, strict=True)],
        columns=min(len(held), 2),
    )


def _fleet(frames: Frames) -> Panel:
    return Panel(
        "The fleet",
        "The wider a curve spreads along its logarithmic axis, the longer the fast clients wait for the slow. "
        + fleet.cost_model(frames),
        [
            ("Device speeds", fleet.device_speeds(frames)),
            ("Link rates: uplink solid, downlink dashed", fleet.link_rates(frames)),
        ],
        columns=2,
    )
