"""Workload of `overhead` and `naive`: a model, random images of a few clients, and the simulator's side."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from sfl_sim.data.batches import ClientData, Images
from sfl_sim.data.loading import Dataset
from sfl_sim.data.partition import label_counts
from sfl_sim.methods import METHODS, Task
from sfl_sim.models.network import Network
from sfl_sim.models.zoo import network
from sfl_sim.rng import stream
from sfl_sim.scenario.sections import Clients, Server
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import fcfs
from sfl_sim.system.fleet import build_fleet
from sfl_sim.training.executors import Eager, Timing

CPU = torch.device("cpu")
LABELS, LR, MOMENTUM = 10, 0.01, 0.9
MODELS = {  # input shape, cut, samples per client
    "lenet5": ((1, 28, 28), 2, 512),
    "cnn8": ((1, 28, 28), 2, 256),
    "mobilenet_v1": ((3, 32, 32), 4, 128),
    "resnet18": ((3, 32, 32), 3, 128),
}


@dataclass(frozen=True)
class Workload:
    """Workload of a method and a model: `clients` clients with `samples` samples each, in mini-batches of `batch`."""

    model: str
    method: str
    quick: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        return MODELS[self.model][0]

    @property
    def cut(self) -> int:
        return MODELS[self.model][1]

    @property
    def clients(self) -> int:
        return 2 if self.quick else 4

    @property
    def batch(self) -> int:
        return 8 if self.quick else 64

    @property
    def samples(self) -> int:
        return 16 if self.quick else MODELS[self.model][2]

    @property
    def steps(self) -> int:
        """Number of mini-batches of a client in a round."""
        return self.samples // self.batch

    @cached_property
    def shares(self) -> list[NDArray[np.int64]]:
        return np.split(np.arange(self.clients * self.samples), self.clients)

    @cached_property
    def label_counts(self) -> NDArray[np.int64]:
        return label_counts(self.dataset.y_train.numpy(), self.shares, LABELS)

    @cached_property
    def dataset(self) -> Dataset:
        """Random images, with a mean and a standard deviation of 1/2."""
        rng = stream(0, "benchmark images")
        n = self.clients * self.samples
        x = torch.from_numpy(rng.integers(0, 256, (n, *self.shape), dtype=np.uint8))
        y = torch.from_numpy(rng.integers(0, LABELS, n))
        half = torch.full(self.shape[:1], 0.5, dtype=self.dtype)
        return Dataset("random", x, y, x[:1], y[:1], tuple(map(str, range(LABELS))), half, half)

    @cached_property
    def network(self) -> Network:
        return network(self.model, self.shape, LABELS, self.dtype)

    def order(self, client: int, round: int) -> NDArray[np.int64]:
        """Return the client's samples in the order of its round, as the simulator draws it."""
        return order(self.shares[client], client, round)

    def schedule(self, rounds: int) -> list[list[int]]:
        """List the client of each step of every round; clients that share a part-2 in the order of the server."""
        if self.method != "splitfed_v2":
            return [[c for c in range(self.clients) for _ in range(self.steps)]] * rounds
        timed = Simulated(self, train=False)
        return [timed.round() for _ in range(rounds)]


class Simulated:
    """EventClock's side: a method on the clock, without evaluation and storage."""

    def __init__(self, workload: Workload, train: bool = True, executor: Eager | None = None) -> None:
        device = CPU if train else None
        images = Images(workload.dataset, CPU, workload.dtype, True, augment=False) if train else None
        data = ClientData(workload.shares, workload.batch, images=images)
        kind = METHODS[workload.method]
        cuts = [workload.cut] * workload.clients if kind.is_split else []
        task = Task(
            workload.network, cuts, data, lr=LR, momentum=MOMENTUM, device=device,
            label_names=workload.dataset.label_names, label_counts=workload.label_counts,
        )  # fmt: skip
        fleet = build_fleet(workload.clients, 0, Clients(), Server())
        self.clients = range(workload.clients)
        self.method = kind(task, kind.Options())
        self.simulator = EventClock(fleet, executor or Eager() if train else Timing(), fcfs)
        self.number = 0
        self.simulator.run(self.method.setup(), 1)

    def round(self) -> list[int]:
        """Run one more round; returns the clients of the server's training jobs, in the order of service."""
        self.number += 1
        self.simulator.run(self.method.round(self.number, self.clients), self.number)
        rows = self.simulator.take_rows()
        jobs = rows[(rows["kind"] == b"train") & (rows["node"] == b"server")]
        return np.sort(jobs, order="started_s")["client"].tolist()

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the global model, named as in the whole network's `state_dict`."""
        return {name: tensor for part in self.method.model() for name, tensor in part.weights.named_tensors()}


def order(share: NDArray[np.int64], client: int, round: int) -> NDArray[np.int64]:
    """Return a client's samples in the order of its first epoch of a round, in a run with seed 0."""
    return stream(0, "batches", client, round, 0).permutation(share)
