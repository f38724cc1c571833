"""Runs and judges the study of live rounds: research/results/live.md.

    python -m research.live.study run REPORTS        (every variant live, on this machine; keep it idle meanwhile)
    python -m research.live.study tell REPORTS       (calibrates by one of them, and predicts the others)

Run it from the root of the repository. A variant that has been run is kept.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from sfl_sim.features.live.calibration import calibrate_live
from sfl_sim.features.live.study import simulate
from sfl_sim.metrics.agreement import FIRST
from sfl_sim.runs.news import silent
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.files import scenario_file
from sfl_sim.scenario.load import Study, dump_study, extended, load
from sfl_sim.studies.train import run_study

SCENARIOS = "live/digits", "live/fashion"
CALIBRATES = "splitfed_v2, cut=1"
"""The variant by which devices, links and server are calibrated."""
COSTS = "macs", "measured"
"""MACs alone, and costs of calls, moved data and weights that `devices measure` tells of this machine and network."""
BUSY = {"server.macs_per_s": 1.0e8}
"""A server that is five times slower, so that jobs wait for it."""


def variants(name: str) -> Iterator[tuple[str, Study]]:
    """Generate each variant of a scenario, and the first one with a busy server, as a study of its own."""
    study = load(scenario_file(name))
    for variant in study.variants:
        scenario = variant.scenario
        layer = {"grid": [], "method.name": scenario.method.name, "model.cut": scenario.model.cut}
        one = extended(study, layer)
        yield variant.name, one
        if variant.name == CALIBRATES:
            yield f"{variant.name}, busy server", extended(one, BUSY)


def place(reports: Path, scenario: str, variant: str) -> Path:
    """Give the folder of a variant's live run."""
    return reports / f"{scenario}_{variant}".replace("/", "_").replace(", ", "_").replace("=", "").replace(" ", "_")


def run(reports: Path) -> None:
    """Run every variant that has not been run."""
    reports.mkdir(parents=True, exist_ok=True)
    for scenario in SCENARIOS:
        for variant, study in variants(scenario):
            folder = place(reports, scenario, variant)
            if not folder.exists():
                file = reports / f"{folder.name}.yaml"
                file.write_text(dump_study(study), encoding="utf-8")
                subprocess.run([sys.executable, "-m", "sfl_sim", "live", str(file), "--out", str(folder)], check=True)


def rounds_s(folder: Path) -> pd.Series:
    """Give the seconds of a run's rounds from the second one on."""
    rounds = pd.read_parquet(folder / "rounds.parquet")
    rounds = rounds[rounds["round"] >= FIRST]
    return rounds["ended_s"] - rounds["started_s"]


def weights(folder: Path) -> str:
    """Give the digest of a run's trained model."""
    return str(json.loads((folder / "summary.json").read_text())["variants"][0]["weights_digest"])


def simulated_s(study: Study, folder: Path) -> float:
    """Give the seconds of a round by the clock."""
    run_study(study, folder, Settings(timing_only=True, jobs=1, resume=folder.exists()), silent)
    return float(rounds_s(folder).median())


def tell(reports: Path) -> None:
    """Print measured rounds, and what the calibration by one variant predicts of each."""
    rows = []
    for scenario in SCENARIOS:
        for variant, study in variants(scenario):
            folder = place(reports, scenario, variant)
            measured = rounds_s(folder)
            row = {"scenario": scenario, "variant": variant, "measured_s": measured.median(),
                   "spread": measured.std() / measured.mean()}  # fmt: skip
            row["load"] = pd.read_parquet(folder / "nodes.parquet")["load"].iloc[0]
            simulated, recorded = simulate(folder, silent)
            digests = {weights(place) for place in (folder, recorded or simulated)}
            row["weights"] = "equal" if len(digests) == 1 else "differ"
            own = calibrate_live(folder).study
            row["own rates"] = measured.median() / simulated_s(own, reports / "simulated" / f"{folder.name}_own")
            for cost in COSTS:
                calibrates = place(reports, scenario, CALIBRATES)
                known = calibrate_live(calibrates, cost if cost == "macs" else str(costs_of(reports, scenario)))
                layer = {"method.name": study.base.method.name, "model.cut": study.base.model.cut}
                if "busy" in variant:
                    server = known.study.base.server.macs_per_s
                    layer["server.macs_per_s"] = server * BUSY["server.macs_per_s"] / study_server(scenario)
                predicted = simulated_s(extended(known.study, layer), reports / "simulated" / f"{folder.name}_{cost}")
                row[f"predicted by {cost}"] = measured.median() / predicted
            rows.append(row)
    table = pd.DataFrame(rows)
    table.to_csv(reports / "live.csv", index=False, float_format="%.4g")
    print(table.to_string(index=False, float_format="%.3g"))


def costs_of(reports: Path, scenario: str) -> Path:
    """Measure the parts of a scenario's network on this machine, and give the file of their costs."""
    name = scenario.replace("/", "_")
    rows, devices = reports / f"{name}_parts.csv", reports / f"{name}_devices.csv"
    if not devices.exists():
        measure = [
            "devices",
            "measure",
            scenario,
            "--name",
            "here",
            "--cuts",
            "1,2,3",
            "--batches",
            "8,32",
            "--threads",
            "1",
        ]
        for command in ([*measure, "--out", str(rows)], ["devices", "fit", str(rows), "--out", str(devices)]):
            subprocess.run([sys.executable, "-m", "sfl_sim", *command], check=True)
    return devices.with_name(f"{devices.stem}_cost.csv")


def study_server(scenario: str) -> float:
    """Give the rate of a scenario's own server."""
    rate = load(scenario_file(scenario)).base.server.macs_per_s
    assert rate
    return rate


if __name__ == "__main__":
    {"run": run, "tell": tell}[sys.argv[1]](Path(sys.argv[2]))
