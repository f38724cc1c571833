"""Gain of running seeds in parallel: `--jobs 2` on one thread each against one after another on two threads.

    python -m research.proofs.seeds [--quick] [MODEL ...]

Whole commands, start-up included: two seeds of a FedAvg scenario through the command line. The timelines are asserted
equal whatever the jobs and threads, and the weights whatever the jobs. (With the number of threads the last bits of
weights change, so a run on one thread, one after another, is what `--jobs 2` is held against.)
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.child import ROOT
from benchmarks.options import options
from benchmarks.pairs import alternate, ratio

WORKLOADS = {  # shape, samples per client, rounds: about ten seconds for each seed
    "lenet5": ([1, 28, 28], 640, 8),
    "mobilenet_v1": ([3, 32, 32], 128, 2),
}
CLIENTS, SEEDS = 10, 2
PAIRS = 4  # of whole runs, a minute and a half each on two slow cores


class Seeds:
    """Ways to run the seeds of one scenario; a run's digests stay for comparison."""

    def __init__(self, model: str, quick: bool, folder: Path) -> None:
        shape, samples, rounds = WORKLOADS[model]
        self.folder = folder
        self.scenario = folder / "scenario.yaml"
        scenario = {
            "name": "seeds",
            "repeats": SEEDS,
            "data": {
                "name": "synthetic",
                "shape": shape,
                "samples": CLIENTS * (8 if quick else samples),
                "test_samples": 10,
                "partition": {"kind": "iid"},
            },
            "model": {"name": model, "cut": 2},
            "method": {"name": "fedavg"},
            "clients": {"count": CLIENTS},
            "train": {"rounds": 1 if quick else rounds, "batch_size": 8 if quick else 64, "lr": 0.01},
        }
        self.scenario.write_text(yaml.safe_dump(scenario))

    def run(self, jobs: int, threads: int) -> list[dict[str, Any]]:
        """Run the seeds and return the summary of each."""
        out = Path(tempfile.mkdtemp(dir=self.folder)) / "run"
        command = [sys.executable, "-m", "sfl_sim", self.scenario, "--out", out, "--device", "cpu", "--quiet",
                   "--fresh", "--jobs", str(jobs), "--threads", str(threads)]  # fmt: skip
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return json.loads((out / "summary.json").read_text())["variants"]

    def side_by_side(self) -> None:
        self.found = self.run(jobs=2, threads=1)

    def one_after_another(self) -> None:
        self.expected = self.run(jobs=1, threads=2)

    def assert_equal(self) -> None:
        assert digests(self.found, "timeline") == digests(self.expected, "timeline")
        assert digests(self.found, "weights") == digests(self.run(jobs=1, threads=1), "weights")


def digests(seeds: list[dict[str, Any]], of: str) -> list[str]:
    return [seed[f"{of}_digest"] for seed in seeds]


def measure(model: str, quick: bool, pairs: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        seeds = Seeds(model, quick, Path(folder))
        one_s, side_s = alternate(seeds.one_after_another, seeds.side_by_side, pairs)
        seeds.assert_equal()
    gain = ratio(one_s, side_s)
    return {
        "model": model,
        "one after another / side by side": gain["median"],
        "quartiles": gain["quartiles"],
        "side by side s": round(statistics.median(side_s), 1),
        "digests": "equal",
    }


def main() -> None:
    given = options(__doc__, WORKLOADS)
    rows = [measure(model, given.quick, given.pairs(PAIRS)) for model in given.chosen]
    given.publish("seeds", rows, Path(__file__).parent / "results")


if __name__ == "__main__":
    main()
