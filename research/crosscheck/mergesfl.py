"""Drives the code of MergeSFL's authors (ymliao98/MergeSFL) with our weights, batches and order.

Their server and one of their clients for each of ours run as they are, each `main()` in a thread of its own, and talk
over queues in the place of MPI. A round of theirs has 42 steps, which is written into the code.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import product
from pathlib import Path
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch import Tensor, nn

from research.crosscheck.ours import Ours, State, copied, normed
from research.crosscheck.report import Found
from research.crosscheck.theirs import module_of, within
from sfl_sim.models import replica

REPOSITORY, MARK = "ymliao98/MergeSFL", "training_utils.py"
STEPS, N_CLIENTS, BATCH_SIZE = 42, 3, 2
PATIENCE_S = 60


def compare(checkout: Path) -> Iterator[Found]:
    """Compare without and with batch norm, weight decay, and Nesterov's momentum."""
    normed_decayed = {"model": {"factory": normed}, "train": {"weight_decay": 0.01}}
    nesterov = {"train": {"optimizer": "nag", "momentum": 0.9, "lr": 0.02}}
    for title, changes, weighted_sum in (
        ("mergesfl", {}, replica.weighted_sum),
        ("mergesfl, Nesterov's momentum", nesterov, replica.weighted_sum),
        ("mergesfl, batch norm, weight decay", normed_decayed, replica.weighted_sum),
        ("mergesfl, batch norm, weight decay, averages summed as theirs", normed_decayed, _summed_as_theirs),
    ):
        with patch.object(replica, "weighted_sum", weighted_sum):
            ours = Ours(
                data={"samples": N_CLIENTS * STEPS * BATCH_SIZE, "partition": {"kind": "iid"}},
                clients={"count": N_CLIENTS},
                method={"name": "mergesfl"},
                **{**changes, "train": {"batch_size": BATCH_SIZE, **changes.get("train", {})}},
            )
        yield Found.between(title, ours, Driven(checkout, ours).models)


class Driven:
    """A run of their server and clients; `models` holds the model after every round."""

    def __init__(self, checkout: Path, ours: Ours) -> None:
        self.ours = ours
        self.models: list[State] = []
        ranks = range(ours.n_clients + 1)
        self.lines: dict[tuple[int, int], Queue[bytes]] = {line: Queue() for line in product(ranks, ranks)}
        self.loaders = [self._rounds(client) for client in range(ours.n_clients)]
        with (
            within(checkout, self._stand_ins()),
            patch.object(logging, "FileHandler", _no_handler),  # opened with the import, and never closed
            patch.object(nn.utils, "parameters_to_vector", _in_a_row),  # torch's wants another layout in memory
        ):
            nodes = [self._node(rank) for rank in ranks]
            with ThreadPoolExecutor(len(nodes)) as pool:
                for run in [pool.submit(node.main) for node in nodes]:
                    run.result()

    def _rounds(self, client: int) -> Iterator[Any]:
        for round in range(1, self.ours.train.rounds + 1):
            yield (batch.load() for batch in self.ours.data.batches(client, round))

    def _stand_ins(self) -> dict[str, Any]:
        ours = self.ours
        models = module_of(  # theirs are made for images of other sizes
            "models", create_model_instance_SL=lambda *given: (ours.part(0, ours.cut), ours.part(ours.cut))
        )
        datasets = module_of(  # theirs want downloads; what stands for a client's share of the data is its number
            "datasets",
            load_datasets=lambda *given: (None, None),
            LabelwisePartitioner=lambda *given, **others: SimpleNamespace(use=lambda client: client),
            create_dataloaders=lambda *given, selected_idxs=None, **others: self._loader(selected_idxs),
        )
        tensorboard = module_of("torch.utils.tensorboard", SummaryWriter=MagicMock())
        return {"models": models, "datasets": datasets, "torch.utils.tensorboard": tensorboard, "mpi4py": None}

    def _loader(self, client: int | None) -> Any:
        return None if client is None else next(self.loaders[client])

    def _node(self, rank: int) -> Any:
        """Load one of their programs, the server as rank 0; each has a module of its own."""
        name, train = ("client" if rank else "server"), self.ours.train
        given: list[object] = ["--worker_num", self.ours.n_clients, "--batch_size", train.batch_size]
        given += ["--lr", train.lr, "--decay_rate", train.lr_decay, "--min_lr", train.lr_min, "--epoch", train.rounds]
        given += ["--momentum", train.momentum or -1, "--weight_decay", train.weight_decay]
        comm = SimpleNamespace(
            Get_rank=lambda: rank,
            Get_size=lambda: self.ours.n_clients + 1,
            send=lambda data, dest, tag: self.lines[rank, dest].put(data),
            recv=lambda source, tag: self._receive(source, rank),
        )
        sys.modules.pop(name, None)
        sys.modules["mpi4py"] = module_of("mpi4py", MPI=SimpleNamespace(COMM_WORLD=comm))
        with patch.object(sys, "argv", [name, *([] if rank else map(str, given))]):
            module: Any = import_module(name)
        if name == "server":  # which draws the clients; its `test` needs a numpy of old
            sizes = np.full(self.ours.n_clients, train.batch_size)
            module.control = lambda *given: (self.ours.experiment.setup.cyclic, sizes)
            module.test = self._test
        return module

    def _receive(self, source: int, rank: int) -> bytes:
        try:
            return self.lines[source, rank].get(timeout=PATIENCE_S)
        except Empty:  # an error elsewhere; no other exception would leave their loops, which swallow them
            raise SystemExit(f"rank {rank} of theirs has waited {PATIENCE_S} s for rank {source}") from None

    def _test(self, server: nn.Module, client: nn.Module, *others: Any) -> tuple[float, float]:
        self.models.append(copied(client, server))
        return 0.0, 0.0


def _no_handler(filename: str) -> logging.Handler:
    return logging.NullHandler()


def _in_a_row(parameters: Iterable[Tensor]) -> Tensor:
    return torch.cat([parameter.reshape(-1) for parameter in parameters])


def _summed_as_theirs(into: Tensor, vectors: Sequence[Tensor], shares: Sequence[float]) -> None:
    """Average as (x + y + ...) / n, where ours is x times 1 / n + y times 1 / n + ..."""
    into.copy_(sum(vectors[1:], start=vectors[0]) / len(vectors))
