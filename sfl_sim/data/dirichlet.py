"""Partitions drawn from symmetric Dirichlet distributions (docs/methods/partitions.md#dirichlet)."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sfl_sim.data.samples import Ints, Samples, deal
from sfl_sim.errors import ScenarioError

MAX_DRAWS = 1000
"""Number of draws after which a partition with `min_size` samples for every client is given up."""


def dirichlet(
    samples: Samples,
    n_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.3,
    by: str = "class",
    min_size: int = 10,
) -> list[Ints]:
    """Dir(alpha): each label over the clients (NIID-Bench), or each client over the labels (Hsu et al. 2019).

    The whole partition is drawn again until every client has at least `min_size` samples
    (docs/methods/partitions.md#dirichlet).

    Args:
        samples, n_clients, rng: as in `partition.partition`.
        alpha: concentration; the smaller, the more unequal.
        by: `class`: each label is split in proportions drawn from Dir(alpha) over the clients, except those that
            already hold N/C samples; `class_plain`: over all clients (MergeSFL, with `min_size` 0). `client`: each
            client draws weights from Dir(alpha) over the labels, and every label is split in proportion to them;
            `client_equal`: one client after another draws N/C samples by its weights from those that are left.
        min_size: fewest samples of a client.

    Raises ScenarioError if `min_size` was not reached in `MAX_DRAWS` draws.
    """
    by_label = samples.by_label(rng)
    class_sizes = np.array([len(indices) for indices in by_label])
    draw = partial(_DRAWS[by], class_sizes, n_clients, alpha=alpha, rng=rng)
    return deal(by_label, _large_enough(draw, len(samples), n_clients, min_size, alpha=alpha))


def quantity_skew(
    samples: Samples, n_clients: int, rng: np.random.Generator, *, beta: float = 0.5, min_size: int = 10
) -> list[Ints]:
    """Client sizes drawn from Dir(beta), with the same label distribution for all clients (NIID-Bench).

    Raises ScenarioError if `min_size` was not reached in `MAX_DRAWS` draws.
    """
    shuffled = rng.permutation(len(samples))

    def draw() -> Ints:
        return _cut(len(samples), rng.dirichlet(np.full(n_clients, beta)))[:, None]

    return deal([shuffled], _large_enough(draw, len(samples), n_clients, min_size, beta=beta))


def _large_enough(draw: Callable[[], Ints], n_samples: int, n_clients: int, min_size: int, **how: float) -> Ints:
    """Repeat `draw` until all rows of its result (C, L) sum to `min_size` or more; errors name the parameter `how`."""
    if n_clients * min_size > n_samples:
        raise ScenarioError(
            f"{n_clients} clients share {n_samples} samples",
            key="data.partition.min_size",
            found=min_size,
            allowed=f"at most {n_samples // n_clients}",
        )
    for _ in range(MAX_DRAWS):
        counts = draw()
        if counts.sum(axis=1).min() >= min_size:
            return counts
    [(name, concentration)] = how.items()
    raise ScenarioError(
        f"{MAX_DRAWS:,} Dirichlet draws ({name} {concentration:g}) of {n_samples} samples for {n_clients} clients "
        f"all left some client with fewer: use a smaller min_size, a larger {name} or fewer clients",
        key="data.partition.min_size",
        found=min_size,
    )


def _by_class(class_sizes: Ints, n_clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    counts = np.zeros((n_clients, len(class_sizes)), dtype=np.int64)
    for label in np.flatnonzero(class_sizes):
        below_mean = np.flatnonzero(counts.sum(axis=1) * n_clients < class_sizes.sum())
        # A Dirichlet vector restricted to some clients and renormalised is Dirichlet: draw for those.
        counts[below_mean, label] = _cut(class_sizes[label], rng.dirichlet(np.full(len(below_mean), alpha)))
    return counts


def _by_class_plain(class_sizes: Ints, n_clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    shares = rng.dirichlet(np.full(n_clients, alpha), len(class_sizes))
    return np.stack([_cut(size, share) for size, share in zip(class_sizes, shares, strict=True)], axis=1)


def _by_client(class_sizes: Ints, n_clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    wanted = rng.dirichlet(np.full(len(class_sizes), alpha), n_clients)
    wanted += np.finfo(float).tiny  # a label with weight 0 at all clients is split evenly
    shares = wanted / wanted.sum(axis=0)
    return np.stack([_cut(size, share) for size, share in zip(class_sizes, shares.T, strict=True)], axis=1)


def _by_client_equal(class_sizes: Ints, n_clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Draw (C, L) as if sample by sample: a client whose label runs out keeps what it got and draws the rest again."""
    n_labels, n_samples = len(class_sizes), int(class_sizes.sum())
    wanted = rng.dirichlet(np.full(n_labels, alpha), n_clients)
    counts = np.zeros((n_clients, n_labels), dtype=np.int64)
    missing = n_samples // n_clients + (np.arange(n_clients) < n_samples % n_clients)
    left = class_sizes.copy()
    done = 0
    while left.any():  # once more for each label that is used up
        weights = wanted[done:] * (left > 0)
        weights[~weights.any(axis=1)] = left  # of a client with weight 0 for all labels that are left
        drawn = rng.multinomial(missing[done:], weights / weights.sum(axis=1, keepdims=True))
        fits = (drawn.cumsum(axis=0) <= left).all(axis=1)
        whole = len(drawn) if fits.all() else int(fits.argmin())
        taken = drawn[: whole + 1]
        taken[whole:] = np.minimum(taken[whole:], left - taken[:whole].sum(axis=0))
        counts[done : done + len(taken)] += taken
        missing[done : done + len(taken)] -= taken.sum(axis=1)
        left -= taken.sum(axis=0)
        done += whole
    return counts


_DRAWS: dict[str, Callable[..., Ints]] = {
    "class": _by_class,
    "class_plain": _by_class_plain,
    "client": _by_client,
    "client_equal": _by_client_equal,
}
"""Functions that draw the numbers (C, L) of samples of each label for each client."""


def _cut(size: int, shares: NDArray[np.float64]) -> Ints:
    """Divide `size` samples in the proportions `shares`, which sum to 1: differences of floored cumulative sums."""
    cuts = (np.cumsum(shares)[:-1] * size).astype(np.int64)
    return np.diff(np.concatenate([[0], cuts, [size]]))
