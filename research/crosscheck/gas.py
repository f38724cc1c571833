"""Drives the program of GAS's authors (eejiarong/GAS) with our weights, mini-batches and order of events.

GAS_main.py is a script with its settings at the top, which are changed in its syntax tree. It draws activations from
full covariances, and we from variances; so neither draws here, and what is compared are gradients with priors, the
server's steps on its buffer, and who averages with whom. Clipping and momentum are off: they have one
optimiser for all clients.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from research.crosscheck.ours import Ours, State, copied
from research.crosscheck.report import Found
from research.crosscheck.theirs import module_of, within
from sfl_sim.methods.gas import Observe

REPOSITORY, MARK = "eejiarong/GAS", "GAS_main.py"
N_CLIENTS, AT_WORK, BATCHES, ROUNDS = 10, 4, 5, 6
SPEEDS = [1e6 * 1.01**c for c in range(N_CLIENTS)]
"""MACs per second, so alike that uploads come in the order of the last gradients, as in theirs."""


def compare(checkout: Path) -> Iterator[Found]:
    """Compare with labels of which one dominates each client."""
    with patch.object(Observe, "run", lambda *_: torch.zeros(())):
        ours = Ours(
            clients={
                "participation": AT_WORK / N_CLIENTS, "compute": {"macs_per_s": SPEEDS},
                "network": {"uplink_bps": 1e9, "downlink_bps": 1e9},
            },
            server={"macs_per_s": 1e12}, train={"rounds": ROUNDS, "lr_decay": 1.0}, method={"name": "gas"},
        )  # fmt: skip
    yield Found.between("gas, without draws", ours, driven(checkout, ours))


def driven(checkout: Path, ours: Ours) -> list[State]:
    """Run their script; gives the model after every round."""
    models: list[State] = []
    settings = {
        "epochs": ROUNDS, "localEpoch": BATCHES, "user_num": N_CLIENTS, "user_parti_num": AT_WORK, "lr": ours.train.lr,
        "clip_grad": False, "Generate": False, "WRTT": False,
    }  # fmt: skip
    program = ast.parse((checkout / MARK).read_text(encoding="utf-8"))
    for node in ast.walk(program):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in settings:
            if isinstance(node.value, ast.Constant):
                node.value = ast.Constant(settings[node.targets[0].id])
        elif isinstance(node, ast.keyword) and node.arg in ("momentum", "weight_decay"):
            node.value = ast.Constant(0.0)
    ast.fix_missing_locations(program)
    parts = ours.part(0, ours.cut), ours.part(ours.cut)

    class Test:
        """Their loader of test images, over which they pass after every round: then the model is copied."""

        def __init__(self, **_: Any) -> None: ...

        def __iter__(self) -> Iterator[Any]:
            models.append(copied(*parts))
            return iter(ours.test_batches()[:1])

    loaders = [_Batches(ours, c) for c in range(N_CLIENTS)]
    data = {"Dataset": lambda **_: ([], [], None, None), "Data_Partition": lambda *_, **__: loaders}
    networks = module_of("network", model_selection=lambda *_, **__: parts)
    stand_ins = {"network": networks, "dataset": module_of("dataset", **data)}
    with (
        within(checkout / "utils", stand_ins),
        patch.object(np.random, "choice", _Events(ours)),
        patch.object(torch.utils.data.dataloader, "DataLoader", Test),
        patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        exec(compile(program, MARK, "exec"), {"__name__": "__main__", "__file__": str(checkout / MARK)})
    return models


class _Batches:
    """A client's mini-batches: visit by visit; their program also counts the labels of one pass."""

    def __init__(self, ours: Ours, c: int) -> None:
        self.ours, self.c, self.visit = ours, c, 0

    def __iter__(self) -> Iterator[Any]:
        batches = list(self.ours.data.batches(self.c, max(1, self.visit)))
        self.visit += 1
        return (batch.load() for batch in batches)


class _Events:
    """`numpy.random.choice` in their program, by what happened in ours: who begins, and who is next."""

    def __init__(self, ours: Ours) -> None:
        rows = ours.operations
        fetched = rows[(rows["kind"] == b"model") & (rows["node"] == b"downlink")]
        steps = rows[(rows["kind"] == b"differentiate") & (rows["node"] == b"server")]
        self.begin = iter(np.sort(fetched, order="requested_s")["client"].tolist())
        self.next = iter(np.sort(steps, order="started_s")["client"].tolist())

    def __call__(self, found: Sequence[int] | NDArray[Any], size: int = 0, replace: bool = True) -> Any:
        if size:
            return np.array([next(self.begin) for _ in range(size)])
        # After the last upload nobody begins any more, but in theirs somebody is drawn.
        return next(self.begin, found[0]) if isinstance(found, list) else next(self.next)
