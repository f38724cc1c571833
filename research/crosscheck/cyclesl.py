"""Drives the code of CycleSL's authors (AnonymWriter/CycleSL) with our weights, batches and order.

Their `CycleSFL` takes one step a round and then averages part-1: so every client of ours has one mini-batch. The order
in which their server's loader draws the pool is the one that we draw.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch.utils.data import DataLoader

from research.crosscheck.ours import Ours, State, copied, early_normed
from research.crosscheck.report import Found
from research.crosscheck.theirs import module_of, within
from sfl_sim.rng import stream

REPOSITORY, MARK = "AnonymWriter/CycleSL", "sl.py"
N_CLIENTS, SAMPLES, ROUNDS = 3, 8, 6


def compare(checkout: Path) -> Iterator[Found]:
    """Compare with one pass of the server and with two, with small mini-batches, and with batch norm in part-1."""
    for title, options, factory in (
        ("cyclesl", {}, None),
        ("cyclesl, two passes, mini-batches of 5", {"server_epochs": 2, "server_batch": 5}, None),
        ("cyclesl, batch norm in part-1", {"server_batch": 6}, early_normed),
    ):
        ours = Ours(
            data={"samples": N_CLIENTS * SAMPLES, "partition": {"kind": "iid"}}, clients={"count": N_CLIENTS},
            train={"rounds": ROUNDS, "batch_size": SAMPLES, "lr_decay": 1.0}, method={"name": "cyclesl", **options},
            model={"factory": factory} if factory else {},
        )  # fmt: skip
        yield Found.between(title, ours, driven(checkout, ours))


def driven(checkout: Path, ours: Ours) -> list[State]:
    """Run their main loop; gives the model after every round."""
    method: Any = ours.method
    args = SimpleNamespace(
        device="cpu", num_round=ROUNDS, num_server_epoch=method.options.server_epochs, server_bs=method.server_batch,
        client_bs=SAMPLES, client_optim="SGD", server_optim="SGD", client_lr=ours.train.lr, server_lr=ours.train.lr,
    )  # fmt: skip
    models: list[State] = []

    def evaluate(_: Any, clients: list[Any], server: Any) -> None:
        models.append(copied(clients[0].model, server.model))

    numbers = iter(range(1, ROUNDS + 1))

    def pool(dataset: Any, batch_size: int, shuffle: bool) -> Any:
        number = next(numbers)
        return _Pool(dataset, batch_size, (method.task.seed, "pool", number))

    with within(checkout, {"wandb": module_of("wandb", log=MagicMock())}):
        sl, clients, servers = import_module("sl"), import_module("client"), import_module("server")
        sl.eval_help = evaluate
        ranks = ours.experiment.setup.cyclic
        everybody = [_client(clients.Client, args, ours, c) for c in ranks]
        server = servers.Server(args, ours.part(ours.cut))
        with (
            patch.object(torch.utils.data, "DataLoader", pool),
            patch.object(np.random, "choice", lambda found, n, replace: found),
        ):
            sl.CycleSFL(args, everybody, server, len(everybody))
    return models[1:]  # the first one is from before the training


class _Pool:
    """Mini-batches of a pool in our order."""

    def __init__(self, dataset: Any, batch_size: int, draws: tuple[int, str, int]) -> None:
        self.dataset, self.batch_size, self.draws, self.epoch = dataset, batch_size, draws, 0

    def __iter__(self) -> Iterator[Any]:
        order = stream(*self.draws, self.epoch).permutation(len(self.dataset))
        self.epoch += 1
        for start in range(0, len(order), self.batch_size):
            yield next(
                iter(DataLoader([self.dataset[int(i)] for i in order[start : start + self.batch_size]], len(order)))
            )


def _client(kind: Any, args: SimpleNamespace, ours: Ours, c: int) -> Any:
    """Make one of their clients, with our part-1 and mini-batches."""
    batches = [next(iter(ours.data.batches(c, round))).load() for round in range(1, ROUNDS + 1)]
    client = kind(args, [0] * ours.data.samples(c), [0], ours.part(0, ours.cut))
    client.train_iter = iter(batches)
    return client
