"""Who holds which training samples: partitions of labelled data over clients, and the cyclic client order.

Every partition is disjoint and uses every sample. A client's indices come in the order of the construction:
label by label and random inside a label, or random throughout for `iid`.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sfl_sim.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Callable

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_DRAWS = 1000
"""How often `dirichlet` draws before it gives up on its `min_size`."""


def partition(
    kind: str, labels: Ints, n_clients: int, n_labels: int, rng: np.random.Generator, **options: float
) -> list[Ints]:
    """The sample indices of each client, by the partition `kind` of `PARTITIONS` with its `options`.

    Args:
        kind: a key of `PARTITIONS`.
        labels: (N,), the label in 0 .. n_labels - 1 of each training sample.
        n_clients: C.
        n_labels: L.
        rng: the stream of this partition; equal streams give equal partitions.
        options: the keyword arguments of the partition's function.

    Raises:
        ScenarioError: unknown kind or option, options that cannot be met, or a client left without samples.
    """
    if kind not in PARTITIONS:
        raise ScenarioError("unknown partition", key="data.partition.kind", found=kind, allowed=PARTITIONS)
    function = PARTITIONS[kind]
    allowed = function.__kwdefaults__ or {}
    for option in options:
        if option not in allowed:
            raise ScenarioError(
                f"not an option of {kind}", key="data.partition", found=option, allowed=allowed or "none"
            )
    parts = function(labels, n_clients, n_labels, rng, **options)
    for client, part in enumerate(parts):
        if not len(part):
            raise ScenarioError(
                f"client {client} of {n_clients} gets none of the {len(labels)} samples", key="data.partition"
            )
    return parts


def iid(labels: Ints, n_clients: int, n_labels: int, rng: np.random.Generator) -> list[Ints]:
    """One shuffle, cut into chunks whose sizes differ by at most 1 (METHODS.md 2.6)."""
    return np.array_split(rng.permutation(len(labels)), n_clients)


def dominant_label(
    labels: Ints, n_clients: int, n_labels: int, rng: np.random.Generator, *, p: float = 0.8, phi: int = 1
) -> list[Ints]:
    """p%-DL: `phi` clients share the fraction `p` of each label, the others share the rest (Hydra, 3.1, E.1).

    Client c has the dominant label c // phi. For classes of equal size n every client gets p*n/phi samples of
    its own label and client sizes differ by at most 1; otherwise sizes follow the classes (METHODS.md 2.1).

    Raises:
        ScenarioError: `n_clients` is not phi x n_labels.
    """
    if n_clients != phi * n_labels:
        raise ScenarioError(
            "dominant_label needs phi clients for each label",
            key="clients.count", found=n_clients, allowed=f"{phi} x {n_labels} labels = {phi * n_labels}",
        )  # fmt: skip
    by_label = _shuffled_by_label(labels, n_labels, rng)
    return _deal(by_label, _dominant_counts([len(indices) for indices in by_label], p, phi))


def dirichlet(
    labels: Ints,
    n_clients: int,
    n_labels: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.3,
    min_size: int = 10,
) -> list[Ints]:
    """Each label is split in proportions drawn from Dir(alpha), with balancing (NIID-Bench; METHODS.md 2.3).

    A client that holds N/C samples or more takes no part in the draw for later labels. All labels are drawn
    again until every client has at least `min_size` samples.

    Raises:
        ScenarioError: `MAX_DRAWS` draws left a client below `min_size`.
    """
    by_label = _shuffled_by_label(labels, n_labels, rng)
    class_sizes = [len(indices) for indices in by_label]
    for _ in range(MAX_DRAWS):
        counts = _dirichlet_counts(class_sizes, n_clients, alpha, rng)
        if counts.sum(axis=1).min() >= min_size:
            return _deal(by_label, counts)
    raise ScenarioError(
        f"{MAX_DRAWS:,} Dirichlet draws (alpha {alpha:g}) of {len(labels)} samples for {n_clients} clients "
        "all left some client with fewer: use a smaller min_size, a larger alpha or fewer clients",
        key="data.partition.min_size", found=min_size,
    )  # fmt: skip


PARTITIONS: dict[str, Callable[..., list[Ints]]] = {
    "iid": iid,
    "dominant_label": dominant_label,
    "dirichlet": dirichlet,
}


def label_counts(labels: Ints, parts: list[Ints], n_labels: int) -> Ints:
    """(C, L): how many samples of each label each client holds."""
    return np.stack([np.bincount(labels[part], minlength=n_labels) for part in parts])


def label_order(n_labels: int, rng: np.random.Generator) -> Ints:
    """(L,): the run's random label permutation, which cyclic orders and per-position accuracy follow."""
    return rng.permutation(n_labels)


def cyclic_clients(counts: Ints, label_order: Ints) -> list[int]:
    """The clients grouped by dominant label, the labels in `label_order`, ascending inside a label.

    This is the list of the cyclic orders (METHODS.md 1).

    Args:
        counts: (C, L) as from `label_counts`; the dominant label is the most frequent, the smallest if tied.
        label_order: (L,) label permutation.
    """
    position = np.argsort(label_order)
    dominant = counts.argmax(axis=1)
    return sorted(range(len(counts)), key=lambda client: position[dominant[client]])


def _shuffled_by_label(labels: Ints, n_labels: int, rng: np.random.Generator) -> list[Ints]:
    """The sample indices of each label, in random order."""
    shuffled = rng.permutation(len(labels))
    sorted_by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return np.split(sorted_by_label, np.cumsum(np.bincount(labels, minlength=n_labels))[:-1])


def _deal(by_label: list[Ints], counts: Ints) -> list[Ints]:
    """Hand out the indices of each label consecutively, `counts[c, l]` of label l to client c."""
    shares = [np.split(indices, np.cumsum(wanted)[:-1]) for indices, wanted in zip(by_label, counts.T, strict=True)]
    return [np.concatenate(share) for share in zip(*shares, strict=True)]


def _dirichlet_counts(class_sizes: list[int], n_clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    """One draw: (C, L) samples of each label for each client."""
    counts = np.zeros((n_clients, len(class_sizes)), dtype=np.int64)
    for label, size in enumerate(class_sizes):
        if size:
            # A Dirichlet vector restricted to some clients and renormalised is Dirichlet: draw for those.
            below_mean = np.flatnonzero(counts.sum(axis=1) * n_clients < sum(class_sizes))
            shares = rng.dirichlet(np.full(len(below_mean), alpha))
            cuts = (np.cumsum(shares)[:-1] * size).astype(np.int64)
            counts[below_mean, label] = np.diff(cuts, prepend=0, append=size)
    return counts


def _dominant_counts(class_sizes: list[int], p: float, phi: int) -> Ints:
    """(C, L) samples of each label for each client of p%-DL; leftovers go to whom the fewest went before."""
    n_labels = len(class_sizes)
    is_dominant = np.repeat(np.eye(n_labels, dtype=bool), phi, axis=0)
    counts = np.zeros(is_dominant.shape, dtype=np.int64)
    clients = np.arange(len(counts))
    extras = np.zeros(len(counts), dtype=np.int64)
    for label, size in enumerate(class_sizes):
        turn = (clients - label * phi - 1) % len(clients)  # among equals, the turn moves with the label
        n_dominant = _round_half_up(p, size)
        for n_samples, members in (
            (n_dominant, clients[is_dominant[:, label]]),
            (size - n_dominant, clients[~is_dominant[:, label]]),
        ):
            each, left = divmod(n_samples, len(members))
            counts[members, label] = each
            favoured = members[np.lexsort((turn[members], extras[members]))[:left]]
            counts[favoured, label] += 1
            extras[favoured] += 1
    _even_out(counts, is_dominant)
    return counts


def _round_half_up(share: float, size: int) -> int:
    """share * size to the nearest integer for the share as written: 0.29 of 50 is 14.5 and gives 15."""
    return int((Decimal(str(share)) * size).to_integral_value(ROUND_HALF_UP))


def _even_out(counts: Ints, is_dominant: Bools) -> None:
    """Move single samples, in place, until client sizes differ by at most 1 or no move helps."""
    while chain := _chain_of_moves(counts, is_dominant):
        for giver, taker in pairwise(chain):
            label = _movable(counts, is_dominant, giver)[taker].argmax()
            counts[giver, label] -= 1
            counts[taker, label] += 1


def _chain_of_moves(counts: Ints, is_dominant: Bools) -> list[int]:
    """The shortest chain from the largest client to one at least 2 smaller, each able to give to the next.

    METHODS.md 2.1 moves from the largest to the smallest directly, which is not always possible: with
    p = 0.1, phi = 3 and 4 classes of 6 samples there has to be a client in between.
    """
    sizes = counts.sum(axis=1)
    largest = int(sizes.argmax())
    if sizes[largest] - sizes.min() <= 1:
        return []
    chains = {largest: [largest]}
    for giver in (queue := [largest]):
        for taker in np.flatnonzero(_movable(counts, is_dominant, giver).any(axis=1)).tolist():
            if taker not in chains:
                chains[taker] = [*chains[giver], taker]
                queue.append(taker)
                if sizes[largest] - sizes[taker] > 1:
                    return chains[taker]
    return []


def _movable(counts: Ints, is_dominant: Bools, giver: int) -> Bools:
    """(C, L): may `giver` hand a sample of label l to client c? Among equals in l, to who holds fewer."""
    movable: Bools = (is_dominant == is_dominant[giver]) & (counts < counts[giver])
    return movable
