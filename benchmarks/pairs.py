"""Measure a ratio that can be believed: alternate the two sides (A B B A), report median and spread.

The machine is shared and drifts by 30 %, so only ratios taken in one run mean anything (shared/PERFORMANCE.md).
"""

import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import torch


def alternate(a, b, pairs):
    """Seconds of `a()` and `b()`, `pairs` times each, in the order a b b a; one untimed call of each first."""
    a(), b()
    seconds = {a: [], b: []}
    for number in range(pairs):
        for side in (a, b) if number % 2 == 0 else (b, a):
            began_s = time.perf_counter()
            side()
            seconds[side].append(time.perf_counter() - began_s)
    return seconds[a], seconds[b]


def ratio(ours_s, theirs_s):
    """Median of the pairwise ratios, and their quartiles."""
    ratios = [x / y for x, y in zip(ours_s, theirs_s, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"median": round(middle, 4), "quartiles": [round(low, 4), round(high, 4)]}


def publish(name, rows):
    """Print a table and write `benchmarks/results/<name>.json` with the machine and the versions."""
    columns = list(rows[0])
    widths = {c: max(len(c), *(len(str(row[c])) for row in rows)) for c in columns}
    for row in [dict(zip(columns, columns, strict=True)), *rows]:
        print("  ".join(str(row[c]).ljust(widths[c]) for c in columns))
    machine = {
        "cores": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__,
        "python": platform.python_version(), "platform": platform.platform(),
    }  # fmt: skip
    target = Path(__file__).parent / "results" / f"{name}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    print(f"-> {target}", file=sys.stderr)
