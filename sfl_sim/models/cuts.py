"""Cuts of a network that differ between clients or rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from sfl_sim.errors import ScenarioError
from sfl_sim.models.network import Network

KEY = "model.cut.values"
LASTING = ("client", "device_speed", "random")
"""Ways in which clients' cuts differ for good."""
T = TypeVar("T")


def cuts_at(network: Network, values: Sequence[int | str | float]) -> list[int]:
    """Return the number of layers before each cut, given as `Network.cut_at` takes them; it raises ScenarioError."""
    return [network.cut_at(value, f"{KEY}.{i}") for i, value in enumerate(values)]


def client_cuts(
    network: Network,
    by: str,
    values: Sequence[int | str | float],
    macs_per_s: Sequence[float],
    rng: np.random.Generator,
) -> list[int]:
    """Return the number of layers of each client.

    Args:
        network: network to cut.
        by: `client`: `values` has one cut for each client, in their order; `device_speed`: the clients, ranked by
            device, form as many groups as there are values, of equal size or one client more, the slowest first;
            `random`: each client's cut is drawn from `values` (docs/methods/harmony.md#choices).
        values: cuts as `Network.cut_at` takes them.
        macs_per_s: rate of each client's device; of equal ones, the lower client number counts as the slower.
        rng: random stream of the draw.

    Raises:
        ScenarioError: a wrong number of values, or a value that is no cut of the network.
    """
    cuts = cuts_at(network, values)
    n_clients = len(macs_per_s)
    if by == "client":
        if len(cuts) != n_clients:
            raise ScenarioError("needs one cut for each client", key=KEY, found=len(cuts), allowed=[n_clients])
        return cuts
    if by == "random":
        drawn_cuts: list[int] = rng.choice(cuts, n_clients).tolist()
        return drawn_cuts
    return by_speed(cuts, macs_per_s, KEY)


def by_speed(values: Sequence[T], macs_per_s: Sequence[float], key: str) -> list[T]:
    """Return the value of each client: groups of equal size or one client more, by device, the slowest first.

    Raises ScenarioError with `key` for more values than clients.
    """
    n_clients = len(macs_per_s)
    if len(values) > n_clients:
        raise ScenarioError(
            "has more values than there are clients", key=key, found=len(values), allowed=f"1 to {n_clients}"
        )
    of_client = [values[0]] * n_clients
    for value, group in zip(values, np.array_split(np.argsort(macs_per_s, kind="stable"), len(values)), strict=True):
        for client in group:
            of_client[client] = value
    return of_client
