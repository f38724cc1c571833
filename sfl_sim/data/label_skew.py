"""Partitions that give each client some labels more than others: dominant labels, and shards of sorted samples."""

from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sfl_sim.data.samples import Ints, Samples, deal
from sfl_sim.errors import ScenarioError

Bools = NDArray[np.bool_]

NOBODY = -1


def dominant_label(
    samples: Samples, n_clients: int, rng: np.random.Generator, *, p: float = 0.8, phi: int = 1
) -> list[Ints]:
    """Dominant labels, p%-DL: `phi` clients share the fraction `p` of each label, others the rest (Hydra, 3.1, E.1).

    Client c has the dominant label c // phi. For classes of equal size n every client gets p*n/phi samples of its own
    label, and client sizes differ by at most 1; otherwise sizes follow the classes
    (docs/methods/partitions.md#dominant-labels).

    Raises ScenarioError if `n_clients` is not phi x n_labels, or there is only one label.
    """
    if samples.n_labels == 1:
        raise ScenarioError("needs more labels than one", key="data.partition.kind", found="dominant_label")
    _check_count("dominant_label", n_clients, phi, samples.n_labels)
    by_label = samples.by_label(rng)
    return deal(by_label, _dominant_counts(by_label, p, _dominance(samples.n_labels, 1, phi)))


def sharding(
    samples: Samples, n_clients: int, rng: np.random.Generator, *, p: float = 0.8, dominants: int = 2, phi: int = 1
) -> list[Ints]:
    """Several dominant labels, as in `dominant_label`, for each group of `phi` clients (Hydra, E.3).

    There are as many groups as labels. Group g has the `dominants` labels from g on, cyclically; each group of a label
    holds the fraction p/dominants of it, and the other groups share the rest (docs/methods/partitions.md#sharding).

    Raises ScenarioError if `n_clients` is not phi x n_labels, or every label would be dominant.
    """
    n_labels = samples.n_labels
    if dominants >= n_labels:
        raise ScenarioError(
            f"leaves no other of the {n_labels} labels for the rest of a client's samples",
            key="data.partition.dominants",
            found=dominants,
            allowed=f"1 to {n_labels - 1}",
        )
    _check_count("sharding", n_clients, phi, n_labels)
    by_label = samples.by_label(rng)
    return deal(by_label, _dominant_counts(by_label, p, _dominance(n_labels, dominants, phi)))


def label_shards(
    samples: Samples, n_clients: int, rng: np.random.Generator, *, shards: int = 2, n_shards: int = 100
) -> list[Ints]:
    """Shards, Shard-k: each client draws `shards` of `n_shards` equal shards of the samples sorted by label (HARMONY).

    Shards that no client draws stay unused (docs/methods/partitions.md#label-shards).

    Raises ScenarioError if the clients draw more shards than there are.
    """
    if shards * n_clients > n_shards:
        raise ScenarioError(
            f"{n_clients} clients cannot draw {shards} of {n_shards} shards each",
            key="data.partition.shards",
            found=shards,
            allowed=f"shards x clients up to {n_shards}",
        )
    cut = np.array_split(np.concatenate(samples.by_label(rng)), n_shards)
    drawn = rng.permutation(n_shards)[: shards * n_clients].reshape(n_clients, shards)
    return [np.concatenate([cut[shard] for shard in sorted(own)]) for own in drawn]


def _check_count(kind: str, n_clients: int, phi: int, n_labels: int) -> None:
    if n_clients != phi * n_labels:
        raise ScenarioError(
            f"{kind} needs phi clients for each label",
            key="clients.count",
            found=n_clients,
            allowed=f"{phi} x {n_labels} labels = {phi * n_labels}",
        )


def _dominance(n_labels: int, dominants: int, phi: int) -> Bools:
    """Mark (C, L) the labels that are dominant for each client c, which is in group c // phi."""
    labels = np.arange(n_labels)
    return np.repeat((labels - labels[:, None]) % n_labels < dominants, phi, axis=0)


def _dominant_counts(by_label: list[Ints], p: float, is_dominant: Bools) -> Ints:
    """Count (C, L) the samples of each label for each client; leftovers go to clients with the fewest so far."""
    shares = np.zeros(is_dominant.shape, dtype=np.int64)
    extra = np.zeros_like(shares, dtype=bool, order="F")  # one leftover for a client and a label at most
    clients = np.arange(len(shares))
    for label, size in enumerate(map(len, by_label)):
        dominant, others = clients[is_dominant[:, label]], clients[~is_dominant[:, label]]
        turn = (clients - dominant[0] - 1) % len(clients)  # among equals, the turn moves with the label
        n_dominant = _round_half_up(p, size)
        extras_before = extra.sum(axis=1)
        for n_samples, members in ((n_dominant, dominant), (size - n_dominant, others)):
            each, left = divmod(n_samples, len(members))
            shares[members, label] = each
            extra[members[np.lexsort((turn[members], extras_before[members]))[:left]], label] = True
    _even_out(shares.sum(axis=1) + extra.sum(axis=1), extra, is_dominant)
    counts: Ints = shares + extra
    return counts


def _round_half_up(share: float, size: int) -> int:
    """Round share * size to the nearest integer, for the share as written: 0.29 of 50 is 14.5 and gives 15."""
    return int((Decimal(str(share)) * size).to_integral_value(ROUND_HALF_UP))


def _even_out(sizes: Ints, extra: Bools, is_dominant: Bools) -> None:
    """Pass leftovers on, in place, until client sizes differ by at most 1 or no pass helps.

    A client may pass its leftover of a label to one without, if the label is dominant for both or for neither.
    """
    while chain := _chain_of_givers(sizes, extra, is_dominant):
        for giver, taker in pairwise(chain):
            label = (extra[giver] & ~extra[taker] & (is_dominant[giver] == is_dominant[taker])).argmax()
            extra[[giver, taker], label] = [False, True]
        sizes[chain[0]] -= 1
        sizes[chain[-1]] += 1


def _chain_of_givers(sizes: Ints, extra: Bools, is_dominant: Bools) -> list[int]:
    """Find the shortest chain from the largest client to one at least 2 smaller, each able to give to the next.

    Moving a sample from the largest to the smallest directly is not always possible: with p = 0.1, phi = 3 and
    4 classes of 6 samples a client in between is needed (docs/methods/partitions.md#dominant-labels).
    """
    largest = int(sizes.argmax())
    if sizes[largest] - sizes.min() <= 1:
        return []
    giver_of = np.full(len(sizes), NOBODY)
    giver_of[largest] = largest
    asked = np.zeros((2, extra.shape[1]), dtype=bool)  # labels whose takers, dominant or not, have a giver
    for giver in (queue := [largest]):
        takers = np.zeros(len(sizes), dtype=bool)
        for label in np.flatnonzero(extra[giver] & ~asked[is_dominant[giver].astype(int), range(extra.shape[1])]):
            dominant = is_dominant[giver, label]
            takers |= ~extra[:, label] & (is_dominant[:, label] == dominant)
            asked[int(dominant), label] = True
        takers &= giver_of == NOBODY
        giver_of[takers] = giver
        smaller = takers & (sizes < sizes[largest] - 1)
        if smaller.any():
            chain = [int(smaller.argmax())]
            while chain[0] != largest:
                chain.insert(0, int(giver_of[chain[0]]))
            return chain
        queue.extend(np.flatnonzero(takers).tolist())
    return []
