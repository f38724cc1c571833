"""What a trained model makes of test samples before its last layer decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfl_sim.models.network import Network
from sfl_sim.models.replica import Replica
from sfl_sim.training.deployed import Deployed
from sfl_sim.training.evaluate import BATCH


def representations(
    models: Sequence[Deployed],
    clients: NDArray[np.int64],
    network: Network,
    x: Tensor,
    prepare: Callable[[Tensor], Tensor],
) -> NDArray[np.float64]:
    """The inputs (N, D) of the last layer for uint8 test images x (N, C, H, W), of which each goes its client's way.

    Args:
        models: of the clients.
        clients: (N,) whose front end each sample goes through; the rest of the way is that client's, too.
        network: whose layers the models are.
    """
    found: dict[int, Tensor] = {}
    with torch.inference_mode():
        for client in np.unique(clients).tolist():
            places = np.flatnonzero(clients == client)
            parts = [replica for part in (*models[client].front, *models[client].back) for replica in part.members]
            for start in range(0, len(places), BATCH):
                chunk = places[start : start + BATCH]
                out = _before_last(parts, network, prepare(x[torch.from_numpy(chunk).to(x.device)]))
                found |= dict(zip(chunk.tolist(), out.flatten(1).double().cpu(), strict=True))
        return torch.stack([found[place] for place in range(len(clients))]).numpy()


def _before_last(parts: Sequence[Replica], network: Network, x: Tensor) -> Tensor:
    *earlier, last = parts
    for replica in earlier:
        x = replica.weights(x, training=False)
    n_layers = len(last.part.skeleton)
    if n_layers == 1:
        return x
    kept = network.part(len(network) - n_layers, len(network) - 1)
    return last.weights.only(kept)(x, training=False)
