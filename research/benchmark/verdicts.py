"""Prints which trends of one of the benchmark's tracks hold, with the numbers.

    python -m research.benchmark.verdicts [FOLDER]     (of the benchmark; default: reports/benchmark_images-benchmark)

Run it from the root of the repository. The rule is that of research/trends.py; accuracies are in percent.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from research.trends import Comparison, print_verdicts
from sfl_sim.report.load import BENCHMARK, OWN_LINKS

CSE, HERON, SAGE = "cse_fsl, upload_every=5, first", "heron, upload_every=5, first", "fsl_sage, upload_every=5"
FEDBUFF = "fedbuff, splitfed_v1"
CSE_TEXT, HERON_TEXT = (f"{name}, aux=1, upload_every=5, first" for name in ("cse_fsl", "heron"))
GUESSING, MARGIN, MARGIN_TEXT = 10.0, 5.0, 1.0
"""Accuracy of guessing one of ten labels, and the margins of trends (j) and (l), in percent."""
Figures = tuple[str, np.ndarray]


@dataclass(frozen=True)
class Track:
    """The rows of a track as it was trained."""

    table: pd.DataFrame

    def figures(self, variant: str, column: str, scale: float) -> Figures:
        """Give a variant's name, and its figures by seed."""
        wide = self.table.pivot(index="seed", columns="variant", values=column)
        unknown = math.inf if column.endswith("_to_target") else math.nan
        return variant.partition(",")[0], scale * wide[variant].fillna(unknown).to_numpy()

    def accuracy(self, variant: str) -> Figures:
        """Give accuracies in percent."""
        return self.figures(variant, "score", 100)

    def hours(self, variant: str) -> Figures:
        """Give hours to the target."""
        return self.figures(variant, "seconds_to_target", 1 / 3600)

    def megabytes(self, variant: str) -> Figures:
        """Give megabytes to the target."""
        return self.figures(variant, "bytes_to_target", 1e-6)


def of_text(track: Track) -> dict[str, list[Comparison]]:
    """Trends (k) to (m) of research/results/benchmark.md."""
    accuracy, megabytes = track.accuracy, track.megabytes
    return {
        "(k) HO-SFL is more accurate than V1": [Comparison(accuracy("ho_sfl"), ">", accuracy("splitfed_v1"))],
        "(l) HERON is as accurate as CSE-FSL": [Comparison(accuracy(HERON_TEXT), "~", accuracy(CSE_TEXT), MARGIN_TEXT)],
        "(m) SplitFrozen needs fewer bytes than SplitLoRA": [
            Comparison(megabytes("splitfrozen"), "<", megabytes("splitfed_v2"))
        ],
    }


def of_images(track: Track) -> dict[str, list[Comparison]]:
    """Trends (a) to (j) of research/results/benchmark.md."""
    accuracy, hours, megabytes = track.accuracy, track.hours, track.megabytes
    guessing = "guessing", np.full(track.table["seed"].nunique(), GUESSING)
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


def of_unreliable(track: Track) -> dict[str, list[Comparison]]:
    """Trends (a) to (j) once more, and (n), of research/results/benchmark.md."""
    hours = track.hours
    return of_images(track) | {
        "(n) FedBuff needs fewer hours than V1": [Comparison(hours(FEDBUFF), "<", hours("splitfed_v1"))]
    }


TRENDS = {"benchmark_images": of_images, "benchmark_images_unreliable": of_unreliable, "benchmark_text": of_text}


def main() -> None:
    """Print a Markdown table."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "reports/benchmark_images-benchmark")
    table = pd.read_csv(folder / BENCHMARK)
    track = Track(table[table["links"] == OWN_LINKS])
    print_verdicts(TRENDS[table["track"].iloc[0]](track), "percent, hours or megabytes")


if __name__ == "__main__":
    main()
