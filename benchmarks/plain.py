"""Hand-written loop that computes the same as the simulator: modules and torch.optim, no flows, no clock, no records.

With `gathered` batches, channels_last and fused optimisers it is a careful loop; with a DataLoader, torch's default
layout and optimisers it is the loop of papers' code.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.workload import CPU, LABELS, LR, MOMENTUM, Workload
from sfl_sim.models.network import Network
from sfl_sim.models.zoo import MODELS

Batches = Iterator[tuple[Tensor, Tensor]]


class Plain:
    """Training loop of a method, round after round.

    Args:
        workload: what is trained.
        schedule: for every round the client of each step.
        batches: a client's mini-batches of a round.
        layout: memory format of the model, and of what `batches` gives.
        fused: one kernel for the whole optimiser step.
    """

    def __init__(
        self,
        workload: Workload,
        schedule: list[list[int]],
        batches: Callable[[Workload, int, int], Batches],
        layout: torch.memory_format = torch.channels_last,
        fused: bool = True,
    ) -> None:
        self.workload = workload
        self.schedule = schedule
        self.batches = batches
        self.fused = fused
        self.model = initial_model(workload.model, workload.network).to(memory_format=layout)
        self.number = 0

    def round(self) -> None:
        self.number += 1
        if self.workload.method == "fedavg":
            self._fedavg()
        else:
            self._split(shared=self.workload.method == "splitfed_v2")

    def _fedavg(self) -> None:
        trained = []
        for client in range(self.workload.clients):
            model = deepcopy(self.model)
            optimiser = self._sgd(model)
            for x, y in self.batches(self.workload, client, self.number):
                step(model, optimiser, x, y)
            trained.append(model)
        average(self.model, trained)

    def _split(self, shared: bool) -> None:
        """Train a round of SplitFedV2 if all clients share a part-2, else of SplitFedV1."""
        n, cut = self.workload.clients, self.workload.cut
        part1, part2 = self.model[:cut], self.model[cut:]
        part1s = [deepcopy(part1) for _ in range(n)]
        part2s = [part2] * n if shared else [deepcopy(part2) for _ in range(n)]
        first = [self._sgd(part) for part in part1s]
        second = [self._sgd(part2)] * n if shared else [self._sgd(part) for part in part2s]
        batches = [self.batches(self.workload, client, self.number) for client in range(n)]
        for client in self.schedule[self.number - 1]:
            x, y = next(batches[client])
            activations = part1s[client](x)
            leaf = activations.detach().requires_grad_()
            step(part2s[client], second[client], leaf, y)
            first[client].zero_grad()
            activations.backward(leaf.grad)
            first[client].step()
        average(part1, part1s)
        if not shared:
            average(part2, part2s)

    def _sgd(self, module: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(module.parameters(), LR, MOMENTUM, fused=self.fused)


def initial_model(name: str, net: Network) -> nn.Sequential:
    """Make the initial model of a run with seed 0 as an ordinary module."""
    (whole,) = net.split(seed=0, device=CPU)
    model = MODELS[name](net.input_shape, LABELS).to(net.dtype)
    model.load_state_dict(dict(whole.weights.named_tensors()), strict=False)  # num_batches_tracked is no weight of ours
    return model


def step(model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimiser.zero_grad()
    cross_entropy(model(x), y).backward()
    optimiser.step()


def average(into: nn.Module, modules: list[nn.Module]) -> None:
    """Average every floating entry of the state dicts."""
    with torch.no_grad():
        states = [module.state_dict() for module in modules]
        for name, target in into.state_dict().items():
            if target.is_floating_point():
                total = torch.zeros_like(target)
                for state in states:
                    total.add_(state[name], alpha=1 / len(states))
                target.copy_(total)


def gathered(workload: Workload, client: int, round: int) -> Batches:
    """Gather the samples once an epoch, then slice, normalise and lay them out by batch."""
    order = torch.from_numpy(workload.order(client, round))
    x, y = (each.index_select(0, order) for each in (workload.dataset.x_train, workload.dataset.y_train))
    for start in range(0, len(order), workload.batch):
        batch = x[start : start + workload.batch].to(torch.float32, memory_format=torch.channels_last)
        yield batch.mul_(1 / 127.5).sub_(1), y[start : start + workload.batch]
