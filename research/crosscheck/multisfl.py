"""Drives the code of KoReA-SFL's authors (CodeFree-xzk/MultiSFL, a later method) with our weights, batches and draws.

Their class runs as it is, `main()` with local training, averages and pull. Stand-ins take the place of two packages
that only keep logs, of what draws at random, and of the evaluation, where the master of each round is copied. What is
asked of assistants is imposed on it as well, and compared on its own: their label history has another recursion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from research.crosscheck.ours import Loader, Ours, State, copied, early_normed, late_normed, normed
from research.crosscheck.report import Found
from research.crosscheck.theirs import module_of, within
from sfl_sim.data.batches import Batch
from sfl_sim.methods.korea import Floats, Korea, KoreaBranch, knowledge_request, next_proportion, request_size
from sfl_sim.models import replica

REPOSITORY, MARK = "CodeFree-xzk/MultiSFL", "Algorithm/Training_MultiSFL.py"
ASSISTED = {"proportion": "fixed", "p0": 0.5, "joint_forward": False, "assistants": "all", "rounding": "floor"}
TRAIN = {"momentum": 0.5, "weight_decay": 0.01, "local_epochs": 2, "lr": 0.05, "lr_decay": 1.0}
WHOLE = {"data": {"partition": {"kind": "dominant_label", "p": 0.5}}, "train": {**TRAIN, "batch_size": 40}}
"""All of a client's samples in one batch, and all that is asked for from one assistant."""


def compare(checkout: Path) -> Iterator[Found]:
    """Compare training without and with replay, then what is asked for, label history and proportion."""
    off, oddity = {"proportion": "off"}, "theirs: samples of several assistants go through batch norm together"
    usual = replica.weighted_sum
    few = {**ASSISTED, "p0": 0.01}
    for title, options, changes, why, weighted_sum in (
        ("korea without replay", off, {}, "", usual),
        ("korea without replay, batch norm", off, {"model": {"factory": normed}}, "", usual),
        ("korea with replay", ASSISTED, {}, "", usual),
        ("korea with replay, batch norm at the server", ASSISTED, {"model": {"factory": late_normed}}, "", usual),
        ("korea with replay, batch norm at the clients", ASSISTED, {"model": {"factory": early_normed}}, oddity, usual),
        ("... from one assistant, one batch an epoch", few, {"model": {"factory": early_normed}, **WHOLE}, "", usual),
        ("korea with replay, averages summed as theirs", ASSISTED, {}, "", _summed_as_theirs),
    ):
        with Noted() as noted, patch.object(replica, "weighted_sum", weighted_sum):
            fleet = {"count": 10, "participation": 0.3}
            ours = Ours(clients=fleet, method={"name": "korea", **options}, **{"train": TRAIN, **changes})
        run = Driven(checkout, ours, noted)
        yield Found.between(title, ours, run.models, oddity=why)
    yield from run.decisions()


class Noted(dict[int, dict[int, int]]):
    """While it is entered, notes of every round the client of each branch, and in `samples` what assistants give."""

    def __init__(self) -> None:
        self.samples: dict[tuple[int, int], list[Batch]] = {}
        self.histories: dict[int, Floats] = {}
        self.request = Korea.request

    def __enter__(self) -> Noted:
        self.patched = patch.object(Korea, "request", lambda *given: self.note(*given))
        self.patched.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.patched.stop()

    def note(self, method: Korea, branches: Mapping[int, KoreaBranch], there: Any, round: int) -> None:
        """Note what the server has drawn."""
        self.request(method, branches, there, round)
        self[round] = {branch.number: c for c, branch in branches.items()}
        for c, request in method.requests.items():
            draw = "korea samples", *request.draw
            batches = [method.data.some(s.assistant, s.counts, *draw, s.assistant) for s in request.shares]
            self.samples[round, branches[c].number] = batches
        self.histories[round] = np.array([branch.history.sv for branch in sorted(branches.values(), key=_number)])


class Driven:
    """A run of theirs; `models` holds the master after every round."""

    def __init__(self, checkout: Path, ours: Ours, noted: Noted) -> None:
        self.ours, self.noted = ours, noted
        self.models: list[State] = []
        self.histories: list[Floats] = []
        self.users = {client: [*map(int, share)] for client, share in enumerate(ours.data.shares)}
        self.args = SimpleNamespace(
            algorithm="", wandb=False, dataset="cifar10", model="resnet", device="cpu", data_beta=0,
            num_users=ours.n_clients, frac=ours.experiment.scenario.clients.participation, BS=0, DB=0, AW=0,
            num_classes=ours.experiment.dataset.n_labels, comm_limit=float("inf"), MR=int(bool(noted.samples)),
            lr=ours.train.lr, momentum=ours.train.momentum, weight_decay=ours.train.weight_decay,
            local_ep=ours.train.local_epochs, local_bs=ours.train.batch_size,
        )  # fmt: skip
        quiet = SimpleNamespace(catch=_caught, info=_nothing, critical=_nothing)
        stand_ins = {"wandb": module_of("wandb"), "loguru": module_of("loguru", logger=quiet)}
        with within(checkout, stand_ins):
            self.module: Any = import_module("Algorithm.Training_MultiSFL")
            import_module("models.Update").DataLoader = self._loader
            whole, parts = ours.part(), (ours.part(0, ours.cut), ours.part(ours.cut))
            self.run = self.module.MultiSFL(self.args, whole, self._samples(), None, self.users, *parts)
            self.run.test = self._test
            self.run.selectHelpers, self.run.sampleData = lambda *given: ([], []), self._given
            with patch.object(np.random, "choice", lambda *given, **others: self._clients()):
                self.run.main()

    @property
    def round(self) -> int:
        """The round that runs, from 1."""
        return len(self.models) + 1

    def decisions(self) -> Iterator[Found]:
        """Compare what the server decides, apart from training."""
        oddity = "theirs: the history is divided by its weight in every round, so that it decays by .25 and not by .5"
        histories = zip(self.noted.histories.values(), self.histories, strict=True)
        yield Found(
            "label history, in samples",
            [float(np.abs(ours - theirs).max()) for ours, theirs in histories],
            oddity=oddity,
        )
        yield Found("samples asked for of a label, 100 random histories, once", [max(self._requests())])
        oddity = (
            "theirs: rounds before the first count as a norm of 0, so that it grows with every one of the first ten"
        )
        yield Found("proportion at a constant gradient norm, by round", [*self._proportions()], oddity=oddity)

    def _requests(self) -> Iterator[float]:
        rng, n_labels = np.random.default_rng(0), self.args.num_classes
        others = self.ours.experiment.counts[1:].sum(axis=0)
        self.module.SAMPLE_BUDGET, self.module.print = 0.5, _nothing
        for _ in range(100):
            self.run.cumulative_label_distributions[0] = sv = rng.integers(0, 50, n_labels) / 4
            _, given = type(self.run).selectHelpers(self.run, 0, 0)
            q = knowledge_request(sv, request_size(len(self.users[0]), 0.5, n_labels), "floor")
            yield float(np.abs(np.sum(given, axis=0) - np.minimum(q, others)).max())

    def _proportions(self) -> Iterator[float]:
        p = self.module.SAMPLE_BUDGET = 0.01
        self.args.DB, self.run.fed_grad_norm, norms = 2, [0] * (self.module.WIN + 2), []
        for number in range(12):
            self.run.round, self.run.grad_norm = number, [1.0]
            norms.append(1.0)
            self.run.adjustBudget()
            p = next_proportion(p, norms, self.module.WIN)
            yield abs(p - self.module.SAMPLE_BUDGET)

    def _samples(self) -> list[tuple[Tensor, int]]:
        dataset, images = self.ours.experiment.dataset, self.ours.data.images
        return [*zip(images.prepare(dataset.x_train), dataset.y_train.tolist(), strict=True)]

    def _clients(self) -> list[int]:
        return [self.noted[self.round][branch] for branch in range(len(self.noted[self.round]))]

    def _given(self, helpers: Any, provided: Any, branch: int) -> list[tuple[int, int]]:
        """Stand for the samples of assistants: as many tokens, by which the loader is known again."""
        return [(branch, i) for batch in self.noted.samples.get((self.round, branch), []) for i in range(batch.samples)]

    def _loader(self, dataset: Any, batch_size: int, shuffle: bool) -> Any:
        if isinstance(dataset.idxs[0], tuple):
            branch = dataset.idxs[0][0]
            x, y = (
                torch.cat(given)
                for given in zip(*(b.load() for b in self.noted.samples[self.round, branch]), strict=True)
            )
            return [
                *zip(
                    x.split(batch_size),
                    y.split(batch_size),
                    torch.zeros(len(y), dtype=torch.long).split(batch_size),
                    strict=True,
                )
            ]
        client = next(client for client, share in self.users.items() if share == dataset.idxs)
        return Loader(self.ours, client, _numbered, from_round=self.round)

    def _test(self) -> None:
        self.histories.append(np.array(self.run.cumulative_label_distributions))
        self.models.append(copied(self.run.net_glob_client, self.run.net_glob_server))
        if len(self.models) == self.ours.train.rounds:
            self.args.comm_limit = -1


def _number(branch: KoreaBranch) -> int:
    return branch.number


def _numbered(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    return *batch, torch.zeros(len(batch[1]), dtype=torch.long)


def _caught(function: Any = None) -> Any:
    return function or _caught


def _nothing(*given: Any, **others: Any) -> None:
    pass


def _summed_as_theirs(into: Tensor, vectors: Sequence[Tensor], shares: Sequence[float]) -> None:
    """Average as (x + y + ...) / n, and pull as (1 master + 10 branch) / 11."""
    if len(set(shares)) == 1:
        into.copy_(sum(vectors[1:], start=vectors[0]) / len(vectors))
    else:
        branch, master = vectors
        into.copy_((master + branch * 10) / 11)
