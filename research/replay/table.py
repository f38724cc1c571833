"""Prints the runs of this folder as Markdown: accuracy, its spread, time and bytes of every variant.

    python -m research.replay.table [REPORTS]      (the folder with replay_table, ...; default: reports)

Run it from the root of the repository. Accuracy is the median of a run's last five rounds, spread their standard
deviation. Time and bytes a round are those at the paper's size, without training.
"""

from research.tables import print_tables
from research.trends import Table, reports_folder, spread
from sfl_sim.report.display import data_size, duration, points
from sfl_sim.report.panel import Column

SCENARIOS = ("table", "pull", "norm", "proportions", "cuts", "fashion", "branches", "participation")
COLUMNS = [
    Column("accuracy, %", "accuracy", points),
    Column("spread, points", "accuracy_spread", points),
    Column("simulated time", "simulated_s", duration),
    Column("sent up", "bytes_up", data_size),
    Column("sent down", "bytes_down", data_size),
]


def print_costs(table: Table) -> None:
    """Print time and bytes a round of every variant, also in percent of SFL's by seed: median ± standard deviation."""
    names = {name: name for name in table.variants.sort_index()["name"].unique()}
    rounds = table("rounds", names, scale=1)
    units = {"minutes": ("simulated_s", 1 / 60), "GB up": ("bytes_up", 1e-9), "GB down": ("bytes_down", 1e-9)}
    spent = [table(key, names, scale) for key, scale in units.values()]
    titles = [table.folder.name, *(f"{unit} a round (% of SFL's)" for unit in units)]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for name in names:
        cells = [
            f"{spread(figures[name] / rounds[name])} ({spread(100 * figures[name] / figures['splitfed_v1'])})"
            for figures in spent
        ]
        print(f"| {' | '.join([name, *cells])} |")


if __name__ == "__main__":
    print_tables([f"replay_{name}" for name in SCENARIOS], COLUMNS)
    if (hours := Table(reports_folder() / "replay_hours")).exists:
        print_costs(hours)
