"""FedAvg in sfl-sim and its peers: seconds per round, from the start of the process to the first round, and accuracy.

    python -m benchmarks.peers [--quick] [PEER ...]

Ten clients train cnn_small on digits: batch 64, SGD with momentum, next to no evaluation. The peers get the images,
orders and initial weights of a sfl-sim scenario; the weights after the first round are asserted equal up to rounding,
and those after the last are scored by one function. sfl-sim runs as its command line does, with clock, records and
storage. The peers get their images as normalised tensors in memory. pfl-research also runs with everything of ours that
is a setting (channels_last, fused SGD, allocator), and APPFL without the collections of garbage that it forces. All
sides take turns. CPU seconds are those of all processes of a side: Flower trains two clients at once on a thread each.

Each peer has an environment of its own (`environments.py`); one that has not been made is skipped. Goals: a round of
each peer over ours at least 1.0, and until the first is done at least 1.5.
"""

import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.child import Child
from benchmarks.options import options
from benchmarks.pairs import RESULTS, ratio
from benchmarks.peers.environments import python, versions
from benchmarks.peers.training import BATCH, LR, MOMENTUM
from benchmarks.plain import initial_model
from benchmarks.workload import CPU, order
from sfl_sim.engine.experiment import Experiment
from sfl_sim.scenario.load import parse

CLIENTS = 10
MODEL = "cnn_small"
PEERS = {  # environment, module and arguments
    "fluke": ("fluke", "fluke"),
    "pfl-research": ("pfl-research", "pfl_research", "as-it-comes"),
    "pfl-research, our settings": ("pfl-research", "pfl_research", "our-settings"),
    "Flower": ("Flower", "flower"),
    "APPFL, no forced collections": ("APPFL", "appfl", "lean"),
    "APPFL": ("APPFL", "appfl", "as-it-comes"),
}
OURS = "ours"
Taken = dict[str, list[tuple[float, float]]]
"""What one side has taken: CPU seconds, and seconds, of each start until the first round is done, and of each round."""
TOLERANCE = 1e-4
"""Largest difference of float32 weights after a round, relative to the largest; the model has no batch norm."""


def scenario(rounds: int) -> dict[str, Any]:
    return {
        "name": "peers",
        "data": {"name": "digits", "partition": {"kind": "iid"}},
        "model": {"name": MODEL, "cut": 1},
        "method": {"name": "fedavg"},
        "clients": {"count": CLIENTS},
        "train": {"rounds": rounds, "batch_size": BATCH, "lr": LR, "momentum": MOMENTUM},
    }


class Comparison:
    """Comparison of all sides; the files that both sides need are in `folder`.

    Attributes:
        after: our weights after each round.
        scores: accuracies of the sides after the last round that was measured.
    """

    def __init__(self, rounds: int, folder: Path) -> None:
        self.folder = folder
        wanted = scenario(rounds)
        (variant,) = parse(wanted).variants
        experiment = Experiment(variant.scenario, CPU)
        self.data, net = experiment.dataset, experiment.method.task.network
        self.initial = initial_model(MODEL, net)
        self.after, visits = [], []
        for number, _ in enumerate(experiment.rounds(), start=1):
            named = experiment.weights().items()
            self.after.append({name.removeprefix("part1."): weights.copy() for name, weights in named})
            visits.append([order(experiment.shares[client], client, number) for client in range(CLIENTS)])
        self.workload_file = folder / "workload.pt"
        x = self._normalised(self.data.x_train)
        torch.save({"model": self.initial, "x": x, "y": self.data.y_train, "visits": visits}, self.workload_file)
        self.scenario_file = folder / "scenario.yaml"
        self.scenario_file.write_text(yaml.safe_dump(wanted | {"data": wanted["data"] | {"test_samples": 10}}))

    def _normalised(self, images: torch.Tensor) -> torch.Tensor:
        mean, std = self.data.mean[:, None, None], self.data.std[:, None, None]
        return images.float().div_(255).sub_(mean).div_(std)

    def start(self, name: str) -> Child:
        folder = tempfile.mkdtemp(dir=self.folder)
        if name == OURS:
            return Child("benchmarks.peers.ours", self.scenario_file, folder)
        environment, module, *settings = PEERS[name]
        return Child(f"benchmarks.peers.{module}", self.workload_file, folder, *settings, python=python(environment))

    def measure(self, names: list[str], starts: int, rounds: int) -> dict[str, Taken]:
        """Let all sides take turns, first at starting, then at rounds, of which the first is untimed."""
        taken: dict[str, Taken] = {name: {"start": [], "round": []} for name in names}
        children: dict[str, Child] = {}
        with ExitStack() as running:
            for number in range(starts):
                for name in names if number % 2 == 0 else names[::-1]:
                    with ExitStack() as stack:
                        children[name] = child = stack.enter_context(self.start(name))
                        child.round()
                        taken[name]["start"].append((child.cpu_s, child.age_s))
                        print(name, taken[name]["start"][-1], file=sys.stderr)
                        if number == starts - 1:
                            running.push(stack.pop_all())
            for name in names[1:]:
                self._assert_equal(name, children[name].weights())
            for number in range(1 + rounds):
                for name in names if number % 2 == 0 else names[::-1]:
                    child = children[name]
                    before = child.cpu_s, child.age_s
                    child.round()
                    if number:
                        taken[name]["round"].append((child.cpu_s - before[0], child.age_s - before[1]))
                    print(name, taken[name]["round"][-1:], file=sys.stderr)
            self.scores = {name: self.accuracy(children[name].weights()) for name in names[1:]}
            self.scores[OURS] = self.accuracy(self.after[rounds + 1])
        return taken

    def accuracy(self, weights: dict[str, Any]) -> float:
        """Score weights on all test samples."""
        self.initial.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()}, strict=False)
        with torch.no_grad():
            found = self.initial(self._normalised(self.data.x_test)).argmax(1)
        return round(float((found == self.data.y_test).float().mean()), 4)

    def _assert_equal(self, name: str, found: dict[str, Any]) -> None:
        largest = max(abs(weights).max() for weights in self.after[0].values())
        for key, expected in self.after[0].items():
            apart = abs(found[key] - expected).max() / largest
            assert apart < TOLERANCE, f"{name}: {key} differs by {apart:.1g}"


def columns(ours: Taken, peer: Taken) -> dict[str, Any]:
    """Give the ratios of what was measured, and medians."""
    found: dict[str, Any] = {}
    for what in ours:
        for place, unit in enumerate(("CPU s", "s")):
            ours_s, peer_s = ([one[place] for one in side[what]] for side in (ours, peer))
            found |= {f"{what}, {unit}, peer / ours": ratio(peer_s, ours_s)}
            found |= {f"{what}, our {unit}": round(statistics.median(ours_s), 4)}
            found |= {f"{what}, its {unit}": round(statistics.median(peer_s), 4)}
    return found


def main() -> None:
    given = options(__doc__, PEERS)
    there = [name for name in given.chosen if python(PEERS[name][0]).exists()]
    if missing := sorted(set(given.chosen) - set(there)):
        print(f"peers: skipped {', '.join(missing)}: `make peers-environment` makes their environments, or set PEERS")
    if not there:
        return
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "PFL_PYTORCH_DEVICE": "cpu"}
    os.environ |= {"WANDB_MODE": "disabled"}
    starts, rounds = (2, 2) if given.quick else (2, 4)
    with tempfile.TemporaryDirectory() as folder:
        # Played are the first, the untimed, and the timed ones; nobody waits for an end.
        comparison = Comparison(rounds + 3, Path(folder))
        taken = comparison.measure([OURS, *there], starts, rounds)
    rows = [
        {
            "peer": name,
            "versions": versions(PEERS[name][0]),
            **columns(taken[OURS], taken[name]),
            "our accuracy": comparison.scores[OURS],
            "its accuracy": comparison.scores[name],
        }
        for name in there
    ]
    if not given.quick:
        known = json.loads((RESULTS / "peers.json").read_text())["rows"]
        rows += [row for row in known if row["peer"] not in there]  # measured before
    given.publish("peers", rows)


if __name__ == "__main__":
    main()
