"""Prints which trends of the benchmark's images hold, with the numbers.

    python -m scenarios.benchmark.verdicts [FOLDER]     (of the benchmark; default: reports/benchmark_images-benchmark)

Run it from the root of the repository. The rule is that of scenarios/trends.py; accuracies are in percent.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from scenarios.trends import Comparison, print_verdicts
from sfl_sim.report.load import BENCHMARK, OWN_LINKS

CSE, HERON, SAGE = "cse_fsl, upload_every=5, first", "heron, upload_every=5, first", "fsl_sage, upload_every=5"
GUESSING, MARGIN = 10.0, 5.0
"""Accuracy of guessing one of ten labels, and the margin of trend (j), in percent."""


def trends(table: pd.DataFrame) -> dict[str, list[Comparison]]:
    """Trends (a) to (j) of docs/results/benchmark.md."""

    def figures(variant: str, column: str, scale: float) -> tuple[str, np.ndarray]:
        wide = table.pivot(index="seed", columns="variant", values=column)
        unknown = math.inf if column.endswith("_to_target") else math.nan
        return variant.partition(",")[0], scale * wide[variant].fillna(unknown).to_numpy()

    def accuracy(variant: str) -> tuple[str, np.ndarray]:
        return figures(variant, "score", 100)

    def hours(variant: str) -> tuple[str, np.ndarray]:
        return figures(variant, "seconds_to_target", 1 / 3600)

    def megabytes(variant: str) -> tuple[str, np.ndarray]:
        return figures(variant, "bytes_to_target", 1e-6)

    guessing = "guessing", np.full(table["seed"].nunique(), GUESSING)
    return {
        "(a) CSE-FSL needs fewer bytes than V2": [Comparison(megabytes(CSE), "<", megabytes("splitfed_v2"))],
        "(b) local loss needs fewer hours than V1": [Comparison(hours("local_loss"), "<", hours("splitfed_v1"))],
        "(c) FSL-SAGE is more accurate than CSE-FSL": [Comparison(accuracy(SAGE), ">", accuracy(CSE))],
        "(d) HERON is less accurate than CSE-FSL": [Comparison(accuracy(HERON), "<", accuracy(CSE))],
        "(e) CycleSL is more accurate than MergeSFL": [Comparison(accuracy("cyclesl"), ">", accuracy("mergesfl"))],
        "(f) LocFedMix-SL is more accurate than MergeSFL": [
            Comparison(accuracy("locfedmix"), ">", accuracy("mergesfl"))
        ],
        "(g) S2FL is more accurate than V1": [Comparison(accuracy("s2fl"), ">", accuracy("splitfed_v1"))],
        "(h) GAS needs fewer hours than V1": [Comparison(hours("gas"), "<", hours("splitfed_v1"))],
        "(i) HO-SFL is more accurate than V1": [Comparison(accuracy("ho_sfl"), ">", accuracy("splitfed_v1"))],
        "(j) MU-SplitFed guesses": [Comparison(accuracy("mu_splitfed"), "~", guessing, MARGIN)],
    }


def main() -> None:
    """Print a Markdown table."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "reports/benchmark_images-benchmark")
    table = pd.read_csv(folder / BENCHMARK)
    print_verdicts(trends(table[table["links"] == OWN_LINKS]), "percent, hours or megabytes")


if __name__ == "__main__":
    main()
