"""The results per variant: medians and their spread over seeds, and the tables of them."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from sfl_sim.metrics.accuracy import paper_like
from sfl_sim.report.display import data_size, duration, percent, plural, points, tenths
from sfl_sim.report.load import SUMMARY_NUMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
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


def target(frames: Frames) -> float | None:
    """The accuracy that all variants aim at; None if they have none or different ones."""
    targets = frames.summary["target_accuracy"].unique()
    return float(targets[0]) if len(targets) == 1 and not math.isnan(targets[0]) else None


@dataclass(frozen=True)
class Column:
    """One column of the table: how a number reads, and whether the largest or the smallest is the best."""

    title: str
    key: str
    text: Callable[[float], str]
    best: Callable[[pd.Series], float] = pd.Series.min

    def read(self, number: float) -> str:
        """A number of this column; a dash for what is unknown or never comes."""
        return self.text(number) if math.isfinite(number) else "–"

    def spread(self, seeds: pd.Series) -> str:
        """What stands under the median of `seeds`: the standard deviation, or how many reach the target if not all do.

        Empty if there is nothing to tell: one seed, or seeds that do not differ.
        """
        if self.key in TO_TARGET and len(seeds) > 1 and seeds.isna().any():
            return f"{seeds.notna().sum()} of {plural(len(seeds), 'seed')}"
        return f"± {self.text(seeds.std())}" if seeds.nunique() > 1 else ""


def results_table(frames: Frames) -> str:
    """The table as HTML: median and standard deviation over seeds, the best median marked."""
    columns = columns_for(frames)
    middle = medians(frames)
    return _table(columns, "".join(_row(frames, variant, columns, middle) for variant in frames.variants))


def paper_table(frames: Frames) -> str:
    """What is known after every round, as HTML in the reading of `paper_like`; empty where there is one seed."""
    columns = [column for column in columns_for(frames) if column.key in SHARES]
    if not columns or frames.summary["seed"].nunique() == 1:
        return ""
    rows = ""
    for variant in frames.variants:
        rounds = frames.rounds[frames.rounds["variant"] == variant.label]
        cells = ""
        for column in columns:
            # Rounds that only some seeds have come to, in an interrupted run, would mix other seeds into the median.
            middle, spread = paper_like(rounds.pivot(index="round", columns="seed", values=column.key).dropna())
            cells += f"<td>{column.read(middle)}<small>± {column.read(spread)}</small></td>"
        rows += f'<tr><th scope="row">{variant.html}</th>{cells}</tr>'
    return _table(columns, rows)


def _table(columns: list[Column], rows: str) -> str:
    head = "".join(f'<th scope="col">{column.title}</th>' for column in columns)
    return (
        f'<table class="numbers"><thead><tr><th scope="col">Variant</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def columns_for(frames: Frames) -> list[Column]:
    """What the results show: what was learned and the way to the target, where anything was trained; time, bytes.

    The memory of the server is shown if it differs.
    """
    columns = [
        Column("Simulated time", "simulated_s", duration),
        Column("Sent up", "bytes_up", data_size),
        Column("Sent down", "bytes_down", data_size),
    ]
    if medians(frames)["server_model_bytes"].nunique() > 1:
        columns.append(Column("Server memory", "server_model_bytes", data_size))
    if frames.timing_only:
        return columns
    learned = [
        Column("Accuracy", "accuracy", percent, pd.Series.max),
        Column("Performance gap (points)", "performance_gap", points),
        Column("Backward transfer (points)", "backward_transfer", points),
    ]
    if frames.has_client_accuracy:
        learned.insert(1, Column("Client accuracy", "client_accuracy", percent, pd.Series.max))
    if frames.summary["target_accuracy"].isna().all():
        return learned + columns
    aim = target(frames)
    goal = "target" if aim is None else percent(aim, 0)
    to_target = [
        Column(f"Time to {goal}", "time_to_accuracy_s", duration),
        Column(f"Rounds to {goal}", "rounds_to_accuracy", tenths),
        Column(f"Bytes to {goal}", "bytes_to_accuracy", data_size),
    ]
    return learned + to_target + columns


def _row(frames: Frames, variant: Variant, columns: list[Column], middle: pd.DataFrame) -> str:
    seeds = frames.summary[frames.summary["variant"] == variant.label]
    rounds = plural(seeds["rounds"].median(), "round")
    about = f"{html.escape(variant.method)} · {plural(len(seeds), 'seed')} · {rounds}"
    cells = "".join(_cell(column, middle[column.key], variant.label, seeds[column.key]) for column in columns)
    return f'<tr><th scope="row">{variant.html}<small>{about}</small></th>{cells}</tr>'


def _cell(column: Column, middle: pd.Series, label: str, seeds: pd.Series) -> str:
    texts = middle.map(column.read)
    is_best = texts.nunique() > 1 and texts[label] == column.text(column.best(middle))
    mark = ' class="best"' if is_best else ""
    return f"<td{mark}>{texts[label]}<small>{column.spread(seeds)}</small></td>"
