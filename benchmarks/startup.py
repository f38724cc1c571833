"""Seconds until a command answers, and from `sfl-sim SCENARIO` to the first round, by phase.

    python -m benchmarks.startup [--quick] [NAME ...]

Wall seconds of a command are right on a quiet machine only; CPU seconds (user and system) are fair on a shared one.
Starts of a scenario alternate with processes that import torch alone, which no simulator on torch can undercut. `round
1` trains a little, so what it takes is partly what torch sets up on first use. Images are made up: nothing is
downloaded. Goals: a command that needs no torch answers in 0.7 s, and round 1 begins after 2.5 s.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.child import ROOT
from benchmarks.options import options
from benchmarks.pairs import alternate, ratio

COMMANDS = [
    "--help",
    "list methods",
    "list schema",
    "check heterogeneous_bw --no-data",
    "heterogeneous_bw --set train.roundz=3",
    "heterogeneous_bw --set model.name=cnn_smal",
    "list layers resnet18",
    "check heterogeneous_bw",
]
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


def answer(command: str) -> tuple[float, float]:
    """Measure the wall and CPU seconds of a command."""
    before, start_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "sfl_sim", *command.split()], cwd=ROOT, capture_output=True, check=False)
    wall_s, after = time.perf_counter() - start_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure_command(command: str, times: int) -> dict[str, object]:
    answer(command)  # an untimed one
    wall_s, cpu_s = zip(*(answer(command) for _ in range(times)), strict=True)
    return {
        "sfl-sim": command,
        "s": round(statistics.median(wall_s), 2),
        "CPU s": round(statistics.median(cpu_s), 2),
        "least CPU s": round(min(cpu_s), 2),
    }


def start(scenario: str) -> dict[str, tuple[float, float]]:
    """Measure the wall and CPU seconds of each phase of one start."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [folder, scenario, *SCENARIOS[scenario]]
        command = [sys.executable, "-m", "benchmarks.startup_probe", str(time.perf_counter()), *arguments]
        return json.loads(subprocess.check_output(command, cwd=ROOT, text=True))


def import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


def measure(scenario: str, pairs: int) -> dict[str, object]:
    starts: list[dict[str, tuple[float, float]]] = []
    _, torch_s = alternate(lambda: starts.append(start(scenario)), import_torch, pairs)
    del starts[0]  # the untimed one
    before = [
        [sum(column) for column in zip(*(s for p, s in one.items() if p != "round 1"), strict=True)] for one in starts
    ]
    wall_s, cpu_s = zip(*before, strict=True)
    low, middle, high = statistics.quantiles(wall_s, n=4)
    return {
        "scenario": scenario,
        "s before round 1": round(middle, 2),
        "quartiles": [round(low, 2), round(high, 2)],
        "over `import torch`": ratio(wall_s, torch_s)["median"],
        "CPU s before round 1": round(statistics.median(cpu_s), 2),
        **{f"{phase}, CPU s": round(statistics.median(one[phase][1] for one in starts), 2) for phase in starts[0]},
    }


def main() -> None:
    given = options(__doc__, ["commands", *SCENARIOS])
    if "commands" in given.chosen:
        given.publish("startup_commands", [measure_command(command, given.pairs()) for command in COMMANDS])
    if chosen := [scenario for scenario in SCENARIOS if scenario in given.chosen]:
        given.publish("startup", [measure(scenario, given.pairs()) for scenario in chosen])


if __name__ == "__main__":
    main()
