"""Prints the runs of this folder as Markdown: accuracy and offloading by rho, accuracy of device and server alone.

    python -m research.harmony.table [REPORTS]      (the folder with harmony_table, ...; default: reports)

Run it from the root of the repository. Figures are means over clients at the oracle's thresholds, then median ±
standard deviation over seeds, in percent.
"""

from research.harmony.answered import RHOS, Answered
from research.trends import reports_folder, spread


def print_by_rho(table: Answered, rhos: tuple[float | None, ...]) -> None:
    """Print accuracy and, in brackets, the share offloaded of every variant."""
    found = {rho: 100 * table.at(rho) for rho in rhos}
    titles = [table.folder.name, *("as recorded" if rho is None else f"rho {rho:g}" for rho in rhos)]
    names = list(table.variants["name"].unique())
    parts = table.parts({name: name for name in names})
    titles += ["device, own", "device, unseen", "server, own", "server, unseen"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for name in names:
        cells = [
            f"{spread(rows.loc[name, 'accuracy'].to_numpy())} ({rows.loc[name, 'offload_probability'].median():.0f})"
            for rows in found.values()
        ]
        for who in ("device_correct", "server_correct"):
            of = parts[name]
            cells += [spread(of[who, seen].to_numpy()) if (who, seen) in of else "–" for seen in (True, False)]
        print(f"| {' | '.join([name, *cells])} |")
    print()


if __name__ == "__main__":
    for name in ("table", "ablation", "fifty", "cifar10", "drift"):
        if (table := Answered(reports_folder() / f"harmony_{name}")).exists:
            print_by_rho(table, (None,) if name == "drift" else RHOS)
