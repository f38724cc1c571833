"""Prints the runs of this folder as Markdown: accuracy, and rounds, time and bytes to the target of every variant.

    python -m research.momentum.table [REPORTS]      (the folder with momentum_table, ...; default: reports)

Run it from the root of the repository. As in SMoFi's paper, accuracy is the best of a run's rounds.
"""

from research.tables import print_tables
from sfl_sim.report.display import points
from sfl_sim.report.panel import Column

SCENARIOS = ("table", "plugins", "one_epoch", "slow", "resnet", "ablation", "staleness", "cuts", "skew")

if __name__ == "__main__":
    print_tables([f"momentum_{name}" for name in SCENARIOS], [Column("accuracy, %", "best_accuracy", points)])
