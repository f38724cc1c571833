"""Drives the code of FSL-SAGE's authors (srijith1996/FSL-SAGE) with our weights, batches and order.

Their two algorithms, FSL-SAGE and their port of CSE-FSL, run as they are, and so do their auxiliary models. The loop
around them is theirs in short: round by round, client by client, mini-batch by mini-batch.
"""

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from research.crosscheck.ours import Ours, State, copied, early_normed, normed
from research.crosscheck.report import Found
from research.crosscheck.theirs import module_of, within

REPOSITORY, MARK = "srijith1996/FSL-SAGE", "src/algos/fsl_sage.py"
CLIENTS = {"count": 4}
EVERY, ALIGN_EVERY, EPOCHS = 2, 2, 20


def compare(checkout: Path) -> Iterator[Found]:
    """Compare both, without and with batch norm."""
    sage = {"name": "fsl_sage", "upload_every": EVERY, "align_every": ALIGN_EVERY, "align_epochs": EPOCHS}
    cse = {"name": "cse_fsl", "upload_every": EVERY, "upload": "first", "aux": "linear"}
    for title, method, factory in (
        ("cse_fsl", cse, None),
        ("cse_fsl, batch norm", cse, normed),
        ("fsl_sage", sage, None),
        ("fsl_sage, a store of 12 samples", {**sage, "store": 12}, None),
        ("fsl_sage, batch norm in part-1", sage, early_normed),
        ("fsl_sage, batch norm in both parts", sage, normed),
    ):
        ours = Ours(
            clients=CLIENTS, server={"order": "client_level"}, method=method,
            data={"samples": 160, "partition": {"kind": "iid"}}, model={"factory": factory} if factory else {},
        )  # fmt: skip
        theirs = driven(checkout, ours)
        if "both" in title:
            yield Found.between(title, ours, theirs, oddity="theirs trains running statistics in the gradients' pass")
            ours.models, theirs, title = _trained(ours.models), _trained(theirs), f"{title}, parameters alone"
        yield Found.between(title, ours, theirs)


def _trained(models: list[State]) -> list[State]:
    return [{key: tensor for key, tensor in model.items() if "running" not in key} for model in models]


def driven(checkout: Path, ours: Ours) -> list[State]:
    """Run their algorithm; gives the model after every round."""
    omegaconf = module_of("omegaconf", DictConfig=dict, open_dict=None)
    models: list[State] = []
    with within(checkout / "src", {"omegaconf": omegaconf}):
        algos, auxiliary = import_module("algos"), import_module("models.aux_models")
        auxiliary.DataLoader = partial(_in_order, DataLoader)
        method, n = ours.method, ours.n_clients
        server_model = ours.part(ours.cut)
        server = SimpleNamespace(
            model=server_model, criterion=nn.CrossEntropyLoss(), optimizer=_sgd(server_model, ours)
        )
        clients = [_client(ours, server, auxiliary, c) for c in range(n)]
        cfg = SimpleNamespace(server_update_interval=EVERY, align_interval=ALIGN_EVERY)
        name = {"CseFsl": "cse_fsl", "FslSage": "fsl_sage"}[type(method).__name__]
        algorithm = algos.ALGORITHM_REGISTRY[name](cfg, server, clients, None, [1 / n] * n)
        for t in range(ours.train.rounds):
            algorithm.train_mode(t)
            for entity in (server, *clients, *(c.auxiliary_model for c in clients)):
                if not (name == "fsl_sage" and hasattr(entity, "align")):
                    entity.optimizer.param_groups[0]["lr"] = method.optimiser(t + 1).lr
            for i in ours.experiment.setup.cyclic:
                for k, batch in enumerate(ours.data.batches(i, t + 1)):
                    algorithm.client_step((t, i, 0, k), *batch.load())
            algorithm.aggregate()
            models.append(copied(algorithm.aggregated_client, server.model))
    return models


def _in_order(loader: Any, dataset: Any, **settings: Any) -> Any:
    """Make a loader that does not shuffle: the rows of one mini-batch are summed in their order."""
    return loader(dataset, **{**settings, "shuffle": False})


def _client(ours: Ours, server: SimpleNamespace, auxiliary: Any, c: int) -> SimpleNamespace:
    """Make what their algorithms take for a client, with our weights."""
    method: Any = ours.method
    first = method.new_head(ours.cut)  # as it was before our run
    weight, bias = first.part.views(first.weights.flat)

    class Head(auxiliary.GradScalarAuxiliaryModel):  # type: ignore[misc,name-defined]
        """Their auxiliary model, with one linear layer."""

        def forward_inner(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x.flatten(1))

    store = getattr(method.options, "store", 1000)
    head = Head(server, align_epochs=EPOCHS, align_batch_size=1000, max_dataset_size=store)
    head.fc = nn.Linear(weight.shape[1], weight.shape[0]).double()
    head.fc.load_state_dict({"weight": weight, "bias": bias})
    aligns = hasattr(method.options, "align_lr")
    head.set_optimizer_lr_scheduler(
        torch.optim.Adam(head.parameters(), method.options.align_lr) if aligns else _sgd(head, ours)
    )
    model = ours.part(0, ours.cut)
    batches = list(ours.data.batches(c, 1))
    return SimpleNamespace(model=model, optimizer=_sgd(model, ours), auxiliary_model=head, train_loader=batches)


def _sgd(module: nn.Module, ours: Ours) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), ours.train.lr)
