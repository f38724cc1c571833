"""Workload of the peers, and the local training that they share; imports nothing but torch."""

from pathlib import Path
from typing import Any

import torch

LR, MOMENTUM, BATCH = 0.05, 0.9, 64


class Workload:
    """The workload that `benchmarks.peers` has written.

    Attributes:
        model: initial weights, an `nn.Sequential`.
        x, y: normalised images (N, 1, 28, 28) and labels (N,).
        visits: for every round and participant the indices of the samples, in the order of training.
    """

    def __init__(self, file: str | Path) -> None:
        given: dict[str, Any] = torch.load(file, weights_only=False)  # a module, written by benchmarks.peers itself
        self.model, self.x, self.y, self.visits = (given[key] for key in ("model", "x", "y", "visits"))

    def samples(self, round: int, visit: int) -> list[torch.Tensor]:
        """Images and labels of participant number `visit` of a round (from 0), in order."""
        order = torch.from_numpy(self.visits[round][visit])
        return [self.x[order], self.y[order]]


def weights(model: torch.nn.Module) -> dict[str, Any]:
    """The state dict as arrays."""
    return {name: tensor.detach().contiguous().numpy() for name, tensor in model.state_dict().items()}
