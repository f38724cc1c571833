"""FedAvg in sfl-sim, pfl-research and Flower: seconds per round, and from the start of the process to the first round.

    python -m benchmarks.peers [--quick] [MODEL ...]

10 of 20 clients with 500 images of Fashion-MNIST's shape each, batch 64, SGD with momentum, next to no evaluation. The
peers get the very images, participants, orders and initial weights of a sfl-sim scenario; the weights after the first
round are asserted equal up to rounding. sfl-sim runs as its command line does, with clock, records and storage. The
peers get their images as normalised tensors in memory, and pfl-research runs twice: as it comes, and with everything of
ours that is a setting (channels_last, fused SGD, allocator). Flower trains two clients at once on a thread each.

The peers' environment is $PEERS (default build/peers; `make peers-environment` makes it). Goals: ours / pfl-research at
most 1.05, Flower / ours at least 1.5 (lenet5), and less than 3 s before our first round.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.numpy import load_file

import sfl_sim
from benchmarks.child import ROOT, Child
from benchmarks.options import options
from benchmarks.pairs import alternate, ratio
from benchmarks.peers.training import BATCH, LR, MOMENTUM
from benchmarks.plain import initial_model
from benchmarks.workload import order
from sfl_sim.engine.experiment import Experiment
from sfl_sim.scenario.load import parse

MODELS = ("lenet5", "cnn8")
START_MODEL = "lenet5"
ENVIRONMENT = Path(os.environ.get("PEERS", ROOT / "build" / "peers")).absolute()
PEERS = {  # module and arguments
    "pfl-research": ["pfl_research", "as-it-comes"],
    "pfl-research, our settings": ["pfl_research", "our-settings"],
    "Flower": ["flower"],
}
TOLERANCE = 2e-5
"""Largest difference of float32 weights after a round, relative to the largest; neither model has a batch norm."""


def scenario(model: str, rounds: int, quick: bool) -> dict[str, Any]:
    samples = 64 if quick else 500
    return {
        "name": "peers",
        "data": {
            "name": "synthetic",
            "shape": [1, 28, 28],
            "samples": 20 * samples,
            "test_samples": 10,
            "partition": {"kind": "iid"},
        },
        "model": {"name": model, "cut": 1},
        "method": {"name": "fedavg"},
        "clients": {"count": 20, "participation": 0.5},
        "train": {"rounds": rounds, "batch_size": BATCH, "lr": LR, "momentum": MOMENTUM},
    }


class Comparison:
    """Comparison with a model; the files that both sides need are in `folder`."""

    def __init__(self, model: str, rounds: int, quick: bool, folder: Path) -> None:
        self.folder = folder
        wanted = scenario(model, rounds, quick)
        self.scenario_file = folder / "scenario.yaml"
        self.scenario_file.write_text(yaml.safe_dump(wanted))
        self.workload_file = folder / "workload.pt"
        torch.save(self._workload(wanted), self.workload_file)
        one_round = sfl_sim.run(wanted | {"train": wanted["train"] | {"rounds": 1}}, out=folder / "one", device="cpu")
        (checkpoint,) = one_round.folder.glob("checkpoints/*.safetensors")
        self.after_one_round = {name.removeprefix("part1."): w for name, w in load_file(checkpoint).items()}

    def _workload(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Make the model, data and visits that `benchmarks.peers.training.Workload` reads."""
        (variant,) = parse(wanted).variants
        experiment = Experiment(variant.scenario, device=None)
        data, net = experiment.dataset, experiment.method.task.network
        visits = []
        for number, round in enumerate(experiment.rounds(), start=1):
            clients = np.unique(round.ops["client"][round.ops["client"] >= 0]).tolist()
            visits.append([order(experiment.shares[client], client, number) for client in clients])
        mean, std = data.mean[:, None, None], data.std[:, None, None]
        x = data.x_train.float().div_(255).sub_(mean).div_(std)
        model = initial_model(wanted["model"]["name"], net)
        return {"model": model, "x": x, "y": data.y_train, "visits": visits}

    def ours(self) -> Child:
        return Child("benchmarks.peers.ours", self.scenario_file, tempfile.mkdtemp(dir=self.folder))

    def peer(self, name: str) -> Child:
        module, *settings = PEERS[name]
        return Child(f"benchmarks.peers.{module}", self.workload_file, *settings, python=ENVIRONMENT / "bin" / "python")

    def rounds(self, name: str, pairs: int) -> tuple[list[float], list[float]]:
        """Measure the seconds per round of ours and the peer's."""
        with self.ours() as ours, self.peer(name) as peer:
            peer.round()
            self._assert_equal(name, peer.weights())
            return alternate(ours.round, peer.round, pairs)

    def _assert_equal(self, name: str, found: dict[str, Any]) -> None:
        largest = max(abs(weights).max() for weights in self.after_one_round.values())
        for key, expected in self.after_one_round.items():
            apart = abs(found[key] - expected).max() / largest
            assert apart < TOLERANCE, f"{name}: {key} differs by {apart:.1g}"

    def starts(self, name: str, pairs: int) -> tuple[list[float], list[float]]:
        """Measure the seconds from the start of the process to the end of the first round, of ours and the peer's."""

        def starter(make: Callable[[], Child], seconds: list[float]) -> Callable[[], None]:
            def start() -> None:
                with make() as child:
                    child.round()
                    seconds.append(child.age_s)

            return start

        ours_s: list[float] = []
        peer_s: list[float] = []
        alternate(starter(self.ours, ours_s), starter(lambda: self.peer(name), peer_s), pairs)
        return ours_s[1:], peer_s[1:]


def row(model: str, what: str, name: str, ours_s: list[float], peer_s: list[float]) -> dict[str, Any]:
    found = ratio(ours_s, peer_s)
    return {
        "model": model,
        "what": what,
        "peer": name,
        "ours / peer": found["median"],
        "quartiles": found["quartiles"],
        "peer / ours": ratio(peer_s, ours_s)["median"],
        "our s": round(statistics.median(ours_s), 3),
        "its s": round(statistics.median(peer_s), 3),
        "its version": version(name),
    }


def version(name: str) -> str:
    package = {"Flower": "flwr"}.get(name, "pfl")
    ask = f"from importlib.metadata import version as v; print('{package}', v('{package}'), 'torch', v('torch'))"
    return subprocess.check_output([ENVIRONMENT / "bin" / "python", "-c", ask], text=True).strip()


def main() -> None:
    given = options(__doc__, MODELS)
    if not (ENVIRONMENT / "bin" / "python").exists():
        print(f"peers: skipped, there is no environment {ENVIRONMENT}: `make peers-environment` makes it, or set PEERS")
        return
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "PFL_PYTORCH_DEVICE": "cpu"}
    rows = []
    for model in given.chosen:
        with tempfile.TemporaryDirectory() as folder:
            pairs = given.pairs(16 if model == START_MODEL else 8)
            rounds = pairs + 3  # the checked, the untimed, and one that is never asked for: nobody waits for an end
            comparison = Comparison(model, rounds, given.quick, Path(folder))
            for name in PEERS:
                rows.append(row(model, "a round", name, *comparison.rounds(name, pairs)))
                print(rows[-1], file=sys.stderr)
                if model == START_MODEL:
                    rows.append(row(model, "first round done", name, *comparison.starts(name, given.pairs())))
                    print(rows[-1], file=sys.stderr)
    given.publish("peers", rows)


if __name__ == "__main__":
    main()
