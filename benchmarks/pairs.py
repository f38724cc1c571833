"""Reliable ratios of two times: `alternate` the two sides, report median and spread."""

import json
import os
import platform
import sys
from pathlib import Path

import torch

from sfl_sim.studies.paired_times import alternate as alternate
from sfl_sim.studies.paired_times import quartiles

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
    machine = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    target = folder / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    print(f"-> {target}", file=sys.stderr)
