"""Ratios of two running times on a busy machine: the sides alternate, and the median over many pairs counts.

The speed of a shared machine drifts by 30 %; timing one side after the other once showed a ratio of 1.3 between two
equal builds. So only ratios of pairs measured in one run are used.
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch


def alternate(a: Callable[[], object], b: Callable[[], object], pairs: int) -> tuple[list[float], list[float]]:
    """Measure seconds of `a()` and `b()`, `pairs` times each, in the order a b b a; one untimed call of each first."""
    a()
    b()
    sides: list[tuple[Callable[[], object], list[float]]] = [(a, []), (b, [])]
    for number in range(pairs):
        for side, seconds in sides if number % 2 == 0 else reversed(sides):
            began_s = time.perf_counter()
            side()
            seconds.append(time.perf_counter() - began_s)
    return sides[0][1], sides[1][1]


def quartiles(ours_s: Sequence[float], theirs_s: Sequence[float]) -> tuple[float, float, float]:
    """Give lower quartile, median and upper quartile of the ratios ours / theirs, pair by pair; needs two pairs."""
    low, middle, high = statistics.quantiles([x / y for x, y in zip(ours_s, theirs_s, strict=True)], n=4)
    return low, middle, high


RESULTS = Path(__file__).parent / "results"


def ratio(ours_s, theirs_s):
    """Format the median of the pairwise ratios and their quartiles."""
    low, middle, high = quartiles(ours_s, theirs_s)
    return {"median": round(middle, 4), "quartiles": [round(low, 4), round(high, 4)]}


def publish(name, rows, folder=RESULTS):
    """Print a table and write `<name>.json` into the folder, with the machine and the versions."""
    columns = list(rows[0])
    widths = {c: max(len(c), *(len(str(row[c])) for row in rows)) for c in columns}
    for row in [dict(zip(columns, columns, strict=True)), *rows]:
        print("  ".join(str(row[c]).ljust(widths[c]) for c in columns))
    target = folder / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")
    print(f"-> {target}", file=sys.stderr)


def machine() -> dict[str, object]:
    """Give cores, threads, platform and versions, as all results name them."""
    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
