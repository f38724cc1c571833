"""Prints hours a round of the split frameworks at the size of SMoFi's paper, beside those derived from its Table 2.

    python -m research.momentum.ratios [REPORTS]      (the folder with momentum_hours and momentum_hours_tiny)

Run it from the root of the repository. The paper's hours a round are T / R of its Table 2 (docs/methods/timing.md).
Their order, MergeSFL < V1 (epoch) < SMoFi ~ V1 (step) ~<= V2, is judged by the rule of research/trends.py, in percent
of SMoFi's hours with the same clients. The margin is 10 %: in the paper, V1 (step) takes 0 to 7 % more than SMoFi, and
V2 from 6 % less to 18 % more than V1 (step). V2 is served in random sweeps; client by client it is in the table only.

Five seeds do not decide it. So it is judged by ten new ones, 100 to 109, as was settled on 27 November 2026 before they
were run: sfl-sim momentum/hours --timing-only --set seed=100 --set repeats=10, and the same with momentum/hours_tiny.
"""

import numpy as np

from research.trends import Figures, Table, chain, print_verdicts, reports_folder

ORDER = ("MergeSFL", "V1 (epoch)", "SMoFi", "V1 (step)", "V2")
SIGNS = ("<", "<", "~", "~<=")
MARGIN = 10
NAMES = {
    "MergeSFL": "mergesfl, mean",
    "V1 (round)": "splitfed_v1, round",
    "V1 (epoch)": "splitfed_v1, epoch",
    "SMoFi (relaxed)": "smofi, relaxed",
    "SMoFi (strict)": "smofi, strict",
    "SMoFi": "smofi, paper",
    "V1 (step)": "splitfed_v1, step",
    "V2": "splitfed_v2, random_sweep",
    "V2 (client by client)": "splitfed_v2, random_client",
}
PAPER = {
    "CIFAR-10": (0.208, 0.415, 0.518, 0.552, 0.520),
    "CIFAR-100": (0.212, 0.256, 0.288, 0.288, 0.298),
    "Tiny ImageNet": (1.290, 1.331, 1.439, 1.447, 1.702),
}
"""Hours a round of the paper, in the order of ORDER."""


def hours_a_round(table: Table, prefix: str = "") -> Figures:
    """Simulated hours a round of each framework, by seed."""
    names = {called: prefix + name for called, name in NAMES.items()}
    hours, rounds = table("simulated_s", names, scale=1 / 3600), table("rounds", names, scale=1)
    return {called: hours[called] / rounds[called] for called in names}


def percent_of_smofi(hours: Figures) -> Figures:
    """Hours in percent of SMoFi's, seed by seed, because all frameworks share the clients of a seed."""
    return {called: 100 * figure / hours["SMoFi"] for called, figure in hours.items()}


def cell(called: str, hours: Figures) -> str:
    """Text of the median hours and, in brackets, the median percentage of SMoFi's."""
    if called not in hours:
        return "–"
    return f"{np.median(hours[called]):.3f} ({np.median(percent_of_smofi(hours)[called]):.0f} %)"


def main() -> None:
    """Print two Markdown tables: hours with their ratios, and whether the order comes out."""
    reports = reports_folder()
    cifar, tiny = Table(reports / "momentum_hours"), Table(reports / "momentum_hours_tiny")
    ours = {
        "CIFAR-10": hours_a_round(cifar, "n_labels=10, "),
        "CIFAR-100": hours_a_round(cifar, "n_labels=100, "),
        "Tiny ImageNet": hours_a_round(tiny),
    }
    paper = {
        f"paper: {name}": {called: np.array([hour]) for called, hour in zip(ORDER, hours, strict=True)}
        for name, hours in PAPER.items()
    }
    columns = ours | paper
    print(f"| hours a round (of SMoFi's) | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for called in NAMES:
        print(f"| {called} | {' | '.join(cell(called, hours) for hours in columns.values())} |")
    smofi = {name: np.median(hours["SMoFi"]) for name, hours in columns.items()}
    for name in ("CIFAR-10", "Tiny ImageNet"):
        here, there = (smofi[f"{whose}{name}"] / smofi[f"{whose}CIFAR-100"] for whose in ("", "paper: "))
        print(f"\nSMoFi, {name} / CIFAR-100: {here:.2f} (paper: {there:.2f})")
    print()
    ratios = {setting: percent_of_smofi(hours) for setting, hours in ours.items()}
    found = {
        setting: chain({called: percent[called] for called in ORDER}, *SIGNS, margin=MARGIN)
        for setting, percent in ratios.items()
    }
    print_verdicts(found, "percent of SMoFi's hours")


if __name__ == "__main__":
    main()
