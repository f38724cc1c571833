"""Seconds from `sfl-sim SCENARIO` to the first round, by phase, against importing torch and no more.

    python -m benchmarks.startup [--quick] [SCENARIO ...]

Starts alternate with processes that import torch alone, which no simulator on torch can undercut. `round 1` trains a
little, so what it takes is partly what torch sets up on first use. Images are made up: nothing is downloaded. Goal:
less than 3 s before round 1.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.child import ROOT
from benchmarks.options import options
from benchmarks.pairs import alternate, ratio

SCENARIOS = {  # overrides
    "heterogeneous_bw": [],
    "fashion_mnist_cnn8": [
        "data.name=synthetic",
        "data.shape=[1, 28, 28]",
        "data.samples=2000",
        "data.train_samples=2000",
        "data.test_samples=100",
    ],
}


def start(scenario: str) -> dict[str, float]:
    """Measure the seconds of each phase of one start."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [folder, scenario, *SCENARIOS[scenario]]
        command = [sys.executable, "-m", "benchmarks.startup_probe", str(time.perf_counter()), *arguments]
        return json.loads(subprocess.check_output(command, cwd=ROOT, text=True))


def import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


def measure(scenario: str, pairs: int) -> dict[str, object]:
    starts: list[dict[str, float]] = []
    _, torch_s = alternate(lambda: starts.append(start(scenario)), import_torch, pairs)
    del starts[0]  # the untimed one
    before_s = [sum(spent.values()) - spent["round 1"] for spent in starts]
    low, middle, high = statistics.quantiles(before_s, n=4)
    return {
        "scenario": scenario,
        "s before round 1": round(middle, 2),
        "quartiles": [round(low, 2), round(high, 2)],
        "over `import torch`": ratio(before_s, torch_s)["median"],
        **{phase: round(statistics.median(spent[phase] for spent in starts), 2) for phase in starts[0]},
    }


def main() -> None:
    given = options(__doc__, SCENARIOS)
    given.publish("startup", [measure(scenario, given.pairs()) for scenario in given.chosen])


if __name__ == "__main__":
    main()
