"""The page of a run, or of several side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup, escape

from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.rounds import absence_costs
from sfl_sim.metrics.scores import LAST_ROUNDS
from sfl_sim.report import figures, style
from sfl_sim.report.about import setup_in_words, warnings
from sfl_sim.report.comparison import before_and_after, changes, compare, difference_tables, repriced_table
from sfl_sim.report.display import duration, percent, plural
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.html_page import Parts, write_page
from sfl_sim.report.lead import MAX_SENTENCES, Compared, Sentence, lead
from sfl_sim.report.load import load
from sfl_sim.report.pages import costs, knowledge, learning, one_round, servers, system
from sfl_sim.report.panel import Cell, Panel, Table, columns_of
from sfl_sim.report.results import BYTES, ROUNDS, TIME, accuracy, aims, in_words, of_each, paper_table, results_table


@dataclass(frozen=True)
class PageSection:
    """Section of the page.

    Attributes:
        panels: makes its panels from `Frames`; none where there is nothing to show.
        trained: whether it is left out where nothing was trained.
        folded: whether a reader opens it; or a function of the frames, which says whether anything here was asked.
        details: whether it shows one round of the first variants. Its panels are made from `OneRound`, and folded.
    """

    panels: Callable[[Any], list[Panel]]
    trained: bool = False
    folded: bool | Callable[[Frames], bool] = False
    details: bool = False


SECTIONS = {
    "Accuracy": PageSection(learning.accuracy_panels, trained=True),
    "Accuracy by label": PageSection(knowledge.label_panels, trained=True),
    "Forgetting": PageSection(learning.forgetting_panels, trained=True, folded=learning.nobody_asked),
    "Perplexity": PageSection(learning.perplexity_panels, trained=True),
    "Your metrics": PageSection(learning.own_metric_panels, trained=True),
    "Early exits": PageSection(knowledge.exit_panels, trained=True),
    "Inputs of the last layer": PageSection(knowledge.representation_panels, trained=True),
    "Labels": PageSection(knowledge.history_panels, trained=True, folded=learning.nobody_asked),
    "Labels within a round": PageSection(knowledge.film_panels, trained=True),
    "What less forgetting costs in time": PageSection(
        costs.frontier_panels, trained=True, folded=learning.nobody_asked
    ),
    "Where the time goes": PageSection(costs.breakdown_panels),
    "Cuts that change": PageSection(learning.changing_cut_panels),
    "The servers": PageSection(servers.server_panels),
    "Availability and dropouts": PageSection(costs.participation_panels),
    "Staleness": PageSection(learning.staleness_panels),
    "Replay": PageSection(learning.replay_panels),
    "Labels in the order of service": PageSection(one_round.order_panels, details=True),
    "The server's queue": PageSection(one_round.queue_panels, details=True),
    "One round, operation by operation": PageSection(one_round.gantt_panels, details=True),
    "Why a round takes so long": PageSection(one_round.path_panels, details=True),
    "Where to cut": PageSection(system.cut_panels, folded=True),
    "Labels held by each client": PageSection(
        lambda frames: system.holdings_panels(system.held(frames), frames.group), folded=True
    ),
    "The fleet": PageSection(system.fleet_panels, folded=True),
}
"""The sections in reading order: what was learned, what it cost, one round in detail, the system. New figures are
entered here: the docstring of `sfl_sim.report` shows how."""
DIGESTS = ("timeline", "weights")
LIMITS = {
    "last_rounds": LAST_ROUNDS, "curve_points": figures.MAX_POINTS, "heat_rounds": knowledge.MAX_ROUNDS,
    "queue_points": one_round.MAX_POINTS, "gantt_ops": one_round.MAX_OPS, "gantt_clients": one_round.MAX_CLIENTS,
    "drawn_variants": style.MAX_DETAILED, "max_looks": style.MAX_LOOKS, "max_open_rows": 8,
}  # fmt: skip
"""How much is drawn, and how long a table of differences may be that need not be opened."""


def write_report(runs: Sequence[Path], out: Path, parts: Parts | None = None) -> Path:
    """Write the report on one run, or on several side by side, to the file `out` and return its path.

    Args:
        runs: the folders.
        out: the page.
        parts: makes the parts of the page; by default, all but those that need too much memory must succeed.

    Raises ScenarioError if a folder holds no complete run, or the page cannot be written.
    """
    frames = merge([load(folder) for folder in dict.fromkeys(runs)])
    parts = parts or Parts()
    headlines = parts.try_("The summary", lambda: headline(frames), list[Sentence]())
    results = parts.try_("The table of results", lambda: _results(frames), list[Table]())
    paper = parts.try_("The table computed as in the paper", lambda: paper_table(frames), None)
    shown = parts.draw(_sections(frames))
    changed = ", ".join(filter(None, map(changes, frames.runs)))
    settings = [own for run in frames.runs for own in run.settings.values()]
    n_clients = frames.clients.groupby("variant", sort=False)["client"].nunique()
    dates = dict.fromkeys(str(run.manifest.get("created", "?"))[:10] for run in frames.runs)
    variants, seeds = plural(len(frames.variants), "variant"), plural(frames.summary["seed"].nunique(), "seed")
    kind, notes = "report of a repriced run" if frames.runs[0].verdicts else "report", []
    if len(frames.runs) > 1:
        kind = f"comparison of {plural(len(frames.runs), 'run')}"
    if frames.drawn is not frames:
        notes.append(
            f"Drawn are {len(frames.drawn.variants)} of the {frames.n_variants:,} variants: the first ones of the "
            "grid, as many as can be told apart. The results of all can be opened below, and all numbers are in the "
            "tables beside this page. A scenario with others of these variants draws them, and takes their results "
            "from this run."
        )
    return write_page(
        out, "run", title=frames.title + (f": {changed}" if changed else ""), kind=kind,
        about=f"{variants}, {seeds}, run on {', '.join(dates)}", setup=setup_in_words(settings, n_clients),
        headlines=headlines, warnings=warnings(frames) + parts.left_out, panels=shown, parts=parts,
        comparison=compare(frames.runs) if len(frames.runs) > 1 else None, notes=notes,
        results=[*results, *([paper] if paper else [])], runs=frames.runs, digests=_digests(frames), **LIMITS,
    )  # fmt: skip


def headline(frames: Frames) -> list[Sentence]:
    """The sentences on top, by weight; of more than three, the last ones give way.

    They say what repricing changed, who is first at the first target, which labels were not learned, who learns best,
    who is first at a second target, and whom to choose. Of a repriced run, all but the first are on those variants
    whose results of training hold.
    """
    repriced, shown = before_and_after(frames), frames.holding
    if not shown.variants:
        return [*repriced, Sentence(Markup("No variant is sure to learn the same as before: all must be trained."))]
    in_time = _in_time(shown)
    less = [*in_time[1:], *costs.choice(shown)]
    found = [*in_time[:1], *knowledge.unlearned(shown), *_in_score(shown), *less]
    if found and len(shown.variants) < len(frames.variants):
        number = f"{len(shown.variants)} of {plural(len(frames.variants), 'variant')}"
        first = escape(f"What was learned is known to hold for {number}, and of these: ") + found[0].text
        found[0] = replace(found[0], text=first)
    return [*repriced, *found][:MAX_SENTENCES]


def _in_time(frames: Frames) -> list[Sentence]:
    """Who reaches the target first, for the first two targets; without any, whose rounds are the shortest."""
    names = {variant.label: variant.html for variant in frames.variants}
    goals = [] if frames.timing_only else [aim for aim in aims(frames) if aim.target is not None]
    sentences = []
    for aim in goals[: MAX_SENTENCES - 1]:
        of, share = aim.reference, f"of whose best {in_words(aim.score)} the target is {accuracy(aim.share)}"
        compared = Compared(f"time to {aim.name}", "shortest", duration, target=aim.name)
        seconds = {variant.label: TIME.of_seeds(aim.seeds(variant)) for variant in aim.variants}
        sentences += lead(compared, seconds, names, (of.label, share) if of else None)
    if goals:
        return sentences
    # If one variant loses participants, beside each stands how many it loses: what is lost is not learned.
    lost = absence_costs(frames.rounds).groupby("variant")["lost_share"].median()
    names |= {
        variant.label: variant.html + f" ({percent(lost[variant.label], 0)} of its participants drop out)"
        for variant in frames.variants
        if variant.label in lost and lost.any()
    }
    round_s = frames.summary["simulated_s"] / frames.summary["rounds"]
    return lead(Compared("time of a round", "shortest", duration, learned=False), _by_seed(frames, round_s), names)


def _in_score(frames: Frames) -> list[Sentence]:
    if frames.timing_only:
        return []
    (score,) = columns_of("summary", frames.score)
    compared = Compared(in_words(frames.score), "best", score.read, more_is_better=bool(score.more_is_better))
    names = {variant.label: variant.html for variant in frames.variants}
    return lead(compared, _by_seed(frames, frames.summary[frames.score]), names)


def _by_seed(frames: Frames, numbers: pd.Series) -> dict[Markup, pd.Series]:
    """By label of a variant those of its numbers, a column like one of the summary, by seed."""
    rows = of_each(frames.summary, frames.variants)
    return {variant.label: numbers.loc[own.index].set_axis(own["seed"]) for variant, own in rows}


def panels(frames: Frames) -> list[Panel]:
    """List the panels of the page in reading order; their figures are drawn when they are asked for."""
    return [panel for section in _sections(frames).values() for panel in section()]


def _sections(frames: Frames) -> dict[str, Callable[[], list[Panel]]]:
    """Give what makes the panels of each section."""
    frames = frames.drawn
    details = one_round.OneRound(frames)

    def made(section: PageSection) -> list[Panel]:
        found = section.panels(details if section.details else frames)
        folded = section.folded(frames) if callable(section.folded) else section.folded
        return [replace(panel, folded=folded or section.details) for panel in found]

    trains = not frames.timing_only
    return {name: partial(made, section) for name, section in SECTIONS.items() if trains or not section.trained}


def results_figure(folder: Path, against: Literal["time", "rounds", "bytes"]) -> go.Figure:
    """Draw the accuracy of the run in `folder`, towards its first target; where none is known, the time of a round.

    Raises ScenarioError if the folder holds no run, or nothing can be drawn against what is asked for.
    """
    of = {"time": TIME, "rounds": ROUNDS, "bytes": BYTES}
    if against not in of:
        raise ScenarioError("nothing is drawn against it", key="against", found=against, allowed=of)
    frames = merge([load(folder)])
    aim = next(iter(aims(frames)), None)
    figure = learning.accuracy_against(frames, aim, of[against]) if aim else costs.round_breakdown(frames)
    return figure.update_layout(showlegend=True)


def _results(frames: Frames) -> list[Table]:
    """Tabulate what differs between runs, what repricing changed, the results of the variants drawn, and of all."""
    tables = [*difference_tables(frames), repriced_table(frames), results_table(frames.drawn)]
    drawn = [table for table in tables if table]
    if frames.drawn is frames:
        return drawn
    return [*drawn, replace(results_table(frames), title=f"All {frames.n_variants:,} variants", folded=True)]


def _digests(frames: Frames) -> Table:
    def digest(text: object) -> Cell:
        return Cell(Markup("<code>{}</code>").format(text) if isinstance(text, str) else "–")

    rows = [
        [Cell(Markup(row["variant"])), Cell(str(row["seed"])), *(digest(row[f"{name}_digest"]) for name in DIGESTS)]
        for row in frames.summary.to_dict("records")
    ]
    titles = ["Variant", "Seed", *(name.capitalize() for name in DIGESTS)]
    return Table(titles, rows, title=f"Digests of {plural(len(rows), 'run')}", folded=frames.drawn is not frames)
