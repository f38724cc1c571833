"""The results of each variant: medians and their spread over seeds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd

from sfl_sim.metrics.accuracy import LAST_ROUNDS, paper_like
from sfl_sim.report.display import plural
from sfl_sim.report.load import SUMMARY_NUMBERS, TABLES
from sfl_sim.report.table import Cell, Column, Table, columns_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence
    from typing import Any

    from sfl_sim.report.frames import Frames, Variant

    Numbers = Mapping[Hashable, Any]  # a row of `medians`, by column


LEARNED = [
    "perplexity", "accuracy", "accuracy_spread", "client_accuracy", "hybrid_accuracy", "performance_gap",
    "backward_transfer",
]  # fmt: skip
SPENT = ["simulated_s", "bytes_up", "bytes_down", "joule"]
SHARES = ["accuracy", "client_accuracy", "performance_gap"]
"""Numbers that are known after every round."""
TO_TARGET = ["rounds_to_accuracy", "time_to_accuracy_s", "bytes_to_accuracy"]
PAPER = (
    f"In each round the median over seeds, then median ± standard deviation over the last {LAST_ROUNDS} "
    "rounds; Hydra's tables seem to be made like this. The ± tells how much that median still changes "
    "from round to round, not how far the seeds lie apart."
)


def medians(frames: Frames) -> pd.DataFrame:
    """One row per variant: the median over its seeds of every number in the summary.

    A seed that does not reach the target counts as infinitely late: the median is infinite if most do not.
    """
    numbers = frames.summary.fillna(dict.fromkeys(TO_TARGET, math.inf))
    return numbers.groupby("variant")[SUMMARY_NUMBERS].median().loc[[v.label for v in frames.variants]]


def results_table(frames: Frames) -> Table:
    """Median and standard deviation over seeds, the best median marked."""
    columns, rows = columns_for(frames), []
    for variant, seeds in of_each(frames.summary, frames.variants):
        rounds = plural(seeds["rounds"].median(), "round")
        about = f"{variant.method} · {plural(len(seeds), 'seed')} · {rounds}"
        rows.append([Cell(variant.html, about), *(column.cell(seeds) for column in columns)])
    seeds_in_words = "Medians over seeds, ± standard deviation" if frames.n_seeds > 1 else "One seed, of unknown spread"
    note = f"{seeds_in_words}; the best of each column is shaded."
    return Table(["Variant", *(column.title for column in columns)], rows, note=note)


def of_each(found: pd.DataFrame, variants: Sequence[Variant]) -> list[tuple[Variant, pd.DataFrame]]:
    """The variants, each with its rows of a frame."""
    rows = dict(list(found.groupby("variant", observed=True)))
    return [(variant, rows.get(variant.label, found.head(0))) for variant in variants]


def knowing(frames: Frames, column: str, table: str = "rounds") -> list[Variant]:
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
    return Table(titles, rows, title="Computed as in the paper", note=PAPER, folded=True)


def columns_for(frames: Frames) -> list[Column]:
    """List the columns of the results: what was learned, if anything was trained; time, bytes, and energy if known.

    The memory of the server is shown if it differs.
    """
    summary = TABLES["summary"].columns
    names = [
        name
        for name in [*([] if frames.timing_only else LEARNED), *SPENT]
        if summary[name].is_required or frames.summary[name].notna().any()
    ]
    if medians(frames)["server_model_bytes"].nunique() > 1:
        names.append("server_model_bytes")
    return columns_of("summary", *names)
