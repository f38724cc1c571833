"""Sections on what was learned, and what was forgotten: none of them in timing-only runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfl_sim.metrics.accuracy import LAST_ROUNDS
from sfl_sim.report import confusion, exits, frontier, labels, learning, representations
from sfl_sim.report.curves import BANDS, LINES, MAX_BANDS, MAX_NARROW_BANDS
from sfl_sim.report.display import percent
from sfl_sim.report.panel import Panel, drawn
from sfl_sim.report.way import Aim, aims, way_table

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames


def learned_panels(frames: Frames) -> list[Panel]:
    """Accuracy, forgetting, and what they cost; nothing where nothing was trained."""
    if frames.timing_only:
        return []
    accuracy = [*_learning(frames), *_exits(frames), *_representations(frames)]
    return [*accuracy, *_labels(frames), *_inside(frames), *_frontier(frames)]


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
        ("Accuracy against bytes", learning.accuracy_over_bytes(frames, aim)),
    ]
    if frames.has_client_accuracy:
        figures.append(("Client accuracy against rounds", learning.client_accuracy_over_rounds(frames, aim.variants)))
    columns = 2 if len(figures) == 4 else 3
    again = "The same rounds thrice: what leads per round can trail on the clock, or by the bytes that it sends"
    if frames.summary["hybrid_accuracy"].notna().any():
        again += ". With early exits it is the global model that is asked, before any client has personalised it"
    lines = BANDS if len(aim.variants) <= MAX_NARROW_BANDS else LINES
    if aim.target is None:
        return Panel("Accuracy", f"{again} ({lines}).", figures, columns)
    return Panel(
        f"The way to {aim.name}",
        f"{_compared(aim)}{again}. The target is the dotted level, and a line comes down from it where a variant gets "
        f"there; a cross ends the curve of one that does not ({lines}).",
        figures,
        columns,
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


def _exits(frames: Frames) -> list[Panel]:
    found = exits.exits(frames)
    if not found:
        return []
    figures = [("Accuracy against offloading", exits.accuracy_by_offload(found))]
    unseen = ""
    if any(len(one.by_rho) for one in found):
        figures.insert(0, ("Hybrid accuracy against unseen labels", exits.accuracy_by_rho(found)))
        unseen = "The steeper a line falls with ρ, the more its devices know their own labels alone. "
    if frames.rounds.dropna(subset="hybrid_accuracy").groupby(["variant", "seed"]).size().max() > 1:
        figures.append(("Hybrid accuracy against simulated time", learning.hybrid_accuracy_over_time(frames)))
    bands = BANDS if len(found) <= MAX_NARROW_BANDS else LINES
    return [
        Panel(
            "Early exits",
            "A device answers by itself where the entropy of its exit is below a threshold, and offloads the rest. "
            "Hybrid accuracy, and a star, is that of an oracle, which knows the best of a few thresholds for every "
            f"client: what HARMONY reports. {unseen}Against offloading, one threshold for all clients falls from left "
            "to right: a line that is higher than both its ends has devices and a server that know different things "
            f"(the clients' models on their own test sets, means over clients; {bands}).",
            figures,
            columns=len(figures),
            table=exits.exits_table(found),
        )
    ]


def _representations(frames: Frames) -> list[Panel]:
    shown = representations.mapped(frames)
    if not shown:
        return []
    return [
        Panel(
            "What the last layer sees",
            "Test samples by the input of the last layer, which has to tell labels from it: the farther apart the "
            "colours, the easier. Each goes through one client's front end, then the rest. t-SNE keeps neighbours "
            "together, and distances between far groups mean nothing; the silhouette is that of the inputs "
            "themselves, 1 where labels lie far apart, 0 or less where they mix (drawn: the first seed; silhouettes: "
            "medians over seeds ± standard deviation).",
            [(representations.heading(frames, v), representations.scatter(frames, v)) for v in shown],
            columns=3,
        )
    ]


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
            f"that everything is taken for (first seed; labels in its cyclic order{drawn(frames)}).",
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
