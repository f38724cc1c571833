"""Overhead of the simulator over a hand-written loop in which assistants replay: KoReA-SFL, equal to the bit.

    python -m benchmarks.korea [--quick] [MODEL ...]

Four of twelve clients train a branch each, with three tenths as many samples of assistants as of their own. The loop
gets the requests to assistants; it has no clock and no messages, and needs no copies for assistants, since none of
these models has running statistics. Goals: those of `overhead`.
"""

import sys
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.options import options
from benchmarks.pairs import alternate, ratio
from benchmarks.plain import average, gathered, initial_model, prepared
from benchmarks.workload import LR, MOMENTUM, Simulated, Workload
from sfl_sim.rng import stream
from sfl_sim.training.hardware import keep_freed_memory

PAIRS = {"lenet5": 16, "cnn8": 8}
REPLAY = {"proportion": "fixed", "p0": 0.3, "alpha": 0.1}


@dataclass(frozen=True)
class Assisted(Workload):
    """Workload with three times as many clients as train in a round."""

    @property
    def participants(self) -> int:
        return super().clients

    @property
    def clients(self) -> int:
        return 3 * super().clients

    @cached_property
    def plans(self) -> list[list[tuple[int, list[Tensor]]]]:
        """Plans by round and branch: the client that trains it, and the samples of each assistant."""
        simulated = Simulated(self, **REPLAY)
        method, found = simulated.method, []
        for number in range(1, max(PAIRS.values()) + 4):
            simulated.round()
            drawn = stream(0, "korea branches", number).permutation(self.participants)
            found.append([(int(c), self._samples(method, int(c), number, i)) for i, c in enumerate(drawn)])
        return found

    def _samples(self, method, client: int, number: int, branch: int) -> list[Tensor]:
        asks = [share.ask for share in method.replays[client].shares]
        batches = [method.data.some(a, counts, "korea samples", number, branch, a) for a, counts in asks]
        return [torch.from_numpy(batch._epoch.order) for batch in batches]


class Plain:
    """Hand-written loop with modules and torch.optim."""

    def __init__(self, workload: Assisted, fused: bool = True) -> None:
        self.workload = workload
        self.fused = fused
        self.model = initial_model(workload.model, workload.network).to(memory_format=torch.channels_last)
        self.branches = [deepcopy(self.model) for _ in range(workload.participants)]
        self.number = 0

    def round(self) -> None:
        plan = self.workload.plans[self.number]
        self.number += 1
        for branch, (client, samples) in zip(self.branches, plan, strict=True):
            self._train(branch, client, samples)
        average(self.model, self.branches)
        alpha = REPLAY["alpha"]
        master = self.model.state_dict()
        with torch.no_grad():
            for branch in self.branches:
                for name, values in branch.state_dict().items():
                    values.copy_(torch.zeros_like(values).add_(values, alpha=1 / (1 + alpha))
                                 .add_(master[name], alpha=alpha / (1 + alpha)))  # fmt: skip

    def _train(self, branch: nn.Sequential, client: int, samples: list[Tensor]) -> None:
        work, data = self.workload, self.workload.dataset
        part1, part2 = branch[: work.cut], branch[work.cut :]
        first, second = (torch.optim.SGD(p.parameters(), LR, MOMENTUM, fused=self.fused) for p in (part1, part2))
        with torch.no_grad():
            features = torch.cat([part1(prepared(data.x_train[rows])) for rows in samples])
        labels = torch.cat([data.y_train[rows] for rows in samples])
        each = ceil(len(labels) / work.steps)
        for step, (x, y) in enumerate(gathered(work, client, self.number)):
            rows = slice(step * each, (step + 1) * each)
            activations = part1(x)
            leaf = torch.cat([activations.detach(), features[rows]]).requires_grad_()
            second.zero_grad()
            cross_entropy(part2(leaf), torch.cat([y, labels[rows]])).backward()
            second.step()
            first.zero_grad()
            activations.backward(leaf.grad[: len(x)])
            first.step()


def assert_equal_to_the_bit(workload: Assisted) -> None:
    simulated = Simulated(workload, **REPLAY)
    plain = Plain(workload, fused=False)  # see overhead.py
    for _ in range(2):
        simulated.round()
        plain.round()
    expected = plain.model.state_dict()
    for name, tensor in simulated.weights().items():
        assert torch.equal(tensor, expected[name]), f"{workload.model}: {name} differs"


def measure(workload: Assisted, pairs: int) -> dict[str, object]:
    assert_equal_to_the_bit(workload)
    found = ratio(*alternate(Simulated(workload, **REPLAY).round, Plain(workload).round, pairs))
    return {
        "model": workload.model,
        "method": workload.method,
        "simulated / plain": found["median"],
        "quartiles": found["quartiles"],
        "weights": "equal to the bit",
    }


def main() -> None:
    given = options(__doc__, PAIRS)
    keep_freed_memory()
    rows = []
    for model in given.chosen:
        rows.append(measure(Assisted(model, "korea", given.quick), given.pairs(PAIRS[model])))
        print(rows[-1], file=sys.stderr)
    given.publish("korea", rows)


if __name__ == "__main__":
    main()
