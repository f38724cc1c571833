"""Deployed model of a client: layers on its device, possibly an exit there, and the server's layers behind the cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfl_sim.models.network import Network
from sfl_sim.models.replica import Joined, Replica, through
from sfl_sim.ops import Work
from sfl_sim.training.codecs import Codec
from sfl_sim.training.evaluate import BATCH

Ints = NDArray[np.int64]
Prepare = Callable[[Tensor], Tensor]
"""Makes uint8 images (n, C, H, W) the input of a model."""


@dataclass(frozen=True)
class Deployed:
    """The model that answers the requests of one client.

    Attributes:
        front: parts on the device (phi), applied one after another.
        head: exit on the output of `front` (h); None if no request can be answered by an exit on the device.
        back: parts at the server (the rest of theta); empty if the device holds the whole model.
        feature_shape: shape of one sample's features at the cut, without the batch dimension.
        codec: what the features are coded by, each sample's by themselves; None: they are sent as they are.
    """

    front: Sequence[Replica | Joined]
    head: Replica | None
    back: Sequence[Replica | Joined]
    feature_shape: tuple[int, ...]
    codec: Codec | None = None

    @property
    def on_device(self) -> Sequence[Replica | Joined]:
        """Parts on the device: front and exit."""
        return [*self.front, *([self.head] if self.head else [])]

    @property
    def device_work(self) -> Work:
        """Work of the device for a request: front and exit."""
        return _forward_work(self.on_device)

    @property
    def server_work(self) -> Work:
        """Work of the server for a request that the device has not answered."""
        return _forward_work(self.back)

    @property
    def feature_bytes(self) -> int:
        """Bytes of a request to the server, if the device does not answer it."""
        part = self.front[-1].part
        if self.codec:
            return self.codec.size_bytes((1, *part.out_shape), part.wire_dtype)
        return part.out_numel * part.wire_dtype.itemsize

    @property
    def device_parameters(self) -> int:
        """Number of parameters on the device, |phi| + |h|."""
        return sum(replica.part.n_parameters + replica.part.n_frozen for replica in self.on_device)

    @property
    def server_parameters(self) -> int:
        """Number of parameters at the server that this client's requests run through, |theta| - |phi|."""
        return sum(replica.part.n_parameters + replica.part.n_frozen for replica in self.back)


def _forward_work(parts: Sequence[Replica | Joined]) -> Work:
    return Work.total([replica.part.work(1, passes=1) for replica in parts])


@dataclass(frozen=True)
class Answers:
    """Answers to some test samples (N,).

    Attributes:
        entropy: entropy in nats of the probabilities of the device's exit; inf if there is no exit, -inf if the device
            holds the whole model.
        device_correct, server_correct: True if the answer of the exit, or of the whole model, is correct.
    """

    entropy: NDArray[np.float32]
    device_correct: NDArray[np.bool_]
    server_correct: NDArray[np.bool_]

    def at(self, rows: Ints) -> Answers:
        """Select the answers to the samples at `rows` (n,)."""
        return Answers(self.entropy[rows], self.device_correct[rows], self.server_correct[rows])


def answers_of_clients(
    models: Sequence[Deployed], test_sets: Sequence[Ints], x: Tensor, y: Tensor, prepare: Prepare
) -> list[Answers]:
    """Evaluate each client's model on its own test set.

    Clients that have the very same model are asked together, so that no sample is computed twice.

    Args:
        models: one model for each client.
        test_sets: each client's indices into the test samples x (N, ...) with labels y (N,).
        prepare: see `Prepare`.
    """
    by_client: dict[int, Answers] = {}
    for clients in _alike(models).values():
        asked = np.unique(np.concatenate([test_sets[c] for c in clients]))
        index = torch.from_numpy(asked).to(y.device)
        answers = answer(models[clients[0]], x[index], y[index], prepare)
        by_client |= {c: answers.at(np.searchsorted(asked, test_sets[c])) for c in clients}
    return [by_client[c] for c in range(len(models))]


def _alike(models: Sequence[Deployed]) -> Mapping[tuple[int, ...], list[int]]:
    """Group clients by the identity of all parts of their models."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for client, model in enumerate(models):
        groups.setdefault(tuple(map(id, (*model.on_device, *model.back))), []).append(client)
    return groups


def answer(model: Deployed, x: Tensor, y: Tensor, prepare: Prepare) -> Answers:
    """Answer uint8 test images x (N, C, H, W) with labels y (N,), in eval mode and without side effects."""
    entropy, device, server = [], [], []
    with torch.inference_mode():
        for start in range(0, len(x), BATCH):
            labels = y[start : start + BATCH]
            features = through(model.front, prepare(x[start : start + BATCH]), training=False)
            arrived = model.codec.decode_each_alone(features) if model.codec else features
            final = through(model.back, arrived, training=False)
            if model.head:
                shares = through([model.head], features, training=False).to(model.head.part.dtype).softmax(dim=1)
                entropy.append(torch.special.entr(shares).sum(dim=1))
                device.append(shares.argmax(dim=1) == labels)
            else:
                is_whole = not model.back
                entropy.append(torch.full(labels.shape, -torch.inf if is_whole else torch.inf, device=y.device))
                device.append((final.argmax(dim=1) == labels) & is_whole)
            server.append(final.argmax(dim=1) == labels)
    nats = [chunk.float() for chunk in entropy]
    return Answers(*(torch.cat(parts).cpu().numpy() for parts in (nats, device, server)))


def representations(
    models: Sequence[Deployed], clients: Ints, network: Network, x: Tensor, prepare: Prepare
) -> NDArray[np.float64]:
    """Compute the inputs (N, D) of the last layer for uint8 test images x (N, C, H, W), each by one client's model.

    Args:
        models: one model for each client.
        clients: (N,) the client whose model each sample runs through.
        network: whose layers the models are.
        x, prepare: the images, and what makes them the models' input.
    """
    by_row: dict[int, Tensor] = {}
    with torch.inference_mode():
        for client in np.unique(clients).tolist():
            rows = np.flatnonzero(clients == client)
            parts = (*models[client].front, *models[client].back)
            *earlier, last = (replica for part in parts for replica in part.members if len(replica.part.skeleton))
            for start in range(0, len(rows), BATCH):
                chunk = rows[start : start + BATCH]
                out = through(earlier, prepare(x[torch.from_numpy(chunk).to(x.device)]), training=False)
                out = _but_last_layer(last, network, out)
                by_row |= dict(zip(chunk.tolist(), out.flatten(1).double().cpu(), strict=True))
        return torch.stack([by_row[row] for row in range(len(clients))]).numpy()


def _but_last_layer(last: Replica, network: Network, x: Tensor) -> Tensor:
    """Apply the layers of the network's last part except its last one."""
    n_layers = len(last.part.skeleton)
    if n_layers == 1:
        return x
    kept = network.part(len(network) - n_layers, len(network) - 1)
    return last.weights.only(kept)(x, training=False)
