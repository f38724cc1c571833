"""Compares our methods with their authors' own code, on equal weights, batches and orders, in float64.

    python -m research.crosscheck CHECKOUT...      (folders of clones, which it tells apart by their files)

Run it from the root of the repository. No line of theirs is in it, and nothing is written to a checkout. What was
found, at which commits: research/results/crosscheck.md.
"""

import subprocess
import sys
from pathlib import Path

import torch

from research.crosscheck import cyclesl, dtfl, fednar, fsl_sage, gas, hydra, mergesfl, multisfl
from research.crosscheck.report import HEADER

AUTHORS = (hydra, mergesfl, multisfl, fednar, fsl_sage, cyclesl, gas, dtfl)


def main(checkouts: list[str]) -> None:
    """Print a table for each checkout."""
    if not checkouts:
        raise SystemExit(__doc__)
    torch.set_num_threads(1)
    for checkout in map(Path, checkouts):
        authors = next((authors for authors in AUTHORS if (checkout / authors.MARK).exists()), None)
        if authors is None:
            known = ", ".join(f"{authors.REPOSITORY} ({authors.MARK})" for authors in AUTHORS)
            raise SystemExit(f"{checkout} is no checkout of a repository that is known here: {known}")
        commit = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
        print(f"{authors.REPOSITORY} at {commit.strip() or 'an unknown commit'}\n\n{HEADER}")
        for found in authors.compare(checkout):
            print(found.line, flush=True)
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
