"""The results per variant: medians and their spread over seeds, and the tables of them."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from sfl_sim.metrics.accuracy import paper_like
from sfl_sim.report.display import data_size, duration, percent, plural, points, prefixed
from sfl_sim.report.load import SUMMARY_NUMBERS
from sfl_sim.report.table import Cell, table

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from typing import Any

    from sfl_sim.report.frames import Frames, Variant

    Numbers = Mapping[Hashable, Any]  # a row of `medians`, by column

SHARES = ["accuracy", "client_accuracy", "performance_gap"]
"""What is known after every round."""
TO_TARGET = ["rounds_to_accuracy", "time_to_accuracy_s", "bytes_to_accuracy"]


def medians(frames: Frames) -> pd.DataFrame:
    """One row per variant: the median over its seeds of every number in the summary.

    A seed that does not reach the target counts as infinitely late: the median is infinite if most do not.
    """
    numbers = frames.summary.fillna(dict.fromkeys(TO_TARGET, math.inf))
    return numbers.groupby("variant")[SUMMARY_NUMBERS].median().loc[[v.label for v in frames.variants]]


@dataclass(frozen=True)
class Column:
    """One column of a table: how a number reads, and whether the largest or the smallest is the best."""

    title: str
    key: str
    text: Callable[[float], str]
    more_is_better: bool = False

    def cell(self, seeds: pd.DataFrame) -> Cell:
        """The median over `seeds`, the rows of the summary of one variant; a dash if it is unknown."""
        middle = float(seeds[self.key].median())
        return Cell(self.read(middle), self.spread(seeds[self.key]), middle if self.more_is_better else -middle)

    def read(self, number: float) -> str:
        """A number of this column; a dash for what is unknown."""
        return self.text(number) if math.isfinite(number) else "–"

    def spread(self, numbers: pd.Series) -> str:
        """The standard deviation; empty if there is nothing to tell: one seed, or seeds that do not differ."""
        return f"± {self.text(numbers.std())}" if numbers.nunique() > 1 else ""


def results_table(frames: Frames) -> str:
    """The table as HTML: median and standard deviation over seeds, the best median marked."""
    columns = columns_for(frames)
    rows = []
    for variant in frames.variants:
        seeds = frames.summary[frames.summary["variant"] == variant.label]
        rows.append((_heading(variant, seeds), [column.cell(seeds) for column in columns]))
    return table([column.title for column in columns], rows)


def unranked_table(columns: Sequence[Column], found: pd.DataFrame, variants: Sequence[Variant]) -> str:
    """Medians over seeds and their spread as HTML, where none is the best.

    Args:
        found: a row per variant and seed, by the keys of `columns`.
    """
    rows = []
    for variant in variants:
        seeds = found[found["variant"] == variant.label]
        rows.append((variant.html, [column.cell(seeds)._replace(merit=math.nan) for column in columns]))
    return table([column.title for column in columns], rows)


def paper_table(frames: Frames) -> str:
    """What is known after every round, as HTML in the reading of `paper_like`; empty where there is one seed."""
    columns = [column for column in columns_for(frames) if column.key in SHARES]
    if not columns or frames.summary["seed"].nunique() == 1:
        return ""
    rows = []
    for variant in frames.variants:
        rounds = frames.rounds[frames.rounds["variant"] == variant.label]
        cells = []
        for column in columns:
            # Rounds that only some seeds have come to, in an interrupted run, would mix other seeds into the median.
            middle, spread = paper_like(rounds.pivot(index="round", columns="seed", values=column.key).dropna())
            cells.append(Cell(column.read(middle), f"± {column.read(spread)}"))
        rows.append((variant.html, cells))
    return table([column.title for column in columns], rows)


def columns_for(frames: Frames) -> list[Column]:
    """What the results show: what was learned, where anything was trained; time, bytes, and energy where it is known.

    The memory of the server is shown if it differs.
    """
    columns = [
        Column("Simulated time", "simulated_s", duration),
        Column("Sent up", "bytes_up", data_size),
        Column("Sent down", "bytes_down", data_size),
    ]
    if frames.summary["joule"].notna().any():
        columns.append(Column("Energy of the clients", "joule", partial(prefixed, unit="J")))
    if medians(frames)["server_model_bytes"].nunique() > 1:
        columns.append(Column("Server memory", "server_model_bytes", data_size))
    if frames.timing_only:
        return columns
    learned = [
        Column("Accuracy", "accuracy", percent, more_is_better=True),
        Column("Performance gap (points)", "performance_gap", points),
        Column("Backward transfer (points)", "backward_transfer", points),
    ]
    if frames.summary["hybrid_accuracy"].notna().any():
        learned.insert(1, Column("Hybrid accuracy", "hybrid_accuracy", percent, more_is_better=True))
    if frames.has_client_accuracy:
        learned.insert(1, Column("Client accuracy", "client_accuracy", percent, more_is_better=True))
    if frames.summary["accuracy_spread"].notna().any():
        learned.insert(1, Column("Spread of last rounds (points)", "accuracy_spread", points))
    return learned + columns


def _heading(variant: Variant, seeds: pd.DataFrame) -> str:
    rounds = plural(seeds["rounds"].median(), "round")
    return f"{variant.html}<small>{html.escape(variant.method)} · {plural(len(seeds), 'seed')} · {rounds}</small>"
