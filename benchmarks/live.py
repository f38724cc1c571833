"""Live runs on this machine: rounds beside simulated ones, what an operation costs, and clients that are killed.

    python -m benchmarks.live [--quick]

On an idle machine, rounds from the second one on should take within 10 % of the simulation with the rates that were
measured. A client that is killed at any instant leaves no process behind and lets nothing wait.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import psutil
import yaml

from sfl_sim.features.live.calibration import calibrate_live
from sfl_sim.metrics.agreement import FIRST, rounds_beside
from sfl_sim.runs.news import silent
from sfl_sim.runs.trial import Settings
from sfl_sim.studies.train import run_study

SCENARIO = {
    "name": "bench_live",
    "data": {"name": "digits"},
    "model": {"name": "cnn_small", "cut": 1},
    "method": {"name": "splitfed_v2"},
    "clients": {
        "count": 5,
        "compute": {"macs_per_s": [1.0e8, 1.5e8, 1.25e8, 0.75e8, 1.0e8]},
        "network": {"uplink_bps": 16.0e6, "downlink_bps": 30.0e6, "latency_s": 0.01},
    },
    "server": {"macs_per_s": 5.0e8},
    "train": {"rounds": 4, "batch_size": 32},
}
KILLS, AT_MOST_S = 10, 120
"""How many clients are killed, and how long a run may take then."""


def live(scenario: Path, out: Path) -> subprocess.Popen[str]:
    """Begin a live run."""
    command = [sys.executable, "-m", "sfl_sim", "live", str(scenario), "--out", str(out), "-q"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def agreement(scenario: Path, place: Path) -> None:
    """Print measured over simulated rounds, and what operations cost besides."""
    load = psutil.getloadavg()[0]
    live(scenario, place / "live").wait()
    run_study(calibrate_live(place / "live").study, place / "simulated", Settings(timing_only=True, jobs=1), silent)
    measured, simulated = (pd.read_parquet(place / run / "rounds.parquet") for run in ("live", "simulated"))
    beside = rounds_beside(measured, simulated)
    late = beside[beside["round"] >= FIRST]
    ratios = ", ".join(f"{ratio:.3f}" for ratio in late["ratio"])
    print(f"rounds measured over simulated: {ratios} (load before: {load:.2f})")
    steps = pd.read_parquet(place / "live" / "steps.parquet")
    print(f"from the end of an operation until the driver knows: {1000 * steps['late_s'].median():.2f} ms")
    sent = steps[steps["moved_bytes"] > 0]
    print(f"framing of a message: {(sent['moved_bytes'] - sent['size_bytes']).median():.0f} bytes")


def kills(scenario: Path, place: Path, n: int) -> None:
    """Kill a client at a random instant, `n` times; print what became of the run."""
    draw = random.Random(0)
    for number in range(n):
        run = live(scenario, place / f"killed{number}")
        at_s = draw.uniform(4, 25)
        time.sleep(at_s)
        nodes = [
            process
            for process in psutil.Process(run.pid).children(recursive=True)
            if process.ppid() != run.pid and "sfl_sim.features.live.local" in process.cmdline()
        ]
        if nodes:
            draw.choice(sorted(nodes, key=lambda process: process.pid)[1:]).kill()  # the first is the server
        try:
            said, _ = run.communicate(timeout=AT_MOST_S)
        except subprocess.TimeoutExpired:
            run.kill()
            said = "HANGS"
        left = [process for process in nodes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
        what = "a client" if nodes else "nobody"
        print(f"{what} killed after {at_s:.1f} s: exit {run.returncode}, {len(left)} processes left; {said.strip()}")


def main() -> None:
    """Run all of it."""
    quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder, "bench_live.yaml")
        scenario.write_text(yaml.safe_dump(SCENARIO), encoding="utf-8")
        agreement(scenario, Path(folder))
        kills(scenario, Path(folder), 1 if quick else KILLS)


if __name__ == "__main__":
    main()
