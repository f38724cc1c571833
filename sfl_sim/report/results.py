"""The results of each variant: medians and their spread over seeds, and which variant reaches a target when."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import escape

from sfl_sim.metrics.scores import LAST_ROUNDS, MORE_SCORES, SCORES, paper_like
from sfl_sim.report.display import plural, points, tenths
from sfl_sim.report.frames import Frames, ShownVariant
from sfl_sim.report.lead import times
from sfl_sim.report.load import SUMMARY_NUMBERS, TABLES
from sfl_sim.report.panel import Cell, Column, Table, by_variant, columns_of
from sfl_sim.scenario.given import METRICS

MedianRow = Mapping[Hashable, Any]
"""A row of `medians`, by column."""
RISING = 0.01
"""Gain of a score in five rounds from which on it is told."""
LEARNED = [
    "perplexity", *SCORES, *MORE_SCORES, "best_round_score", "accuracy_spread", "client_accuracy", "hybrid_accuracy",
    "performance_gap", "backward_transfer",
]  # fmt: skip
SPENT = ["simulated_s", "bytes_up", "bytes_down", "joule"]
SHARES = [*SCORES, "client_accuracy", "performance_gap"]
"""Numbers that are known after every round."""
TO_TARGET = ["rounds_to_accuracy", "time_to_accuracy_s", "bytes_to_accuracy"]
OF_MEDIANS = (
    "A speed-up is the ratio of the two medians beside it; there is none where a seed of either variant misses the "
    "target. The ± is that over seeds, each with clients of its own."
)
PAPER = (
    f"In each round the median over seeds, then median ± standard deviation over the last {LAST_ROUNDS} "
    "rounds; Hydra's tables seem to be made like this. The ± tells how much that median still changes "
    "from round to round, not how far the seeds lie apart."
)


def in_words(score: str) -> str:
    """Name the accuracy, or the first score of another goal, within a sentence."""
    title = TABLES["rounds"].columns[score].title
    return title[0].lower() + title[1:] if title[1:2].islower() else title


def is_share(score: str) -> bool:
    """Whether a score is a share of something, which is written in percent: accuracy, and not R²."""
    return TABLES["rounds"].columns[score].unit == "share"


def medians(frames: Frames) -> pd.DataFrame:
    """One row per variant: the median over its seeds of every number in the summary.

    A seed that does not reach the target counts as infinitely late: the median is infinite if most do not.
    """
    numbers = frames.summary.fillna(dict.fromkeys(TO_TARGET, math.inf))
    return numbers.groupby("variant")[SUMMARY_NUMBERS].median().loc[[v.label for v in frames.variants]]


def results_table(frames: Frames) -> Table:
    """Median and standard deviation over seeds, the best median marked."""
    rows, rising = [], still_rising(frames)
    for variant, seeds in of_each(frames.summary, frames.variants):
        about = [variant.method, plural(len(seeds), "seed"), plural(seeds["rounds"].median(), "round")]
        if variant.label in rising:
            gain = rising[variant.label]
            about.append(f"still rising +{points(gain) if is_share(frames.score) else f'{gain:.3f}'}")
        rows.append((Cell(variant.html, " · ".join(about)), seeds))
    seeds_in_words = "Medians over seeds, ± standard deviation" if frames.n_seeds > 1 else "One seed, of unknown spread"
    best = "; the best median of each column is shaded, told apart or not" if len(rows) > 1 else ""
    target = common_target(frames)
    # First, since a narrow screen shows the first columns.
    columns = columns_for(frames) if target is None else [TIME, *columns_for(frames)]
    return by_variant(columns, rows, note=f"{seeds_in_words}{best}.")


def still_rising(frames: Frames) -> dict[str, float]:
    """Find the variants that were still learning: how much their score gains in five rounds, by label of the variant.

    The gain is that of a line through the last ten rounds (medians over seeds), if it explains most of their variance.
    """
    gains: dict[str, float] = {}
    for variant, rounds in of_each(frames.rounds, frames.variants):
        by_seed = rounds.pivot(index="round", columns="seed", values=frames.score).dropna()
        last = by_seed.median(axis="columns").tail(2 * LAST_ROUNDS)
        if len(last) == 2 * LAST_ROUNDS and last.nunique() > 1:
            gain = LAST_ROUNDS * float(np.polyfit(last.index, last, 1)[0])
            if gain > RISING and np.corrcoef(last.index, last)[0, 1] ** 2 > 0.5:
                gains[variant.label] = gain
    return gains


def of_each(found: pd.DataFrame, variants: Sequence[ShownVariant]) -> list[tuple[ShownVariant, pd.DataFrame]]:
    """The variants, each with its rows of a frame."""
    rows = dict(list(found.groupby("variant", observed=True)))
    return [(variant, rows.get(variant.label, found.head(0))) for variant in variants]


def knowing(frames: Frames, column: str, table: str = "rounds") -> list[ShownVariant]:
    """The variants of which a table of the frames knows a value in a column."""
    known = set(getattr(frames, table).dropna(subset=column)["variant"])
    return [variant for variant in frames.variants if variant.label in known]


def paper_table(frames: Frames) -> Table | None:
    """Tabulate what is known after every round, in the reading of `paper_like`; None where there is one seed."""
    columns = [column for column in columns_for(frames) if column.key in SHARES]
    if not columns or frames.summary["seed"].nunique() == 1:
        return None
    rows = []
    for variant, rounds in of_each(frames.rounds, frames.variants):
        cells = [Cell(variant.html)]
        for column in columns:
            # Rounds that only some seeds have come to, in an interrupted run, would mix other seeds into the median.
            middle, spread = paper_like(rounds.pivot(index="round", columns="seed", values=column.key).dropna())
            cells.append(Cell(column.read(middle), f"± {column.read(spread)}"))
        rows.append(cells)
    titles = ["Variant", *(column.title for column in columns)]
    return Table(titles, rows, title="Computed as in Hydra’s tables", note=PAPER, folded=True)


def columns_for(frames: Frames) -> list[Column]:
    """List the columns of the results: what was learned, if anything was trained; time, bytes, and energy if known.

    The memory of the server is shown if it differs.
    """
    summary = TABLES["summary"].columns
    names = [
        name
        for name in [*([] if frames.timing_only else LEARNED), *SPENT]
        if frames.summary[name].notna().any() or (name in SPENT and not summary[name].null)
    ]
    if medians(frames)["server_model_bytes"].nunique() > 1:
        names.append("server_model_bytes")
    own = [Column(escape(key.removeprefix(METRICS)), key, "{:.4g}".format, None) for key in own_metrics(frames)]
    (of_score,) = columns_of("summary", frames.score)
    known = {column.key: column for column in columns_of("summary", *names)}
    known["simulated_s"] = replace(known["simulated_s"], title=frames.clock.capitalize())
    if "best_round_score" in known:
        title = f"{of_score.title} of the best round by validation"
        known["best_round_score"] = replace(of_score, key="best_round_score", title=title)
    return [*known.values(), *own]


def own_metrics(frames: Frames) -> list[str]:
    """List the columns of the summary with metrics of the user's own."""
    return [key for key in map(str, frames.summary) if key.startswith(METRICS) and frames.summary[key].notna().any()]


# Target accuracies: who reaches them when, and how many times faster than a baseline


@dataclass(frozen=True)
class ToTarget(Column):
    """What a seed needs until it reaches the target; one that does not is infinitely late.

    `along` is the column of the rounds that grows towards it.
    """

    along: str = ""

    def of_seeds(self, seeds: pd.DataFrame) -> pd.Series:
        """The numbers of the rows, infinite for a seed that does not reach the target."""
        return seeds[self.key].fillna(math.inf)

    def median(self, seeds: pd.DataFrame) -> float:
        """The median over seeds, infinite if at least half of them do not reach the target."""
        return float(self.of_seeds(seeds).median())

    def cell(self, seeds: pd.DataFrame) -> Cell:
        """The median over seeds and, if not all reach the target, how many do; a dash without a target or training."""
        asked = [column for column in ("target_accuracy", BEST.key) if column in seeds]
        if seeds[asked].isna().all().any():
            return Cell("–")
        middle, reached = self.median(seeds), int(seeds[self.key].notna().sum())
        text = self.text(middle) if math.isfinite(middle) else "not reached"
        below = self.spread(seeds[self.key]) if reached == len(seeds) else f"{reached} of {plural(len(seeds), 'seed')}"
        return Cell(text, below, -middle if math.isfinite(middle) else math.nan, middle)


BEST, _time, _rounds, _bytes = columns_of(
    "summary", "best_accuracy", "time_to_accuracy_s", "rounds_to_accuracy", "bytes_to_accuracy"
)
TIME = ToTarget(**vars(_time), along="ended_s")
ROUNDS = ToTarget(**vars(_rounds), along="round")
BYTES = ToTarget(**vars(_bytes), along="bytes_so_far")


@dataclass(frozen=True)
class Aim:
    """A target and the variants that aim at it.

    Attributes:
        target: accuracy in [0, 1]; None for variants without any.
        reference: the variant of whose best accuracy the target is a share; None if it was given as a number.
        summary: the rows of these variants.
        score: column of what the target is of.
    """

    target: float | None
    reference: ShownVariant | None
    variants: list[ShownVariant]
    summary: pd.DataFrame
    score: str = SCORES[0]

    def seeds(self, variant: ShownVariant) -> pd.DataFrame:
        """The rows of the summary of a variant, by seed."""
        return self._seeds[variant.label]

    @cached_property
    def _seeds(self) -> dict[str, pd.DataFrame]:
        rows = self.summary.set_index("seed", drop=False)
        return {str(label): own for label, own in rows.groupby("variant")}

    @cached_property
    def ranking(self) -> list[ShownVariant]:
        """The variants that reach the target, the fastest first."""
        time_s = {variant.label: TIME.median(self.seeds(variant)) for variant in self.variants}
        reaching = [variant for variant in self.variants if math.isfinite(time_s[variant.label])]
        return sorted(reaching, key=lambda variant: time_s[variant.label])

    @cached_property
    def baseline(self) -> ShownVariant | None:
        """Variant that others are compared with: the reference, or else the slowest whose seeds all get there."""
        whole = [variant for variant in self.ranking if self.seeds(variant)[TIME.key].notna().all()]
        return self.reference or next(reversed(whole), None)

    def speedup(self, variant: ShownVariant, cost: ToTarget) -> float:
        """How many times as much the baseline needs as a variant (`lead.times`); NaN without a baseline."""
        if self.baseline is None:
            return math.nan
        return times(*(cost.of_seeds(self.seeds(each)) for each in (self.baseline, variant)))

    @property
    def name(self) -> str:
        """The target in words: 70 % accuracy; R² of 0.3."""
        if self.target is None:
            return "no target"
        name = in_words(self.score)
        return f"{accuracy(self.target)} {name}" if is_share(self.score) else f"{name} of {self.target:.3g}"

    @property
    def share(self) -> float:
        """Share that the target is of the best accuracy of the reference; NaN without one."""
        if self.target is None or self.reference is None:
            return math.nan
        return float(self.target / self.seeds(self.reference)["best_accuracy"].mean())


def aims(frames: Frames) -> list[Aim]:
    """The targets on the page, each with the variants that were trained for it, in their order.

    Left out are those of a repriced run that would have to be trained again.
    """
    frames = frames.holding
    trained = set(frames.rounds.dropna(subset=frames.score)["variant"])
    labels: dict[str, ShownVariant] = {
        variant.label: variant for variant in frames.variants if variant.label in trained
    }
    told = frames.summary.drop_duplicates("variant").set_index("variant").to_dict("index")
    found: dict[tuple[float | None, str], list[ShownVariant]] = {}
    for label, variant in labels.items():
        target, reference = told[label]["target_accuracy"], told[label]["reference"]
        found.setdefault((None, "") if math.isnan(target) else (target, reference), []).append(variant)
    summary = frames.summary
    return [
        Aim(
            target,
            labels.get(reference),
            variants,
            summary[summary["variant"].isin([v.label for v in variants])],
            frames.score,
        )
        for (target, reference), variants in found.items()
    ]


def common_target(frames: Frames) -> float | None:
    """The accuracy that all variants aim at; None if they have none or different ones."""
    targets = {aim.target for aim in aims(frames)}
    return targets.pop() if len(targets) == 1 else None


def time_compared(frames: Frames) -> tuple[float | None, pd.Series]:
    """Choose the time by which the variants of a page are compared; seconds by row of the summary.

    The time to the target that all aim at, infinite where it is not reached, if the median seed of some variant
    reaches it. Else the time of a round; then the first value is None.
    """
    summary, aim = frames.summary, common_target(frames)
    to_target_s = summary["time_to_accuracy_s"].fillna(math.inf)
    if aim is not None and to_target_s.groupby(summary["variant"]).median().lt(math.inf).any():
        return aim, to_target_s
    return None, summary["simulated_s"] / summary["rounds"]


def time_in_words(aim: float | None) -> str:
    """Name the time that `time_compared` chose."""
    return "time of a round" if aim is None else f"time to {accuracy(aim)} accuracy"


def target_table(aim: Aim) -> Table:
    """Tabulate what each variant needs to reach the target, and how many times less than the baseline."""
    best = f"Best {in_words(aim.score)}"
    titles = ["Variant", TIME.title, "Speed-up in time", ROUNDS.title, "Speed-up in rounds", BYTES.title, best]
    rows = []
    for variant in aim.variants:
        seeds = aim.seeds(variant)
        costs = [cell for cost in (TIME, ROUNDS) for cell in (cost.cell(seeds), _speedup(aim, variant, cost))]
        rows.append([Cell(variant.html), *costs, BYTES.cell(seeds), BEST.cell(seeds)])
    several = aim.summary["seed"].nunique() > 1
    return Table(titles, rows, note=OF_MEDIANS if several else "One seed, of unknown spread.")


def _speedup(aim: Aim, variant: ShownVariant, cost: ToTarget) -> Cell:
    if variant is aim.baseline:
        return Cell(factor(1), "baseline")
    ratio = aim.speedup(variant, cost)
    return Cell("–" if math.isnan(ratio) else factor(ratio))


def factor(number: float) -> str:
    """Write a factor: 2.31×, 14.2×, 130×."""
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f}×"


def accuracy(share: float) -> str:
    """An accuracy that may have been chosen or have come about: 70 %, 69.4 %."""
    return f"{tenths(100 * share)}\u00a0%"
