"""KoReA-SFL against a twin: docs/methods/korea.md as plain loops over torch.nn and torch.optim, without a simulator."""

from copy import deepcopy
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import pytest
import torch
from small_world import batch_norm_net, mlp, task, tensors, unsplit
from torch import nn

from sfl_sim.methods import METHODS
from sfl_sim.rng import stream
from sfl_sim.testing import simulate

EXACT = 1e-10
SAMPLES = [13, 7, 10, 4, 12, 9, 5]
ROUNDS = [[0, 2, 5], [4, 1, 0], [6, 3, 2], [5, 0, 4]]
"""Participants by round: three of seven clients, so there are three branches."""


@dataclass
class Branch:
    """A model, and the decayed sums of the label counts of its clients and of their weights."""

    part1: nn.Sequential
    part2: nn.Sequential
    labels: np.ndarray
    weight: float = 0.0


def state(part):
    """Collect the averaged tensors of a part: parameters, and running statistics of batch norm."""
    return {name: values for name, values in part.state_dict().items() if values.is_floating_point()}


def request(score, total):
    """Count the samples of each label to request: the less a label was seen, the more; `total` by largest remainder."""
    prior = np.maximum(0, score.mean() - score)
    exact = total * prior / prior.sum()
    counts = np.floor(exact).astype(int)
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return counts


class Twin:
    """KoReA-SFL on `work` by a plain loop; `model` is the master, `proportion` the last round's."""

    def __init__(self, work, n_branches, proportion, p0, refresh_features=True, joint_forward=True,
                 assistants="unselected", alpha=0.1, decay=0.5):  # fmt: skip
        self.work, self.rule, self.refreshes, self.is_joint = work, proportion, refresh_features, joint_forward
        self.proportion, self.assistants, self.alpha, self.decay = p0, assistants, alpha, decay
        net = unsplit(work)
        cut = work.cuts[0]
        self.branches = [
            Branch(deepcopy(net[:cut]), deepcopy(net[cut:]), np.zeros(work.network.n_labels)) for _ in range(n_branches)
        ]
        self.model = {}
        self.norms = []

    def round(self, number, clients):
        if self.rule == "window_ratio" and len(self.norms) > 1:
            now, before = np.mean(self.norms[-10:]), np.mean(self.norms[:-1][-10:])
            self.proportion = min(max(self.proportion * now / before, 0.01), 0.5)
        order = stream(self.work.seed, "korea branches", number).permutation(len(clients))
        norms = [self.train(i, branch, clients[order[i]], clients, number) for i, branch in enumerate(self.branches)]
        for side in ("part1", "part2"):
            states = [state(getattr(branch, side)) for branch in self.branches]
            for name in states[0]:
                master = sum(values[name] for values in states) / len(states)
                self.model[name] = master.clone()
                for values in states:
                    values[name].copy_((values[name] + self.alpha * master) / (1 + self.alpha))
        self.norms.append(sum(norms) / len(norms))

    def train(self, i, branch, main, clients, number):
        """A branch's round on the client `main`; gives its gradient norm."""
        work = self.work
        lr = work.lr * work.lr_decay ** (number - 1)
        optimisers = [
            torch.optim.SGD(part.parameters(), lr=lr, momentum=work.momentum, weight_decay=work.weight_decay)
            for part in (branch.part1, branch.part2)
        ]
        given = self.collect(i, branch, main, clients, number)
        features, labels = self.forward(branch.part1, given)
        squares = 0.0
        for batches in work.data.epochs(main, number):
            if self.refreshes:
                features, labels = self.forward(branch.part1, given)
            n_rows = ceil(len(labels) / len(batches))
            for b, batch in enumerate(batches):
                rows = slice(b * n_rows, (b + 1) * n_rows)
                x, y = batch.load()
                inputs = [branch.part1(x), features[rows]] if len(labels[rows]) else [branch.part1(x)]
                if self.is_joint:
                    inputs = [torch.cat(inputs)]
                scores = torch.cat([branch.part2(one) for one in inputs])
                for optimiser in optimisers:
                    optimiser.zero_grad()
                nn.functional.cross_entropy(scores, torch.cat([y, labels[rows]])).backward()
                parameters = [*branch.part1.parameters(), *branch.part2.parameters()]
                squares += sum(float(parameter.grad.square().sum()) for parameter in parameters)
                for optimiser in optimisers:
                    optimiser.step()
        return lr * squares / work.data.local_epochs

    def collect(self, i, branch, main, clients, number):
        """The samples of each assistant, in the order of asking."""
        work = self.work
        branch.labels = self.decay * branch.labels + work.label_counts[main]
        branch.weight = self.decay * branch.weight + 1
        if self.rule == "off":
            return []
        total = max(work.network.n_labels, int(SAMPLES[main] * self.proportion))
        missing = request(branch.labels / branch.weight, total)
        busy = clients if self.assistants == "unselected" else [main]
        candidates = [a for a in range(len(SAMPLES)) if a not in busy]
        found = []
        for a in stream(work.seed, "korea assistants", number, i).permutation(candidates):
            gives = []
            for sample in stream(work.seed, "korea samples", number, i, a).permutation(work.data.shares[a]):
                label = int(work.data.images.y[sample])
                if missing[label]:
                    missing[label] -= 1
                    gives.append(sample)
            if gives:
                found.append(torch.tensor(gives))
        return found

    def forward(self, part1, given):
        """Compute the features of assistants: each has a copy of part-1 in training mode, which is dropped."""
        images = self.work.data.images
        with torch.no_grad():
            features = [deepcopy(part1)(images.prepare(images.x[samples])) for samples in given]
        labels = [images.y[samples] for samples in given]
        return torch.cat(features or [torch.empty(0)]), torch.cat(labels or [torch.empty(0, dtype=torch.long)])


@pytest.mark.parametrize("build", [mlp, batch_norm_net])
@pytest.mark.parametrize(
    "options",
    [
        {"proportion": "off"},
        {"proportion": "fixed", "p0": 0.45},
        {"proportion": "fixed", "p0": 0.9, "alpha": 0.5, "decay": 0.2, "assistants": "all"},
        {"proportion": "fixed", "p0": 0.9, "refresh_features": False},
        {"proportion": "fixed", "p0": 0.9, "joint_forward": False},
        {"proportion": "window_ratio", "p0": 0.4},
        {"proportion": "window_ratio", "p0": 0.4, "refresh_features": False, "joint_forward": False},
    ],
    ids=lambda options: ", ".join(f"{key} {value}" for key, value in options.items()),
)
def test_what_is_learned_is_what_plain_loops_learn(build, options):
    settings = {"momentum": 0.5, "weight_decay": 1e-2, "lr": 0.05, "lr_decay": 0.9, "local_epochs": 2}
    assert_equal_learning(task(SAMPLES, build=build, **settings), options)


def assert_equal_learning(work, options):
    method = simulate(METHODS["korea"](work, METHODS["korea"].Options(**options)), ROUNDS).method
    twin = Twin(work, len(ROUNDS[0]), **{"p0": 0.01, **options})
    for number, clients in enumerate(ROUNDS, 1):
        twin.round(number, clients)
    found = tensors(method)
    assert found.keys() == twin.model.keys()
    assert all((values - twin.model[name]).abs().max() < EXACT for name, values in found.items())
    assert method.p == pytest.approx(twin.proportion, abs=EXACT)


@pytest.mark.parametrize("refresh", [True, False])
def test_rows_of_assistants_are_spread_over_epochs_of_unequal_length(refresh):
    """Two epochs of 7 samples have three full mini-batches of 4, those of 10 samples five."""
    work = task(SAMPLES, local_epochs=2, momentum=0.5)
    work = replace(work, data=replace(work.data, rest="carry"))
    options = {"proportion": "fixed", "p0": 0.9, "refresh_features": refresh}
    assert_equal_learning(work, options)
