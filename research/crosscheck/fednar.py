"""Drives local training by FedNAR's authors (ljb121002/fednar) with our weights and batches.

Their main program is a script that wants a GPU, so that only its local training is theirs here, for a whole model; the
average of clients is written anew. Ours clips each part by its own norm: a first part without weights leaves one.
"""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from research.crosscheck.ours import Loader, Ours, State, copied, whole
from research.crosscheck.report import Found
from research.crosscheck.theirs import module_of, within

REPOSITORY, MARK = "ljb121002/fednar", "util_general.py"
NEVER = 1e9


def compare(checkout: Path) -> Iterator[Found]:
    """Compare co-clipping, where it never and where it always clips, and FedProx."""
    oddity = "theirs: torch's clip_grad_norm_ adds 1e-6 to the norm by which it divides"
    prox = {"name": "fedprox", "mu": 0.1}
    for title, method, why in (
        ("fednar, nothing is clipped", {"name": "fednar", "max_norm": NEVER}, ""),
        ("fednar, everything is clipped", {"name": "fednar", "max_norm": 0.1}, oddity),
        ("fedprox", prox, ""),
    ):
        ours = Ours(method=method, model={"factory": whole}, train={"weight_decay": 0.01})
        yield Found.between(title, ours, _models(checkout, ours), oddity=why)


def _models(checkout: Path, ours: Ours) -> list[State]:
    """Give the model after every round."""
    train, method, models = ours.train, ours.experiment.scenario.method, []
    nar = method.name == "fednar"
    args = {"bs": train.batch_size, "cp": ours.data.n_batches(0), "device": "cpu"}
    args["l2_reg"] = train.weight_decay if nar else 0.0  # as their main program does
    settings: dict[str, Any] = {"use_augmentation": False, "weight_decay": 0.0 if nar else train.weight_decay}
    settings |= {"max_norm": method.options.get("max_norm", NEVER), "mu": method.options.get("mu")}
    net = ours.part()
    loaders = [Loader(ours, client) for client in range(ours.n_clients)]
    unused = ("wandb", "matplotlib", "matplotlib.pyplot")  # imported, and not needed here
    with within(checkout, {name: module_of(name) for name in unused}):
        theirs: Any = import_module("util_general")
        theirs.DataLoader = lambda client, **others: loaders[client]
        for round in range(1, train.rounds + 1):
            rate = {"eta_l": ours.method.task.optimiser(round).lr}
            changes: list[Tensor] = []
            for client in range(ours.n_clients):
                given = (
                    net,
                    args,
                    settings | rate,
                    client,
                    method.name if not nar else "fedavg",
                    client,
                    None,
                    0.0,
                    round,
                )
                changes.append(theirs.get_grad(*given)[0])
            with torch.no_grad():
                vector = torch.nn.utils.parameters_to_vector(net.parameters())
                torch.nn.utils.vector_to_parameters(vector + sum(changes) / len(changes), net.parameters())
            models.append(copied(net))
    return models
