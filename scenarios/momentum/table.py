"""The runs of this folder as Markdown: accuracy, rounds, time and bytes to the target of every variant.

    python -m scenarios.momentum.table [REPORTS]      (the folder with momentum_table, ...; default: reports)

To be run from the root of the repository. Mean ± standard deviation over seeds, as in SMoFi's paper; accuracy is the
best of a run's rounds. If a seed misses the target, all that it has spent counts, the mean is a lower bound (>), and it
is told how many seeds reach the target. The speed-up over FedAvg is the median of each seed's, as in the report.
"""

from __future__ import annotations

from scenarios.trends import Table, reports_folder
from sfl_sim.report.frames import Variant, merge
from sfl_sim.report.load import load
from sfl_sim.report.way import BEST, BYTES, ROUNDS, TIME, Aim, Leg, aims, bounded, factor

SCENARIOS = ("table", "ablation", "staleness", "cuts", "skew")


def mean(aim: Aim, variant: Variant, leg: Leg) -> str:
    """The mean over seeds of what it takes to reach the target, or its lower bound."""
    seeds = aim.seeds(variant)
    low, high = leg.of_seeds(seeds).mean()
    if low == high:
        return f"{leg.text(low)} ± {leg.text(seeds[leg.key].std())}"
    return f"{bounded(low, high, leg.text)} ({seeds[leg.key].notna().sum()} of {len(seeds)} seeds)"


def row(aim: Aim, variant: Variant) -> str:
    """A variant's line."""
    best = aim.seeds(variant)[BEST.key]
    cells = [variant.name, f"{BEST.text(best.mean())} ± {100 * best.std():.1f}"]
    if aim.target is not None:
        low, high = (1.0, 1.0) if variant is aim.baseline else aim.speedup(variant, TIME)
        speedup = bounded(low, high, factor)
        cells += [mean(aim, variant, ROUNDS), mean(aim, variant, TIME), speedup, mean(aim, variant, BYTES)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table for every target that the runs aim at, and one for the variants that have none."""
    for table in (Table(reports_folder() / f"momentum_{name}") for name in SCENARIOS):
        if not table.exists:
            print(f"{table.folder.name}: not run\n")
            continue
        for aim in aims(merge([load(table.folder)])):
            titles = [table.folder.name, "accuracy"]
            if aim.target is not None:
                titles += [f"R to {aim.name}", "T", "speed-up in T", "bytes"]
            print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
            print(*(row(aim, variant) for variant in aim.variants), sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
