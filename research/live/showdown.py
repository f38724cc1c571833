"""Tells rounds of real processes before they run, in five ways: research/results/showdown.md.

    python -m research.live.showdown all REPORTS      (Linux, root; or its steps one by one:)
    python -m research.live.showdown calibrate REPORTS    (measures this machine: no judged run)
    python -m research.live.showdown predict REPORTS      (writes research/results/data/showdown_2_told.csv)
    python -m research.live.showdown run REPORTS          (writes research/results/data/showdown_2_measured.csv)
    python -m research.live.showdown tell                 (the tables)

Run it from the root of the repository. $APPFL_PYTHON is a Python with appfl 1.12.0. A run is tried once. This is the
second attempt: on an idle machine, with new seeds, and with costs that `devices measure` has measured there at the cuts
that are not judged. The first one ran on a busy machine, with the shipped costs; its CSV files begin with `showdown_1`.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy.stats import kendalltau

from sfl_sim.build.setup import setup_of
from sfl_sim.features.live.calibration import calibrate_live
from sfl_sim.features.live.run import CPU
from sfl_sim.metrics.agreement import FIRST
from sfl_sim.ops import SERVER, priced
from sfl_sim.runs.news import silent
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import Study, extended, parse
from sfl_sim.sim.prices import Prices
from sfl_sim.studies.train import run_study
from sfl_sim.training.steps import TrainAlone

DATA = Path("research/results/data")
TOLD, MEASURED = DATA / "showdown_2_told.csv", DATA / "showdown_2_measured.csv"
N, CORES = 8, 2
METHODS = "fedavg", "splitfed_v1", "splitfed_v2"
WORLDS = {
    "netns": "devices slowed down, messages by the kernel over shaped links behind a shared one",
    "cores": "processes on two cores, loopback",
}
SPEEDS = [0.25, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3]
"""Of devices in `netns`, relative; the first client is the straggler. Its link is a third of the next one's."""
LINKS = [1.0, 3.0, 3.2, 3.4, 3.6, 3.8, 4.0, 4.2]
EPOCHS = [3, 1, 1, 1, 1, 1, 1, 1]
"""In `cores`, where all devices are alike, the straggler trains more."""
OVERHEAD = {"share": 0.0456, "message_bytes": 140}
MESSAGE_S = 0.0025
"""What software takes for a message, of docs/howto/shared-links.md."""
FREE_BPS = 1e10
COSTS = "torch"
"""The cost profile of the runtime, with which `devices fit` begins, and which stays where it finds no better one."""


@dataclass(frozen=True)
class Network:
    """A network, its cut, and how large its world is; amounts are of a sample, as `sfl-sim list layers` tells them.

    Attributes:
        layers: how many it has.
        samples, batch: a client's, and of a mini-batch.
        macs_per_s: of a device with speed 1 and of the server.
        scale: of links: a megabit per second, times LINKS up and twice that down; four and eight are shared.
        macs, macs_below: multiply-accumulates of a forward pass, whole and below the cut.
        cut_bytes, model_bytes, below_bytes: of activations at the cut, of the model, and of its part below the cut.
    """

    layers: int
    cut: int
    samples: int
    batch: int
    macs_per_s: tuple[float, float]
    scale: float
    macs: int
    macs_below: int
    cut_bytes: int
    model_bytes: int
    below_bytes: int


NETWORKS = {
    "lenet5": Network(5, 1, 40, 20, (1.0e8, 5.0e8), 1.0, 416_520, 117_600, 4_704, 246_824, 624),
    "cnn8": Network(8, 2, 8, 4, (4.5e8, 1.5e9), 10.0, 75_367_936, 14_676_480, 50_176, 15_472_680, 75_264),
}


@dataclass(frozen=True)
class Case:
    """A judged run."""

    world: str
    network: str
    method: str

    @property
    def of(self) -> Network:
        """What its network is."""
        return NETWORKS[self.network]

    @property
    def name(self) -> str:
        """Give the name of its folder."""
        return f"{self.world}_{self.network}_{self.method}"

    def scenario(self) -> dict[str, Any]:
        """Give its scenario."""
        net = self.of
        clients: dict[str, Any] = {"count": N, "compute": {"macs_per_s": [net.macs_per_s[0] * s for s in SPEEDS]}}
        mbps = 1e6 * net.scale
        clients["network"] = {
            "uplink_bps": [mbps * s for s in LINKS],
            "downlink_bps": [2 * mbps * s for s in LINKS],
            "latency_s": 0.0,
        }
        train: dict[str, Any] = {"rounds": 3, "batch_size": net.batch, "lr": 0.05}
        if self.world == "netns":
            clients["network"]["shared"] = {"access_points": 1, "backhaul_bps": {"up": 4 * mbps, "down": 8 * mbps}}
        else:
            train["local_epochs"] = EPOCHS
        return {
            "name": self.name,
            "seed": 6,
            "data": {"name": "fashion_mnist", "train_samples": N * net.samples, "test_samples": 100},
            "model": {"name": self.network} | ({} if self.method == "fedavg" else {"cut": net.cut}),
            "method": {"name": self.method},
            "clients": clients,
            "server": {"order": "fcfs", "macs_per_s": net.macs_per_s[1]},
            "train": train,
        }


CASES = [Case(world, network, method) for world in WORLDS for network in NETWORKS for method in METHODS]


# --------------------------------------------------------------------------------------------------------- calibration


def calibrate(reports: Path) -> None:
    """Run two clients with another cut and seed on this machine as it is, and measure the parts at other cuts."""
    reports.mkdir(parents=True, exist_ok=True)
    for name, net in NETWORKS.items():
        scenario = Case("cores", name, "splitfed_v1").scenario()
        scenario["clients"] = {"count": 2, "compute": {"macs_per_s": 1e9}, "network": {"uplink_bps": 1e9}}
        scenario["clients"]["network"]["downlink_bps"] = 1e9
        scenario |= {"seed": 10, "model": {"name": name, "cut": net.cut + 1}}
        del scenario["train"]["local_epochs"]
        file = reports / f"calibrate_{name}.yaml"
        file.write_text(yaml.safe_dump(scenario), encoding="utf-8")
        live, measured = reports / f"{name}_calibration", reports / f"{name}.csv"
        if not live.exists():
            _sfl_sim("live", str(file), "--emulate", "none", "--out", str(live), "-q")
        if not measured.exists():
            cuts = ",".join(str(cut) for cut in range(1, net.layers) if cut != net.cut)
            settings = f"--threads 1 --cuts {cuts} --batches 1,{net.batch}".split()
            _sfl_sim("devices", "measure", str(file), *settings, "--out", str(measured))
            _sfl_sim("devices", "fit", str(measured), "--cost", COSTS, "--out", str(reports / f"{name}_device.csv"))


def _sfl_sim(*words: str) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "sfl_sim", *words], check=True)


def costs_of(reports: Path, network: str) -> str:
    """Name the costs that `devices fit` has found to be better than the runtime's, or else the runtime's."""
    own = reports.absolute() / f"{network}_device_cost.csv"
    return str(own) if own.exists() else COSTS


def machine_of(reports: Path, network: str, cost: str | None) -> tuple[float, float]:
    """Give the rates of a client's process with a core of its own, and of the server's, by the calibrating run."""
    base = calibrate_live(reports / f"{network}_calibration", cost).study.base
    rates = base.clients.compute.macs_per_s
    assert isinstance(rates, list)
    assert base.server.macs_per_s
    return float(np.median(rates)), base.server.macs_per_s


# -------------------------------------------------------------------------------------------------------------- tellers

Told = dict[str, Any]
"""What is told of a round: round_s, bytes and ends_s, the seconds until each client's last operation; or `cannot`."""


def by_sfl(case: Case, reports: Path, cost: str | None) -> Told:
    """Let sfl-sim tell it, by MACs alone or by measured costs and overheads."""
    study = parse(case.scenario())
    layer: dict[str, Any] = {} if cost is None else {"clients.compute.cost": cost, "server.cost": cost}
    if case.world == "cores":
        client, server = machine_of(reports, case.network, cost)
        layer |= {
            "clients.compute.macs_per_s": client * CORES / N,
            "server.macs_per_s": server,
            "clients.network.uplink_bps": FREE_BPS,
            "clients.network.downlink_bps": FREE_BPS,
            "clients.network.latency_s": MESSAGE_S if cost else 0.0,
        }
    elif cost:
        client, server = (seconds / by_macs for seconds, by_macs in zip(*map(whole_step_s, (
            extended(study, layer), study)), strict=True))  # fmt: skip
        layer["clients.compute.macs_per_s"] = [client * case.of.macs_per_s[0] * speed for speed in SPEEDS]
        layer["server.macs_per_s"] = server * case.of.macs_per_s[1]
        layer["clients.network.overhead"] = OVERHEAD
    folder = reports / "told" / f"{case.name}_{'macs' if cost is None else 'costs'}"
    run_study(extended(study, layer), folder, Settings(timing_only=True, jobs=1), silent)
    return found_in(folder, "bytes")


def whole_step_s(study: Study) -> tuple[float, float]:
    """Price a training step of the whole network: at client 4, whose speed is 1, and at the server."""
    setup = setup_of(study.base, pixels=True)
    task = setup.method(CPU).task
    (whole,), batch = task.split(), next(task.data.batches(0, 1))
    work, prices = priced(TrainAlone(task.optimiser(1, 0)), whole, batch), Prices(setup.fleet)
    return prices.computing_s(4, work, 0), prices.computing_s(SERVER, work, 0)


def by_sheet(case: Case, reports: Path) -> Told:
    """Let a spreadsheet tell it: MACs over rate and bytes over rate, three passes a step, equal shares of links."""
    net, ends_s, moved = case.of, [], 0.0
    for c in range(N):
        rate, server, up_bps, down_bps, epochs = amounts(case, reports, c)
        trained = net.samples * epochs
        if case.method == "fedavg":
            up = down = net.model_bytes
            lasts_s = 3 * net.macs * trained / rate
        else:
            up = down = net.below_bytes + trained * net.cut_bytes
            lasts_s = 3 * trained * (net.macs_below / rate + (net.macs - net.macs_below) / server)
        ends_s.append(lasts_s + 8 * up / up_bps + 8 * down / down_bps)
        moved += up + down
    return {"round_s": max(ends_s), "bytes": moved, "ends_s": ends_s}


def amounts(case: Case, reports: Path, client: int) -> tuple[float, float, float, float, int]:
    """Give what who knows no simulator knows: rates of device and server, links with an equal share, and epochs."""
    net = case.of
    if case.world == "cores":
        rate, server = machine_of(reports, case.network, None)
        return rate * CORES / N, server, FREE_BPS, FREE_BPS, EPOCHS[client]
    up_bps = 1e6 * net.scale * min(LINKS[client], 4 / N)
    return net.macs_per_s[0] * SPEEDS[client], net.macs_per_s[1], up_bps, 2 * up_bps, 1


def by_appfl(case: Case, reports: Path) -> Told:
    """Let APPFL's virtual time tell it, with the same rates, and one bandwidth that takes as long for both ways."""
    if case.method != "fedavg":
        return {"cannot": "vsim/client_profile.py: a client computes alone and moves a model twice; no cut, no server"}
    net, known = case.of, [amounts(case, reports, c) for c in range(N)]
    step_s = 3 * net.macs * net.batch / known[4][0]
    given = {
        "model_bytes": net.model_bytes,
        "steps": [net.samples // net.batch * epochs for *_, epochs in known],
        "compute_factor": [known[4][0] / rate for rate, *_ in known],
        "bandwidth_mbps": [2 / (1e6 / up + 1e6 / down) for _, _, up, down, _ in known],
        "step_s": step_s,
    }
    command = [os.environ["APPFL_PYTHON"], "research/live/showdown_appfl.py"]
    env = os.environ | {"PYTHONPATH": ""}
    said = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=True, env=env)
    return dict(json.loads(said.stdout.splitlines()[-1]))


def by_flgo(case: Case, reports: Path) -> Told:
    """Say why FLGo does not tell it."""
    if case.method != "fedavg":
        return {"cannot": "flgo/algorithm: no split learning"}
    return {"cannot": "flgo/simulator/base.py: a client's latency is what its user sets; nothing derives it from rates"}


def tellers(reports: Path) -> dict[str, Callable[[Case], Told]]:
    """Give all by name."""
    return {
        "sfl-sim, MACs": lambda case: by_sfl(case, reports, None),
        "sfl-sim, costs": lambda case: by_sfl(case, reports, costs_of(reports, case.network)),
        "spreadsheet": lambda case: by_sheet(case, reports),
        "APPFL vsim": lambda case: by_appfl(case, reports),
        "FLGo": lambda case: by_flgo(case, reports),
    }


def cpu_s() -> float:
    """Give the processor's seconds of this process and of those that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def predict(reports: Path) -> None:
    """Let all tell all cases, and write what they say."""
    rows = []
    for case in CASES:
        for name, teller in tellers(reports).items():
            began_s = cpu_s()
            told = teller(case)
            rows.append(vars(case) | {"teller": name, "cpu_s": cpu_s() - began_s} | written(told))
    pd.DataFrame(rows).to_csv(TOLD, index=False, float_format="%.5g")


def written(told: Told) -> dict[str, Any]:
    """Give what is told as cells of a row."""
    return told | {"ends_s": " ".join(f"{end_s:.4g}" for end_s in told.get("ends_s", []))}


# ------------------------------------------------------------------------------------------------------------ live runs


def found_in(folder: Path, size: str) -> Told:
    """Read what a run took, live or not: medians over the rounds that count."""
    rounds = pd.read_parquet(folder / "rounds.parquet").set_index("round")
    ops = pd.read_parquet(folder / "ops.parquet").query("client >= 0")
    began_s = ops["round"].map(rounds["started_s"]).astype(float)
    ends = ops.assign(end_s=ops["ended_s"] - began_s).groupby(["round", "client"])["end_s"].max()
    moved = ops if size == "bytes" else pd.read_parquet(folder / "steps.parquet")
    lasts_s = (rounds["ended_s"] - rounds["started_s"])[rounds.index >= FIRST]
    return {
        "round_s": float(lasts_s.median()),
        "bytes": float(moved[moved["round"] >= FIRST].groupby("round")[size].sum().median()),
        "ends_s": ends[ends.index.get_level_values("round") >= FIRST].groupby("client").median().tolist(),
        "spread": float(lasts_s.max() / lasts_s.min()),
    }


def run(reports: Path) -> None:
    """Run all cases that have not been tried, and write what they took."""
    for case in CASES:
        folder, file = reports / case.name, reports / f"{case.name}.yaml"
        if file.exists():
            continue
        file.write_text(yaml.safe_dump(case.scenario()), encoding="utf-8")
        emulate, began_s = "netns" if case.world == "netns" else "none", cpu_s()
        command = [sys.executable, "-m", "sfl_sim", "live", str(file), "--emulate", emulate, "--out", str(folder), "-q"]
        began_wall_s, load = time.monotonic(), os.getloadavg()[0]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        row = vars(case) | {"load_before": load, "cpu_s": cpu_s() - began_s, "wall_s": time.monotonic() - began_wall_s}
        if done.returncode:
            row["failure"] = done.stderr.strip().splitlines()[-1]
        else:
            nodes = pd.read_parquet(folder / "nodes.parquet")
            row |= {"load": nodes["load"].iloc[0], "slowdown": nodes["slowdown"].iloc[0]}
            row |= written(found_in(folder, "moved_bytes"))
        print(row, flush=True)
        pd.DataFrame([row]).to_json(reports / f"{case.name}.json", orient="records")
        rows = [json.loads((reports / f"{each.name}.json").read_text())[0] for each in tried(reports)]
        pd.DataFrame(rows).to_csv(MEASURED, index=False, float_format="%.5g")


def tried(reports: Path) -> Iterator[Case]:
    """Generate the cases that have been run."""
    yield from (case for case in CASES if (reports / f"{case.name}.json").exists())


# ---------------------------------------------------------------------------------------------------------------- table


def tell() -> None:
    """Print how far each was off, case by case and in short."""
    key = ["world", "network", "method"]
    both = pd.read_csv(TOLD).merge(pd.read_csv(MEASURED), on=key, suffixes=("", "_measured"), how="left")
    both["round"] = both["round_s_measured"] / both["round_s"]
    both["moved"] = both["bytes_measured"] / both["bytes"]
    both["order"] = [order_of(*ends) for ends in zip(both["ends_s"], both["ends_s_measured"], strict=True)]
    both["off"] = np.exp(np.abs(np.log(both["round"])))
    names = list(dict.fromkeys(both["teller"]))
    for of in ("round", "order", "moved"):
        table = both.pivot_table(index=key, columns="teller", values=of, sort=False).reindex(columns=names)
        print(f"\n{of}\n{table.round(3).to_string()}")
    shown = [*key, "round_s_measured", "spread_measured", "load", "slowdown"]
    print(both.drop_duplicates(key)[shown].round(2).to_string())
    for world, some in both.groupby("world", sort=False):
        print(f"\n{world}")
        for name, rows in some.groupby("teller", sort=False):
            told, worst = rows.dropna(subset=["round"]), rows.loc[rows["off"].fillna(0).idxmax()]
            off = f"off by {told['off'].median():.2f} in the median, {worst['off']:.2f} at worst"
            order = f"order {told['order'].median():.2f}, {told['order'].min():.2f} at worst"
            moved = f"bytes {told['moved'].min():.3f} to {told['moved'].max():.3f}"
            print(f"{name}: tells {len(told)} of {len(rows)}; {off} ({worst['network']}, {worst['method']}); "
                  f"{order}; {moved}; {rows['cpu_s'].sum():.1f} CPU seconds")  # fmt: skip
    print(both[both["cannot"].notna()].drop_duplicates(["teller", "cannot"])[["teller", "cannot"]].to_string())


def order_of(told: object, measured: object) -> float:
    """Give Kendall's tau-b of the instants at which clients end; NaN without both."""
    if not (isinstance(told, str) and isinstance(measured, str)):
        return float("nan")
    return float(kendalltau([float(end) for end in told.split()], [float(end) for end in measured.split()])[0])


def main() -> None:
    """Do what the command line asks for."""
    step, *place = sys.argv[1:]
    steps: dict[str, Callable[[Path], None]] = {"calibrate": calibrate, "predict": predict, "run": run}
    for name in steps if step == "all" else [step] if step in steps else []:
        steps[name](Path(place[0]))
    if step in ("all", "tell"):
        tell()


if __name__ == "__main__":
    main()
