"""Prints the runs of a study as Markdown tables: accuracy, and rounds, time and bytes to the target.

Figures are mean ± standard deviation over seeds; those to a target are medians, in which a seed that misses it is
infinitely late (research/trends.py), as in the report.
"""

from collections.abc import Iterable, Sequence

from research.trends import Table, reports_folder
from sfl_sim.report.frames import ShownVariant, merge
from sfl_sim.report.load import load
from sfl_sim.report.panel import Column
from sfl_sim.report.results import BYTES, ROUNDS, TIME, Aim, ToTarget, aims, factor


def print_tables(scenarios: Iterable[str], columns: Sequence[Column]) -> None:
    """Print a table for every target of the runs, and one for the variants without a target.

    Args:
        scenarios: folders of the runs.
        columns: columns of summary.json to show for every variant.
    """
    for table in (Table(reports_folder() / name) for name in scenarios):
        if not table.exists:
            print(f"{table.folder.name}: not run\n")
            continue
        for aim in aims(merge([load(table.folder)])):
            titles = [table.folder.name, *(column.title for column in columns)]
            if aim.target is not None:
                titles += [f"R to {aim.name}", "T", "speed-up in T", "bytes"]
            print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
            print(*(_row(aim, variant, columns) for variant in aim.variants), sep="\n", end="\n\n")


def _row(aim: Aim, variant: ShownVariant, columns: Sequence[Column]) -> str:
    seeds = aim.seeds(variant)
    measured = [seeds[column.key] for column in columns]
    cells = [
        f"{column.text(of.mean())} ± {column.text(of.std())}" for column, of in zip(columns, measured, strict=True)
    ]
    if aim.target is not None:
        times = 1.0 if variant is aim.baseline else aim.speedup(variant, TIME)
        speedup = factor(times) if times > 0 else "–"
        cells += [_needed(aim, variant, ROUNDS), _needed(aim, variant, TIME), speedup, _needed(aim, variant, BYTES)]
    return f"| {' | '.join([variant.name, *cells])} |"


def _needed(aim: Aim, variant: ShownVariant, cost: ToTarget) -> str:
    """Median over seeds of rounds, time or bytes to the target, with its spread or the seeds that reach it."""
    cell = cost.cell(aim.seeds(variant))
    return f"{cell.text} ({cell.below})" if cell.below else cell.text
