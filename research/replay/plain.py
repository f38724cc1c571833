"""Why replay destroys a model that is cut deeply: KoReA-SFL in plain PyTorch, without a line of the simulator.

    SFL_SIM_DATA=~/.cache/sfl-sim python research/replay/plain.py      (five minutes, after any run with CIFAR-10)

100 clients hold 12,000 images, averaged to 16x16, by Dirichlet 0.1; ten of them train ten branches in each of 30
rounds. Replayed samples train the server's part alone, by features of when the epoch began ("stale", as in the
paper) or of now ("fresh"), or part-1 as well ("through"). Read with research/results/replay.md, "Deeper cuts".
"""

import os
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy
from torchvision.datasets import CIFAR10

ROUNDS, CLIENTS, BRANCHES, EPOCHS, BATCH, PROPORTION, PULL, DECAY = 30, 100, 10, 5, 40, 0.2, 0.1, 0.5
CUTS = {"conv1": 2, "conv2": 5, "fc1": 7}
"""How many layers of the network are part-1."""


def images(train: bool, count: int, rng: Generator) -> tuple[Tensor, Tensor]:
    """Normalised pixels (count, 3, 16, 16) and labels (count,)."""
    data = CIFAR10(os.environ["SFL_SIM_DATA"], train=train)
    chosen = rng.choice(len(data), count, replace=False)
    x = torch.from_numpy(data.data[chosen]).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)))
    return avg_pool2d((x - mean) / std, 2), torch.tensor(data.targets)[chosen]


def shares(y: Tensor, rng: Generator) -> list[NDArray[Any]]:
    """The rows of each client, five at least: Dirichlet by class; who holds the mean number of rows gets no more."""
    while True:
        owner = np.full(len(y), CLIENTS)
        for label in range(10):
            rows = rng.permutation(np.flatnonzero(y == label))
            open_to = np.bincount(owner, minlength=CLIENTS + 1)[:CLIENTS] < len(y) / CLIENTS
            drawn = rng.dirichlet([0.1] * CLIENTS) * open_to
            ends = (np.cumsum(drawn / drawn.sum())[:-1] * len(rows)).astype(int)
            for c, own in enumerate(np.split(rows, ends)):
                owner[own] = c
        if np.bincount(owner, minlength=CLIENTS).min() >= 5:
            return [np.flatnonzero(owner == c) for c in range(CLIENTS)]


def request(history: NDArray[Any], total: int) -> NDArray[Any]:
    """How many samples to ask for of each label (10,): the more, the less the branch has seen of it."""
    prior = np.maximum(0, history.mean() - history)
    exact = total * prior / prior.sum()
    asked: NDArray[Any] = np.floor(exact).astype(int)
    asked[np.argsort(asked - exact, kind="stable")[: total - asked.sum()]] += 1
    return asked


def train(
    model: nn.Sequential,
    cut: int,
    mode: str,
    x: Tensor,
    y: Tensor,
    own: NDArray[Any],
    asked: NDArray[Any],
    rng: Generator,
) -> None:
    """Train both parts on the rows `own` of a client for a round, the server's also on the rows `asked` for."""
    part1, part2 = model[:cut], model[cut:]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5, weight_decay=1e-4)
    for _ in range(EPOCHS):
        batches = torch.split(torch.from_numpy(rng.permutation(own)), BATCH)
        replayed = torch.tensor_split(torch.from_numpy(rng.permutation(asked)), len(batches))
        stale = [part1(x[rows]).detach() for rows in replayed]
        for batch, rows, features in zip(batches, replayed, stale, strict=True):
            if mode != "stale":
                features = part1(x[rows]) if mode == "through" else part1(x[rows]).detach()
            optimiser.zero_grad()
            scores = part2(torch.cat([part1(x[batch]), features]))
            cross_entropy(scores, y[torch.cat([batch, rows])]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def run(cut: str, mode: str, seed: int) -> str:
    """Train; tell the accuracy of the last five rounds, and how the last model sees the test images."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    (x, y), (test_x, test_y) = images(True, 12000, rng), images(False, 2000, rng)
    parts = shares(y, rng)
    counts = np.array([np.bincount(y[part], minlength=10) for part in parts])
    master = nn.Sequential(
        nn.Conv2d(3, 24, 4, 4), nn.ReLU(), nn.Conv2d(24, 48, 2, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(192, 48), nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip
    branches = [deepcopy(master) for _ in range(BRANCHES)]
    seen, weight, accuracies = np.zeros((BRANCHES, 10)), 0.0, []
    for _ in range(ROUNDS):
        clients, others = np.split(rng.permutation(CLIENTS), [BRANCHES])
        pool = np.concatenate([parts[c] for c in others])
        weight = DECAY * weight + 1
        for i, c in enumerate(clients):
            seen[i] = DECAY * seen[i] + counts[c]
            total = 0 if mode == "none" else max(10, int(PROPORTION * len(parts[c])))
            wanted = request(seen[i] / weight, total)
            asked = np.concatenate([pool[y[pool] == label][:n] for label, n in enumerate(wanted)])
            train(branches[i], CUTS[cut], mode, x, y, parts[c], asked, rng)
        with torch.no_grad():
            for mean, *own in zip(master.parameters(), *(branch.parameters() for branch in branches), strict=True):
                mean.copy_(torch.stack(own).mean(0))
                for tensor in own:
                    tensor.add_(mean, alpha=PULL).div_(1 + PULL)
            accuracies.append((master(test_x).argmax(1) == test_y).float().mean().item())
    with torch.no_grad():
        conv2, fc1 = master[:4](test_x), master[:7](test_x)
    dead, zeros = (fc1 == 0).all(0).float().mean(), (conv2 == 0).float().mean()
    return f"{np.mean(accuracies[-5:]):.1%}; conv2: mean {conv2.mean():.2f}, {zeros:.0%} zeros; fc1: {dead:.0%} dead"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for cut, mode in [("conv1", "none")] + [(cut, mode) for cut in CUTS for mode in ("stale", "fresh", "through")]:
        for seed in (1, 2):
            print(f"{cut:6} {mode:8} seed {seed}: {run(cut, mode, seed)}", flush=True)
