"""Long runs in which clients go away and come back: constant memory, and records that account for every byte.

    PYTHONPATH=tests/support python -m benchmarks.soak [--quick] [CASE ...]

100 phones, of which those that are present take part, at most 10 a round; they share access points, their speed
jitters, and a phone that goes away in a round is lost in it. Everything runs as in a study, in a process of its own
that measures its memory and open files after every round; then the records are checked against each other. Each round
appends its rows to tables that are written at the end, and operations wait in memory until 100,000 can be written: more
growth would be a leak. Goals: less than 10 MB per 1,000 rounds, no file more than after the first rounds, and no
record that contradicts another one.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from soak import contradictions, soak

from benchmarks.options import options

ROUNDS = {"timing only": 10_000, "training": 500}
QUICK = 30
SETTLED = 0.2
"""Share of the rounds after which buffers and caches have reached their size."""
MB = 1e6
BARS = "▁▂▃▄▅▆▇█"


def measure(case, rounds):
    """Run a case and return its row of the table. Raises AssertionError if records contradict each other."""
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        after, files = soak(case, rounds, Path(folder) / "run")
        took_s = time.perf_counter() - began_s
        found = contradictions(Path(folder) / "run", rounds)
        assert not found, found
        ops = pq.read_metadata(Path(folder) / "run" / "ops.parquet").num_rows
    settled = int(SETTLED * rounds)
    return {
        "case": case,
        "rounds": rounds,
        "operations": ops,
        "MB when settled": round(after[settled - 1] / MB, 1),
        "MB after the last": round(after[-1] / MB, 1),
        "growth, MB per 1,000 rounds": round(slope(after[settled:]) * 1_000 / MB, 2),
        "most open files": max(files),
        "more than when settled": max(files[settled:]) - max(files[:settled]),
        "memory over rounds": line(after),
        "s": round(took_s),
    }


def slope(after):
    """Fit the growth of memory, in bytes per round."""
    return np.polyfit(range(len(after)), after, 1)[0]


def line(after, width=40):
    """Draw the memory over rounds, from 0, as a line of text."""
    highest = [max(part) for part in np.array_split(after, min(width, len(after)))]
    return "".join(BARS[int(each / max(highest) * (len(BARS) - 1))] for each in highest)


def main():
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
        return
    given = options(__doc__, ROUNDS)
    rows = []
    for case in given.chosen:
        rounds = QUICK if given.quick else ROUNDS[case]
        command = [sys.executable, "-m", "benchmarks.soak", "--one", case, str(rounds)]
        rows.append(json.loads(subprocess.check_output(command)))
        print(rows[-1], file=sys.stderr)
    given.publish("soak", rows)


if __name__ == "__main__":
    main()
