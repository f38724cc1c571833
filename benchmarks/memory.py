"""Memory over rounds: 100,000 devices of which 1,000 take part in a round, timed only and trained.

    python -m benchmarks.memory [--quick] [CASE ...]

A small network on made-up 8x8 images, two samples a device, so that what remains is the participants' state: copies of
parts, gradients, and the activations of those that wait for the server at the same time. Everything runs as in a study,
operations are written to disk, and each case has a process of its own; a second one with 10 participants tells what the
others took. Freed memory stays in the process, so that what is resident after a round is the most that it ever took.
Operations wait in memory until 100,000 can be written. Goals: no growth over rounds, and less than 20 s to compose.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.options import options

DEVICES, PARTICIPANTS, FEW = 100_000, 1_000, 10
CASES = {  # method, max_graphs, rounds
    "timing only": ("splitfed_v2", None, 60),
    "splitfed_v2": ("splitfed_v2", None, 10),
    "splitfed_v2, max_graphs 10": ("splitfed_v2", 10, 10),
    "splitfed_v1": ("splitfed_v1", None, 10),
}
SETTLED = 5
"""Number of rounds after which buffers and caches have reached their size."""
MIB = 2**20


def scenario(case, devices, participants):
    method, max_graphs, rounds = CASES[case]
    data = {"name": "synthetic", "shape": [1, 8, 8], "samples": 2 * devices, "test_samples": 1_000}
    return {
        "data": data,
        "model": {"name": "cnn_small", "cut": 2},
        "clients": {"count": devices, "participation": participants / devices},
        "train": {"rounds": rounds, "batch_size": 2, "max_graphs": max_graphs},
        "method": {"name": method},
    }


def resident():
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure(case, devices, participants, rounds):
    """Measure the resident bytes when the run is built and after every round, and the seconds to build it."""
    from sfl_sim.engine.experiment import Experiment
    from sfl_sim.scenario.load import parse
    from sfl_sim.store.trial import TrialWriter
    from sfl_sim.training.hardware import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(1)
    began_s = time.perf_counter()
    device = None if case == "timing only" else torch.device("cpu")
    experiment = Experiment(parse(scenario(case, devices, participants)).variants[0].scenario, device)
    composed_s, after = time.perf_counter() - began_s, [resident()]
    with tempfile.TemporaryDirectory() as folder:
        trial = TrialWriter(Path(folder) / "trial", case, 0)
        trial.add_tables({"clients": experiment.clients()})
        results = experiment.rounds()
        for number in range(1, rounds + 1):
            result = next(results)
            trial.add_round(result.row, result.labels, result.ops)
            after.append(resident())
            news = f"{after[-1] / MIB:.1f} MiB after round {number}"
            print(f"{case}, {participants} participants: {news}", file=sys.stderr)
        trial.close({})
    return {
        "after": after,
        "composed_s": composed_s,
        "graphs": experiment.graphs.peak,
    }


def apart(*arguments):
    """Run `measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", "--one", *map(str, arguments)]
    return json.loads(subprocess.check_output(command))


def main():
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], *map(int, sys.argv[3:]))))
        return
    given = options(__doc__, CASES)
    rows = []
    for case in given.chosen:
        devices, rounds = (10_000, SETTLED + 1) if given.quick else (DEVICES, CASES[case][-1])
        many, few = apart(case, devices, PARTICIPANTS, rounds), apart(case, devices, FEW, SETTLED)
        after = many["after"]
        state = (after[SETTLED] - few["after"][SETTLED]) / (PARTICIPANTS - FEW)
        rows.append(
            {
                "case": case,
                "s to compose": round(many["composed_s"], 1),
                "MiB composed": round(after[0] / MIB),
                f"MiB after round {SETTLED}": round(after[SETTLED] / MIB),
                "MiB after the last": round(after[-1] / MIB),
                "growth, kB/round": round((after[-1] - after[SETTLED]) / (rounds - SETTLED) / 1e3, 1),
                "kB/participant": round(state / 1e3, 1),
                "most graphs": many["graphs"],
            }
        )
    given.publish("memory", rows)


if __name__ == "__main__":
    main()
