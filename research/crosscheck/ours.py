"""A small run of ours in float64, with all that another implementation needs to repeat it: weights, batches, order."""

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfl_sim.data.batches import Batch
from sfl_sim.engine.experiment import Experiment
from sfl_sim.scenario.load import parse
from sfl_sim.training.alternatives import replicas_by_name

State = dict[str, Tensor]
"""Parameters and running statistics by name: the layer's index in the uncut network, then its own names."""


def plain(shape: tuple[int, ...], n_labels: int) -> nn.Sequential:
    """Make four layers without batch norm."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.Tanh()),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), nn.Flatten()),
        nn.Sequential(nn.Linear(4 * shape[1] * shape[2], 8), nn.Tanh()),
        nn.Linear(8, n_labels),
    )


def normed(shape: tuple[int, ...], n_labels: int) -> nn.Sequential:
    """Make four layers, the first three with batch norm."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Linear(4 * shape[1] * shape[2], 8), nn.BatchNorm1d(8), nn.ReLU()),
        nn.Linear(8, n_labels),
    )


def late_normed(shape: tuple[int, ...], n_labels: int) -> nn.Sequential:
    """Make four layers, the second with batch norm, which can do with a single sample."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.Tanh()),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Linear(4 * shape[1] * shape[2], 8), nn.Tanh()),
        nn.Linear(8, n_labels),
    )


def early_normed(shape: tuple[int, ...], n_labels: int) -> nn.Sequential:
    """Make four layers, the first with batch norm."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), nn.Flatten()),
        nn.Sequential(nn.Linear(4 * shape[1] * shape[2], 8), nn.Tanh()),
        nn.Linear(8, n_labels),
    )


def whole(shape: tuple[int, ...], n_labels: int) -> nn.Sequential:
    """Make four layers of which the first has no weights, so that all are at the server if the cut comes after it."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Sequential(nn.Linear(math.prod(shape), 8), nn.Tanh()),
        nn.Sequential(nn.Linear(8, 8), nn.Tanh()),
        nn.Linear(8, n_labels),
    )


SCENARIO: dict[str, Any] = {
    "data": {"name": "synthetic", "shape": [1, 4, 4], "n_labels": 10, "samples": 400, "separation": 4.0,
             "partition": {"kind": "dominant_label", "p": 0.8}},
    "model": {"factory": plain, "cut": 1},
    "train": {"rounds": 3, "batch_size": 8, "lr": 0.1, "lr_decay": 0.9, "lr_min": 0.005, "precision": "float64",
              "agg_weights": "uniform"},
}  # fmt: skip
"""Ten clients, five batches each, one label that dominates each client."""


class Ours:
    """A run of `SCENARIO` with some `changes`, by section, and what it was made of.

    Attributes:
        initial: the model before the first round.
        models: the model after every round.
        served: of every round, the clients of the server's steps in their order.
        operations: of all rounds.
        rows: the rounds' figures.
        accuracy: of every round, the accuracy by label.
    """

    def __init__(self, **changes: Mapping[str, Any]) -> None:
        given = {key: {**SCENARIO.get(key, {}), **changes.get(key, {})} for key in SCENARIO.keys() | changes.keys()}
        self.experiment = Experiment(parse(given).variants[0].scenario, torch.device("cpu"))
        self.method, self.train = self.experiment.method, self.experiment.scenario.train
        self.data, self.cut = self.method.data, self.method.task.cuts[0] if self.method.is_split else 0
        self.initial = self.model()
        self.models, self.served, self.rows, self.accuracy = [], [], [], []
        operations = []
        for round in self.experiment.rounds():
            self.models.append(self.model())
            operations.append(round.ops)
            steps = round.ops[(round.ops["kind"] == b"train") & (round.ops["node"] == b"server")]
            steps.sort(order="started_s")
            self.served.append([int(client) for client in steps["client"]])
            self.rows.append(round.row)
            self.accuracy.append([label["accuracy"] for label in round.labels])
        self.operations = np.concatenate(operations)

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self.data)

    def model(self) -> State:
        """Copy the global model; what each client has of its own is named client0.(...)."""
        found = {}
        for name, replica in replicas_by_name(self.method.model()).items():
            owner = name.partition(".")[2].removeprefix("initial")
            for key, tensor in replica.weights.named_tensors():
                found[f"{owner}.{key}" if owner else key] = tensor.clone()
        return found

    def part(self, start: int = 0, stop: int | None = None) -> nn.Sequential:
        """Make a module of the layers `start` to `stop`, with our initial weights."""
        images = self.experiment.dataset.x_train
        scenario = self.experiment.scenario.model
        make = {made.__name__: made for made in (plain, normed, early_normed, late_normed, whole)}[
            str(scenario.factory).rpartition(":")[2]
        ]
        module = make(tuple(images.shape[1:]), self.experiment.dataset.n_labels)[start:stop]
        module = module.double().to(memory_format=torch.channels_last)  # as ours: sums are rounded by layout
        module.load_state_dict({key: self.initial[key] for key in floats(module)}, strict=False)
        return module

    def test_batches(self, size: int = 50) -> list[tuple[Tensor, Tensor]]:
        """Prepare the test set as training images are."""
        dataset, images = self.experiment.dataset, self.data.images
        return [
            (images.prepare(dataset.x_test[i : i + size]), dataset.y_test[i : i + size])
            for i in range(0, len(dataset.y_test), size)
        ]

    def epochs(self, client: int, from_round: int = 1) -> Iterator[list[Batch]]:
        """Yield the batches of a client, epoch by epoch through all rounds from `from_round` on."""
        rounds = range(from_round, self.train.rounds + 1)
        return chain.from_iterable(self.data.epochs(client, round) for round in rounds)


class Loader:
    """One client's data loader: every pass over it that is begun gives the batches of our next local epoch."""

    def __init__(self, ours: Ours, client: int, form: Any = tuple, from_round: int = 1) -> None:
        self.epochs = ours.epochs(client, from_round)
        self.n_batches = ours.data.n_batches(client) // ours.train.local_epochs
        self.form = form

    def __len__(self) -> int:
        return self.n_batches

    def __iter__(self) -> Iterator[Any]:  # a generator: a pass of which nothing is taken has not begun
        for batch in next(self.epochs):
            yield self.form(batch.load())


def floats(module: nn.Module) -> State:
    """Collect a module's parameters and running statistics."""
    return {key: tensor for key, tensor in module.state_dict().items() if tensor.is_floating_point()}


def copied(*modules: nn.Module) -> State:
    """Copy the state of a model that is cut into `modules`."""
    return {key: tensor.clone() for module in modules for key, tensor in floats(module).items()}


def distance(one: State, other: State) -> float:
    """Compute the largest difference of two states, which must have the same names."""
    if one.keys() != other.keys():
        raise ValueError(f"names that only one of the two has: {sorted(one.keys() ^ other.keys())}")
    return max(float((one[name] - other[name]).abs().max()) for name in one)
