"""What clients and the server would answer to each client's own test samples, once training has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfl_sim.models.replica import Joined, Replica
from sfl_sim.training.deployed import Deployed
from sfl_sim.training.evaluate import BATCH

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Answers:
    """For each of some test samples (N,).

    Attributes:
        entropy: of the probabilities that the exit on the device gives, in nats; inf where there is no exit, -inf where
            the device holds the whole model.
        device_correct, server_correct: whether the exit's answer is right, and that of the way to the end.
    """

    entropy: NDArray[np.float32]
    device_correct: NDArray[np.bool_]
    server_correct: NDArray[np.bool_]

    def at(self, places: Ints) -> Answers:
        """Those of some of the samples."""
        return Answers(self.entropy[places], self.device_correct[places], self.server_correct[places])


def answers_of_clients(
    models: Sequence[Deployed], test_sets: Sequence[Ints], x: Tensor, y: Tensor, prepare: Callable[[Tensor], Tensor]
) -> list[Answers]:
    """Each client's answers to its own test set.

    Clients that have the very same model are asked together, so that no sample is computed twice.

    Args:
        models: of the clients.
        test_sets: their indices into the test samples x (N, ...) with labels y (N,).
    """
    found: dict[int, Answers] = {}
    for clients in _alike(models).values():
        asked = np.unique(np.concatenate([test_sets[c] for c in clients]))
        index = torch.from_numpy(asked).to(y.device)
        answers = answer(models[clients[0]], x[index], y[index], prepare)
        found |= {c: answers.at(np.searchsorted(asked, test_sets[c])) for c in clients}
    return [found[c] for c in range(len(models))]


def answer(model: Deployed, x: Tensor, y: Tensor, prepare: Callable[[Tensor], Tensor]) -> Answers:
    """The answers to uint8 test images x (N, C, H, W) with labels y (N,), in eval mode and without a trace."""
    entropy, device, server = [], [], []
    with torch.inference_mode():
        for start in range(0, len(x), BATCH):
            labels = y[start : start + BATCH]
            features = _through(model.front, prepare(x[start : start + BATCH]))
            final = _through(model.back, features)
            if model.head:
                shares = _through([model.head], features).to(model.head.part.dtype).softmax(dim=1)
                entropy.append(torch.special.entr(shares).sum(dim=1))
                device.append(shares.argmax(dim=1) == labels)
            else:
                is_whole = not model.back
                entropy.append(torch.full(labels.shape, -torch.inf if is_whole else torch.inf, device=y.device))
                device.append((final.argmax(dim=1) == labels) & is_whole)
            server.append(final.argmax(dim=1) == labels)
    return Answers(*(torch.cat(parts).cpu().numpy() for parts in (_float32(entropy), device, server)))


def _float32(parts: Sequence[Tensor]) -> list[Tensor]:
    return [part.float() for part in parts]


def _alike(models: Sequence[Deployed]) -> Mapping[tuple[int, ...], list[int]]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for client, model in enumerate(models):
        parts = (*model.front, *([model.head] if model.head else []), *model.back)
        groups.setdefault(tuple(map(id, parts)), []).append(client)
    return groups


def _through(parts: Sequence[Replica | Joined], x: Tensor) -> Tensor:
    for part in parts:
        for replica in part.members:
            x = replica.weights(x, training=False)
    return x
