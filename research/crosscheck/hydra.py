"""Drives the code of Hydra's authors (jtirana98/Hydra_tackling-CF-in-SFL) with our weights, batches and order.

Their scripts run as they are: `main()` from its arguments to the last round, with their clients, loops and averages.
Stand-ins take the place of what the repository lacks (its networks), of what draws at random, and of the evaluation's
entrance, where the model of each round is copied.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch import Tensor, nn

from research.crosscheck.ours import Loader, Ours, State, copied, normed
from research.crosscheck.report import Found
from research.crosscheck.theirs import module_of, within
from sfl_sim.metrics.scores import backward_transfer, performance_gap
from sfl_sim.models import replica

REPOSITORY, MARK = "jtirana98/Hydra_tackling-CF-in-SFL", "run_hydra.py"
V2, HYDRA = {"name": "splitfed_v2"}, {"name": "hydra", "cut2": 3, "head_weights": "uniform"}
SUPERCLASSES = [[0, 2], [1, 9], [8], [3, 5, 7], [4, 6]]  # as their labels' teams of five
UNEQUAL = {
    "data": {"partition": {"kind": "dirichlet", "alpha": 0.3}},
    "clients": {"count": 10},
    "model": {"factory": normed},
    "train": {"weight_decay": 0.01, "local_epochs": 2},
}
"""Clients of unequal size, batch norm, weight decay, and two local epochs."""


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        title: what is compared.
        script: theirs.
        ours: our settings, by section of the scenario.
        policy: their own order of the same name; None: our order is imposed on theirs, by their random choice.
        oddity: why the two differ, if they do.
        mended: heads that are evaluated are put back into training mode.
        same_sums: our averages are summed in the order of theirs, as x / n and not as x times 1 / n.
    """

    title: str
    script: str
    ours: dict[str, dict[str, Any]]
    policy: str | None = None
    oddity: str = ""
    mended: bool = False
    same_sums: bool = False


def cases() -> Iterator[Case]:
    """List all comparisons."""
    native = [("cyclic", "cyclic", 1), ("cyclic", "cyclic", 2), ("cyclic_reverse", "reverse", 1),
              ("cyclic_reverse", "reverse", 2)]  # fmt: skip
    imposed = ("fcfs", "random_job", "random_sweep", "random_client")
    for script, method in (("run_sfl", V2), ("run_hydra", HYDRA)):
        name = method["name"]
        for order, policy, burst in native:
            server = {"order": order, "burst": burst}
            yield Case(
                f"{name}, {order}, burst {burst}, their order", script, {"method": method, "server": server}, policy
            )
        for order in imposed:
            yield Case(f"{name}, {order}", script, {"method": method, "server": {"order": order}})
        unequal = {"method": method, **UNEQUAL}
        name += ", unequal clients, batch norm, weight decay, 2 epochs"
        yield Case(f"{name}, cyclic, their order", script, {**unequal, "server": {"order": "cyclic"}}, "cyclic")
        reverse = {**unequal, "server": {"order": "cyclic_reverse"}}
        oddity = "theirs: a reverse sweep that ends on a client who is done does not turn"
        yield Case(f"{name}, cyclic_reverse, their order", script, reverse, "reverse", oddity)
        yield Case(f"{name}, cyclic_reverse, our order", script, reverse)
        random = {**unequal, "server": {"order": "random_job"}}
        yield Case(f"{name}, random_job", script, random)
        yield Case(f"{name}, random_job, averages summed in their order", script, random, same_sums=True)
        nesterov = {"optimizer": "nag", "momentum": 0.9, "lr": 0.02}
        oddity = "" if method is V2 else "theirs: with momentum only the last client's part-1 and head are optimised"
        ours = {"method": method, "server": {"order": "cyclic"}, "train": nesterov}
        yield Case(f"{method['name']}, cyclic, Nesterov's momentum", script, ours, "cyclic", oddity)
    oddity = "theirs: in the first round heads are in training mode when accuracy is evaluated"
    iid = {"data": {"partition": {"kind": "iid"}}, "clients": {"count": 10}, "model": {"factory": normed}}
    ours = {"method": HYDRA | {"cut2": 2}, "server": {"order": "cyclic"}, **iid}
    yield Case("hydra, batch norm in the heads, IID, cyclic", "run_hydra", ours, "cyclic", oddity)
    for n_heads, given in ((5, SUPERCLASSES), (2, [[2, 3, 4, 5, 6, 7], [0, 1, 8, 9]])):
        method = HYDRA | {"grouping": "superclass", "superclasses": given}
        for order, policy in (("cyclic", "cyclic"), ("random_job", None)):
            ours = {"method": method, "server": {"order": order}, "model": UNEQUAL["model"]}
            yield Case(f"hydra, {n_heads} heads, batch norm, {order}", "test_hydra_heads", ours, policy)
    others = {"mergesfl": "run_mergesfl", "fedavg": "run_fl", "multihead": "run_multihead", "splitfed_v3": "run_sflv3"}
    oddities = {
        "fedavg": "theirs: the learning rate decays from the third round on, not from the second",
        "multihead": "theirs: after the first evaluation heads are never put into training mode again",
    }
    for name, script in others.items():
        ours = {"method": {"name": name}, "model": UNEQUAL["model"], "train": {"weight_decay": 0.01}}
        yield Case(f"{name}, batch norm, weight decay", script, ours, oddity=oddities.get(name, ""))
        if name == "multihead":
            yield Case(f"{name}, batch norm, weight decay, theirs mended", script, ours, mended=True)
    ours = {"method": {"name": "fedavg"}, "model": UNEQUAL["model"], "train": {"weight_decay": 0.01, "lr_decay": 1.0}}
    yield Case("fedavg, batch norm, weight decay, constant rate", "run_fl", ours)
    ours = {"method": {"name": "multihead"}, "train": {"weight_decay": 0.01}}
    yield Case("multihead, weight decay", "run_multihead", ours)


def compare(checkout: Path) -> Iterator[Found]:
    """Run all cases."""
    for case in cases():
        ours = Ours(**case.ours)
        if case.same_sums:
            with patch.object(replica, "weighted_sum", _summed_as_theirs(ours)):
                ours = Ours(**case.ours)
        run = Driven(checkout, case, ours)
        figures, served = [*zip(run.accuracies, run.gaps, strict=True)], run.served if case.policy else None
        yield Found.between(case.title, ours, run.models, figures, case.oddity, served)
    yield from _metrics(checkout)


class Driven:
    """A run of one of their scripts.

    Attributes:
        models: the model after every round.
        accuracies, gaps: their accuracy and performance gap of every round.
        served: of every round, the clients in the order of their steps at the server.
    """

    def __init__(self, checkout: Path, case: Case, ours: Ours) -> None:
        self.ours, self.case = ours, case
        self.models: list[State] = []
        self.accuracies: list[float] = []
        self.gaps: list[float] = []
        self.served: list[list[int]] = [[]]
        # their networks (`models/`) are not in the repository, and their data sets want a download
        stand_ins = {"get_models": self._models(), "get_data": self._data()}
        with within(checkout, stand_ins, self._arguments()):
            script, utils = import_module(case.script), import_module("my_utils")
            self._prepare(script, utils)
            script.main()
        self.served.pop()

    def _arguments(self) -> list[object]:
        train, method = self.ours.train, self.ours.method.options
        given: list[object] = ["--num_clients", self.ours.n_clients, "--batch_size", train.batch_size]
        given += ["--training_lr", train.lr, "--decay_rate", train.lr_decay, "--min_lr", train.lr_min]
        given += ["--epoch", train.rounds, "--local_epoch", train.local_epochs, "--weight_decay", train.weight_decay]
        given += ["--momentum", train.momentum or -1]
        if self.case.script in ("run_sfl", "run_hydra", "test_hydra_heads"):
            given += [
                "--policy",
                self.case.policy or "random",
                "--phi",
                self.ours.experiment.scenario.server.burst or 1,
            ]
        if self.case.script == "test_hydra_heads":
            given += ["--num_heads", len(method.superclasses)]
        if self.case.script == "run_mergesfl":
            given += ["--phi", 1]
        return given

    def _models(self) -> ModuleType:
        ours, cut = self.ours, self.ours.cut

        def get_model(*given: Any, is_fl: bool = False, is_fl3: bool = False, **others: Any) -> Any:
            n = range(given[3])
            if is_fl:
                return ours.part(), [ours.part() for _ in n]
            both, part1s = (ours.part(0, cut), ours.part(cut)), [ours.part(0, cut) for _ in n]
            return (both, part1s, [ours.part(cut) for _ in n]) if is_fl3 else (both, part1s)

        def get_model_threesplit(*given: Any, **others: Any) -> Any:
            n, cut2 = range(given[4]), ours.method.options.cut2
            three = ours.part(0, cut), ours.part(cut, cut2), ours.part(cut2)
            return three, ([ours.part(0, cut) for _ in n], [ours.part(cut2) for _ in n])

        return module_of("get_models", get_model=get_model, get_model_threesplit=get_model_threesplit)

    def _data(self) -> ModuleType:
        loaders = [Loader(self.ours, client, _named) for client in range(self.ours.n_clients)]
        test = Tests(map(_named, self.ours.test_batches()))
        return module_of("get_data", get_data_partition=lambda *given: (loaders, loaders, test, "iid"))

    def _prepare(self, script: Any, utils: Any) -> None:
        script.logging = MagicMock()  # they empty the root logger's handlers and open a file
        script.random = SimpleNamespace(randint=self._draw())
        if hasattr(script, "teams"):  # which maps clients, in the belief that client c is the one of label c
            script.teams = {len(set(self.ours.method.groups)): self.ours.method.groups}
        utils.bw_score = lambda scores, ll: None  # which fails: it takes one round's accuracies for those of 100
        for name in [name for name in vars(utils) if name.startswith("test")]:
            setattr(utils, name, self._recorded(getattr(utils, name)))
        for name in ("Client", "Client_usplit"):
            if client := getattr(script, name, None):
                client.next_job = self._noting(client.next_job)

    def _draw(self) -> Any:
        """Give our draws for theirs: the cyclic list, or with no policy the places of our jobs in their queue."""
        draws = iter(self.ours.experiment.setup.cyclic) if self.case.policy else self._places()
        return lambda low, high: next(draws)

    def _places(self) -> Iterator[int]:
        clients = range(self.ours.n_clients)
        for round in self.ours.served:
            waiting, left = list(clients), [self.ours.data.n_batches(client) for client in clients]
            for client in round:
                place = waiting.index(client)
                del waiting[place]
                left[client] -= 1
                if left[client]:
                    waiting.append(client)
                yield place

    def _recorded(self, test: Any) -> Any:
        """Wrap an evaluation; the first of a round notes the model, as it is before."""

        def recorded(*given: Any, **others: Any) -> Any:
            model = _model(*given[:3])
            result = test(*given, **others)
            if self.case.mended:
                for head in given[1]:
                    head.train()
            if len(result) != 3:  # loss and accuracy; or PG, accuracies by label, accuracy and BW
                self.models.append(model)
                self.served.append([])
                self.accuracies.append(result[1] if len(result) == 2 else result[2])
            if len(result) != 2:  # PG, accuracies by label and BW, after one of the former
                self.gaps.append(float(result[0]))
            return result

        return recorded

    def _noting(self, next_job: Any) -> Any:
        def noting(client: Any) -> Any:
            job = next_job(client)
            if job["type"] == 1:  # the client's backward pass, after the server's step
                self.served[-1].append(client.id)
            return job

        return noting


class Tests(list[Any]):
    """Test batches as their loader of the test set."""

    @property
    def dataset(self) -> range:
        """Something as long as the test set."""
        return range(sum(len(batch["label"]) for batch in self))


def _model(first: Any, second: Any, third: Any) -> State:
    """Copy what an evaluation is given: parts of a model, some of them for each client."""
    if isinstance(first, list):
        return _of_clients([client.model for client in first]) | copied(second)
    if isinstance(second, list):
        return copied(first) | _of_clients(second)
    return copied(*(part for part in (first, second, third) if isinstance(part, nn.Module)))


def _of_clients(parts: Sequence[nn.Module]) -> State:
    return {f"client{c}.{key}": tensor for c, part in enumerate(parts) for key, tensor in copied(part).items()}


def _named(batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    images, labels = batch
    return {"img": images, "image": images, "label": labels}  # Hydra's evaluation takes every data set for another


def _summed_as_theirs(ours: Ours) -> Any:
    """Make an average in the order of client numbers: ours averages part-1 in cyclic order and heads by group."""
    n, cyclic = ours.n_clients, ours.experiment.setup.cyclic
    part1 = ours.method.part1.weights
    heads = getattr(ours.method, "groups", [])

    def weighted_sum(into: Tensor, vectors: Sequence[Tensor], shares: Sequence[float]) -> None:
        order = map(cyclic.index, range(n)) if len(into) in (len(part1.flat), len(part1.buffers)) else heads
        total = torch.zeros_like(into)
        for i in order:
            total += vectors[i] / n
        into.copy_(total)

    return weighted_sum


def _metrics(checkout: Path) -> Iterator[Found]:
    """Compare PG and BW of random histories of 100 rounds, the only number that theirs can do."""
    gaps, transfers = [], []
    with within(checkout, {}):
        utils = import_module("my_utils")
        for seed in range(100):
            history = np.random.default_rng(seed).random((100, 10))
            gaps.append(abs(utils.performance_gap(history[-1]) - performance_gap(history[-1])))
            transfers.append(abs(utils.bw_score(history) - backward_transfer(history)))
    yield Found("PG of 100 random accuracies by label, once", [max(gaps)])
    yield Found("BW of 100 random histories, once", [max(transfers)])
