"""Compares fair sharing of a link with shares of it that are reserved for each client, as EPSL's allocation makes them.

    python -m research.controllers.shares

A client's mini-batch takes time before its message, for instance a forward pass, and after it. Reserved shares are the
best there are (waterfilling): all clients end together, of true durations. A link that is shared fairly gives what one
client leaves to the others. Durations are log-normal; what came out: research/results/controllers.md.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

Floats = NDArray[np.float64]
TRIES = 100


def reserved_s(own_s: Floats, link_s: Floats) -> float:
    """Return when all end: tau with sum link / (tau - own) = 1; `link_s` is a client's time with the whole link."""

    def missing(tau_s: float) -> float:
        return float((link_s / (tau_s - own_s)).sum()) - 1

    longest_s = own_s.max()
    return float(brentq(missing, longest_s * (1 + 1e-12), longest_s + link_s.sum() + 1))


def fair_s(before_s: Floats, link_s: Floats, after_s: Floats, batches: int) -> float:
    """Return when the last client ends, whose mini-batches are equal: before, message, after, one after another."""
    before_s, after_s, now_s, ended_s = before_s / batches, after_s / batches, 0.0, np.zeros(len(link_s))
    left, ready_s, work_s = np.full(len(link_s), batches), before_s.copy(), np.zeros(len(link_s))
    while (left > 0).any():
        sends = work_s > 0
        rate = 1 / max(1, int(sends.sum()))
        done_s, begins_s = now_s + work_s[sends] / rate, ready_s[(left > 0) & ~sends]
        then_s = min(done_s.min(initial=np.inf), begins_s.min(initial=np.inf))
        work_s[sends] -= (then_s - now_s) * rate
        over = sends & (work_s <= 1e-12)
        now_s, work_s[over] = then_s, 0.0
        left[over] -= 1
        ended_s[over] = now_s + after_s[over]
        ready_s[over] = ended_s[over] + before_s[over]
        begins = (left > 0) & ~(work_s > 0) & (ready_s <= now_s + 1e-12)
        work_s[begins] = link_s[begins] / batches
    return float(ended_s.max())


def main() -> None:
    """Print a Markdown table: how long reserved shares take, as a share of what fair sharing takes."""
    rng = np.random.default_rng(0)
    print("| clients | mini-batches | after | reserved : fair | least | most |\n|---|---|---|---|---|---|")
    for n in (5, 20):
        for batches in (1, 5, 50):
            for tail in (0.0, 0.5, 1.0):
                ratios = []
                for _ in range(TRIES):
                    own_s, link_s = rng.lognormal(0, 1, n), rng.lognormal(0, 1, n) / n
                    fair = fair_s(own_s * (1 - tail), link_s, own_s * tail, batches)
                    ratios.append(reserved_s(own_s, link_s) / fair)
                told = " | ".join(f"{number:.2f}" for number in (np.median(ratios), min(ratios), max(ratios)))
                print(f"| {n} | {batches} | {tail:.0%} | {told} |")


if __name__ == "__main__":
    main()
