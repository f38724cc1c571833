"""The figures of the page in reading order: what each is called, and what to see in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfl_sim.report import (
    absence,
    attendance,
    breakdown,
    critical,
    fleet,
    gantt,
    layers,
    partition,
    queueing,
    replay,
    staleness,
)  # fmt: skip
from sfl_sim.report.curves import BANDS, LINES, MAX_NARROW_BANDS
from sfl_sim.report.display import percent, plural
from sfl_sim.report.learned import learned_panels
from sfl_sim.report.panel import Panel, drawn
from sfl_sim.report.round_view import RoundView, round_views

if TYPE_CHECKING:
    import pandas as pd

    from sfl_sim.report.frames import Frames


def panels(frames: Frames) -> list[Panel]:
    """All sections that the runs have data for."""
    views = round_views(frames)
    time = [_breakdown(frames), *_attendance(frames), *_staleness(frames), *_replay(frames)]
    details = [*_served(frames, views), _queue(frames, views), _gantt(frames, views), _critical(frames, views)]
    world = [*_cuts(frames), *_holdings(frames), _fleet(frames)]
    return [*learned_panels(frames), *time, *details, *world]


def _breakdown(frames: Frames) -> Panel:
    absent = ", which counts as at work while it is away" if absence.unreliable(frames) else ""
    assistants = " for assistants," if frames.rounds["assistants_s"].any() else ""
    return Panel(
        "Where the time goes",
        f"Warm colours are waiting, in the server's queue,{assistants} or for slower clients; all else is work of the "
        f"average participating client{absent} (mean over rounds and seeds).",
        [("Mean time of a round by resource", breakdown.round_breakdown(frames))],
    )


def _attendance(frames: Frames) -> list[Panel]:
    variants = absence.unreliable(frames)
    if not variants:
        return []
    sight = attendance.first_sight(frames, variants)
    return [
        Panel(
            "Who was there, and who got lost",
            attendance.caption(sight),
            attendance.figures(frames, sight),
            table=absence.costs_table(frames, variants),
        )
    ]


def _staleness(frames: Frames) -> list[Panel]:
    variants = staleness.asynchronous(frames)
    if not variants:
        return []
    return [
        Panel(
            "How stale updates are",
            "An asynchronous server waits for nobody: while a client trains, updates of others move the global model "
            "on. By as many versions its own is stale when it comes, and counts the less. Solid is the mean of the "
            f"updates of a round, dotted the stalest of them ({LINES}).",
            [("Staleness of the updates of a round", staleness.staleness(frames, variants))],
            table=staleness.staleness_table(frames, variants),
        )
    ]


def _replay(frames: Frames) -> list[Panel]:
    variants = replay.replaying(frames)
    if not variants:
        return []
    bands = BANDS if len(variants) <= MAX_NARROW_BANDS else LINES
    return [
        Panel(
            "What replay costs",
            f"{replay.cost_in_words(frames, variants)} Assistants, clients that do not take part themselves, receive "
            "the model and send features of labels that are rare where it trains: as many as the proportion says of "
            "the samples there, but at least one per label. Dotted is what is asked for, and shaded what of it does "
            f"not come ({bands}).",
            [
                ("Proportion of replay", replay.proportion(frames, variants)),
                ("Replayed samples", replay.samples(frames, variants)),
                ("Share of the bytes", replay.byte_share(frames, variants)),
            ],
            columns=3,
            table=replay.costs_table(frames, variants),
        )
    ]


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
        f"{by_clock}(Round {frames.typical_round}, a typical one, of the first seed{drawn(frames)}.)",
        [(_held(view), queueing.server_queue(view, longest_s, most_waiting)) for view in views],
    )


def _served(frames: Frames, views: list[RoundView]) -> list[Panel]:
    told = [view for view in views if len(view.training) and view.label_samples.size]
    replayed = ". What is replayed is not shown" if replay.replaying(frames) else ""
    if not told:
        return []
    return [
        Panel(
            "Which label was trained when",
            "A column for every training job of the server, dark at the labels that its client holds: where clients "
            "share part-2, a long dark stretch overwrites what was learned before, and what comes round soon is kept"
            f"{replayed} (round {frames.typical_round}, a typical one, of the first seed; labels in its cyclic order"
            f"{drawn(frames)}).",
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
    assisting = max(len(view.assistants) for view in views)
    helpers = min(assisting, gantt.MAX_ASSISTANTS)
    assistants = f" Below, in italics: the busiest {helpers} of {plural(assisting, 'assistant')}." if assisting else ""
    sorting = "by label" if frames.labels.empty else "in the cyclic order"
    return Panel(
        "One round, operation by operation",
        "In the server's lane a job has its client's colour: a fixed order repeats one ramp, arrival order mixes it "
        f"(round {frames.typical_round}, first seed; clients with their dominant labels, {sorting}; blank is waiting "
        f"for the others{drawn(frames)}). The dark line is the critical path: it runs under what the round waits for. "
        f"Drag to zoom, double-click for the whole round.{cut}{assistants}",
        [(view.variant.html, gantt.gantt(frames, view, until_s)) for view in views],
    )


def _critical(frames: Frames, views: list[RoundView]) -> Panel:
    helping = critical.help_table(views)
    explained = (
        " Below, the same round is timed again in worlds where one thing is faster: off the path that does not help, "
        "and where the path gets shorter, another chain may take its place."
    )
    return Panel(
        "Why a round takes so long",
        "Only the critical path makes a round longer: from its end back to its start, always on to what was waited for "
        "(the dark line above). Slack is how much later a client could be done without the round ending later "
        f"(round {frames.typical_round}, first seed{drawn(frames)}).{explained if helping else ''}",
        [],
        table=critical.path_table(views) + (f"<h3>What would help</h3>{helping}" if helping else ""),
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
            *([("Energy that the run takes", fleet.energy(frames))] if fleet.knows_energy(frames) else []),
        ],
        columns=2,
    )
