"""Partitions of labelled training samples over clients, by name, and the cyclic client order.

Every partition is disjoint and uses every sample unless its docstring says otherwise. A client's indices are ordered by
label and random within a label; those of `iid` and `quantity_skew` are random throughout. Definitions and sources are
in docs/methods/partitions.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sfl_sim.data.dirichlet import dirichlet, quantity_skew
from sfl_sim.data.label_skew import dominant_label, label_shards, sharding
from sfl_sim.data.samples import Ints, Samples
from sfl_sim.errors import ScenarioError

USUAL_CLIENTS = 10
"""Number of clients, if neither the scenario nor the partition gives one."""


def partition(
    kind: str, samples: Samples, n_clients: int | None, rng: np.random.Generator, **options: object
) -> Sequence[Ints]:
    """Divide the samples among clients, by the partition `kind` with its `options`; gives each client's sample indices.

    Args:
        kind: a key of `PARTITIONS`.
        samples: the training set.
        n_clients: number of clients, C; None for the usual number of this partition.
        rng: random stream; equal streams give equal partitions.
        options: the keyword arguments of the partition's function.

    Raises ScenarioError if the options cannot be met.
    """
    function = PARTITIONS[kind]
    if n_clients is None:
        n_clients = _usual_clients(kind, samples, (function.__kwdefaults__ or {}) | options)
        check_clients(n_clients, samples)
    return function(samples, n_clients, rng, **options)


def set_aside(
    shares: Sequence[Ints], rng: np.random.Generator, share: float | None, samples: int | None
) -> tuple[list[Ints], Ints]:
    """Return what clients keep, in their order, and the sorted indices of what is set aside, which no client keeps.

    Args:
        shares: indices of each client's samples.
        share: of each client's samples, rounded.
        samples: number of samples of all clients; None: as `share` says.

    Raises ScenarioError if none is set aside, or none is left.
    """
    everything = np.unique(np.concatenate(shares))
    if samples is not None:
        if samples >= len(everything):
            allowed = f"1 to {len(everything) - 1}"
            problem = "leaves nothing to train on"
            raise ScenarioError(problem, key="data.validation.samples", found=samples, allowed=allowed)
        aside = np.sort(rng.choice(everything, samples, replace=False))
    else:
        assert share is not None
        drawn = [rng.choice(own, int(share * len(own) + 0.5), replace=False) for own in shares]
        aside = np.unique(np.concatenate(drawn))
        if not len(aside):
            raise ScenarioError("sets no sample aside: clients have too few", key="data.validation.share", found=share)
    kept = np.ones(everything[-1] + 1, dtype=bool)
    kept[aside] = False
    return [own[kept[own]] for own in shares], aside


def check_clients(n_clients: int, samples: Samples) -> None:
    """Raise ScenarioError if there are more clients than samples."""
    if n_clients > len(samples):
        allowed = f"1 to {len(samples)}, the training samples"
        raise ScenarioError("more clients than samples", key="clients.count", found=n_clients, allowed=allowed)


def _usual_clients(kind: str, samples: Samples, options: Mapping[str, Any]) -> int:
    """Return the number of clients of a partition if the scenario gives none."""
    match kind:
        case "dominant_label" | "sharding":
            return int(options["phi"] * samples.n_labels)
        case "label_shards":
            return max(1, int(options["n_shards"] // options["shards"]))
        case "natural":
            return len(np.unique(_owners(samples)))
        case "indices":
            return len(options["holdings"])
    return USUAL_CLIENTS


class Chunks(Sequence[Ints]):
    """An array in chunks whose sizes differ by at most 1, larger ones first, each cut out when it is asked for.

    As np.array_split gives, of which a million arrays take a while and 0.2 GB.
    """

    def __init__(self, order: Ints, n: int) -> None:
        self.order, number = order, np.arange(n + 1)
        size, rest = divmod(len(order), n)
        self._ends = number * size + np.minimum(number, rest)

    @property
    def sizes(self) -> Ints:
        """Number of elements of each chunk."""
        return np.diff(self._ends)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> Ints:  # type: ignore[override]  # nobody wants a slice of clients
        number = range(len(self))[number]
        return self.order[self._ends[number] : self._ends[number + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self.order[start:end] for start, end in pairwise(self._ends.tolist()))


def iid(samples: Samples, n_clients: int, rng: np.random.Generator) -> Sequence[Ints]:
    """Shuffled samples, cut into chunks whose sizes differ by at most 1."""
    return Chunks(rng.permutation(len(samples)), n_clients)


def natural(samples: Samples, n_clients: int, rng: np.random.Generator) -> list[Ints]:
    """Owners, such as FEMNIST's writers: one client for each, or for `n_clients` of them drawn at random.

    Raises ScenarioError if the data set has no owners, or fewer than clients.
    """
    owners = _owners(samples)
    if n_clients > len(np.unique(owners)):
        problem = "not so many owners"
        raise ScenarioError(problem, key="clients.count", found=n_clients, allowed=f"1 to {len(np.unique(owners))}")
    order = np.concatenate(samples.by_label(rng))
    order = order[np.argsort(owners[order], kind="stable")]
    holdings = np.split(order, np.flatnonzero(np.diff(owners[order])) + 1)
    return [holdings[owner] for owner in np.sort(rng.choice(len(holdings), n_clients, replace=False))]


def indices(samples: Samples, n_clients: int, rng: np.random.Generator, *, holdings: Sequence[Any] = ()) -> list[Ints]:
    """Indices of your own: those of the training samples of each client, which may overlap; from a file or Python.

    Raises ScenarioError if there is not one array for each client, or not of indices into the training samples.
    """
    key, allowed = "data.partition.file", f"whole numbers from 0 to {len(samples) - 1}"
    if not len(holdings):
        raise ScenarioError("holds no client", key=key)
    if len(holdings) != n_clients:
        problem = "must be the number of arrays in data.partition, or left out"
        raise ScenarioError(problem, key="clients.count", found=n_clients, allowed=[len(holdings)])
    parts = []
    for client, given in enumerate(holdings):
        try:
            part = np.asarray(given)
        except ValueError:  # lists of unequal lengths
            part = np.zeros((0, 0))
        if part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
            raise ScenarioError(f"client {client} has no list of indices", key=key, found=given, allowed=allowed)
        part = part.astype(np.int64)
        if len(outside := part[(part < 0) | (part >= len(samples))]):
            raise ScenarioError(f"client {client} has no such sample", key=key, found=int(outside[0]), allowed=allowed)
        parts.append(part)
    return parts


PARTITIONS: dict[str, Callable[..., Sequence[Ints]]] = {
    "iid": iid,
    "dominant_label": dominant_label,
    "sharding": sharding,
    "label_shards": label_shards,
    "dirichlet": dirichlet,
    "quantity_skew": quantity_skew,
    "natural": natural,
    "indices": indices,
}


def check_none_empty(parts: Sequence[Ints]) -> None:
    """Raise ScenarioError if the partition leaves a client without samples."""
    sizes = parts.sizes if isinstance(parts, Chunks) else _sizes(parts)
    if len(empty := np.flatnonzero(sizes == 0)):
        raise ScenarioError(f"client {empty[0]} of {len(parts)} gets no samples", key="data.partition")


def _sizes(parts: Sequence[Ints]) -> Ints:
    return np.array([len(part) for part in parts])


def label_counts(labels: Ints, parts: Sequence[Ints], n_labels: int) -> Ints:
    """Count (C, L) the samples of each label that each client holds."""
    order, sizes = (parts.order, parts.sizes) if isinstance(parts, Chunks) else (np.concatenate(parts), _sizes(parts))
    cells = np.repeat(np.arange(len(parts)), sizes) * n_labels + labels[order]
    return np.bincount(cells, minlength=len(parts) * n_labels).reshape(len(parts), n_labels)


def label_order(n_labels: int, rng: np.random.Generator) -> Ints:
    """Draw the run's label permutation (L,), which cyclic orders and per-position accuracy follow."""
    return rng.permutation(n_labels)


def cyclic_clients(counts: Ints, label_order: Ints) -> list[int]:
    """List the clients by dominant label, the labels in `label_order`, ascending within a label.

    This is the list of the cyclic orders (docs/methods/orders.md#the-cyclic-list).

    Args:
        counts: (C, L) as from `label_counts`; the dominant label is the most frequent, the smallest if tied.
        label_order: (L,) label permutation, as from `label_order`.
    """
    position = np.argsort(label_order)
    clients: list[int] = np.argsort(position[counts.argmax(axis=1)], kind="stable").tolist()
    return clients


def _owners(samples: Samples) -> Ints:
    if samples.owners is None:
        raise ScenarioError(
            "the owners of this data set's samples are unknown; they are known for femnist, celeba, shakespeare, "
            "sent140, reddit, stackoverflow, speech_commands, and synthetic with data.owners; of other data, "
            "data.partition {kind: indices, file: ...} takes the holder of each training sample",
            key="data.partition.kind",
            found="natural",
        )
    return samples.owners
