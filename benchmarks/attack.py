"""Random scenarios, each computed in two ways that must agree (`tests/support/attack.py`), until the time is over.

    PYTHONPATH=tests/support python -m benchmarks.attack [--minutes 10] [--seed 0]

What disagrees is printed with its seed, and `--seed SEED` begins with it.
"""

import time
from argparse import ArgumentParser
from collections import Counter

import numpy as np
import torch
from attack import CHECKS, drawn, verdict


def main() -> None:
    """Attack until the time is over."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tally: Counter[tuple[str, str]] = Counter()
    until_s, seed = time.monotonic() + 60 * given.minutes, given.seed
    while time.monotonic() < until_s:
        check = CHECKS[seed % len(CHECKS)]
        found = verdict(check, seed) or ""
        tally[check.__name__, found if found in ("holds", "refused") else "WRONG"] += 1
        if found not in ("holds", "refused"):
            print(f"seed {seed}, {check.__name__}: {found}\n{drawn(np.random.default_rng(seed))}\n", flush=True)
        seed += 1
    for check in CHECKS:
        counts = {word: tally[check.__name__, word] for word in ("holds", "refused", "WRONG")}
        print(f"{check.__name__:36}" + "  ".join(f"{word} {count}" for word, count in counts.items()))


if __name__ == "__main__":
    main()
