"""Test sets of single clients, as parts of the global test set, which is evaluated once for all of them."""

from collections.abc import Callable
from decimal import Decimal

import numpy as np

from sfl_sim.data.samples import Ints, Samples, deal
from sfl_sim.errors import ScenarioError


def client_test_sets(
    kind: str, samples: Samples, counts: Ints, rng: np.random.Generator, **options: float
) -> list[Ints]:
    """Choose each client's indices into the global test set; gives an empty list for `global`.

    Args:
        kind: a key of `TEST_SETS`, or `global`, if clients have no test sets of their own.
        samples: the test set.
        counts: (C, L) training samples of each label that each client holds.
        rng: random stream.
        options: the keyword arguments of the function in `TEST_SETS`.

    Raises ScenarioError if the options cannot be met, or a client is left without a test sample.
    """
    if kind == "global":
        return []
    parts = TEST_SETS[kind](samples, counts, rng, **options)
    for client, part in enumerate(parts):
        if not len(part):
            raise ScenarioError(
                f"{kind} leaves client {client} of {len(parts)} without test samples: use fewer clients, "
                "more test samples or another partition",
                key="data.test",
            )
    return parts


def rho_ood(samples: Samples, counts: Ints, rng: np.random.Generator, *, rho: float) -> list[Ints]:
    """Give each client all test samples of its own labels, and `rho` times as many of other labels (HARMONY, Eq. 11).

    With n test samples of its own labels, each of the U labels that the client has not been trained on ("unseen")
    contributes floor(rho n / U) samples: the first in one random order, or all there are
    (docs/methods/partitions.md#test-sets). A client that has seen every label is tested on the whole test set.

    Raises ScenarioError if rho is positive, but no client gets a sample of an unseen label.
    """
    by_label = samples.by_label(rng)
    n_test = np.array([len(indices) for indices in by_label])
    seen, which = np.unique(counts > 0, axis=0, return_inverse=True)  # clients with the same labels share a test set
    n_own, n_unseen = (seen * n_test).sum(axis=1), (~seen).sum(axis=1)
    each = [
        int(Decimal(str(rho)) * n // max(1, unseen))
        for n, unseen in zip(n_own.tolist(), n_unseen.tolist(), strict=True)
    ]
    wanted = np.where(seen, n_test, np.minimum(np.array(each)[:, None], n_test))
    if rho > 0 and not wanted[~seen].any():
        raise ScenarioError(
            "no client gets a test sample of a label that it has not seen: all have seen all labels, or rho is too "
            "small",
            key="data.test.rho",
            found=rho,
        )
    sets = [np.concatenate([i[:n] for i, n in zip(by_label, row, strict=True)]) for row in wanted]
    return [sets[i] for i in which.ravel()]


def out_of_client(samples: Samples, counts: Ints, rng: np.random.Generator, *, drift: bool = True) -> list[Ints]:
    """Make test sets as skewed as the training sets; with `drift` clients get each other's (Jiang and Lin 2023).

    The test samples of each label are dealt in the proportions in which its training samples are
    (docs/methods/partitions.md#test-sets). With drift a client then draws as many samples as it was dealt, or as many
    as there are, from those that the other clients were dealt.
    """
    by_label = samples.by_label(rng)
    own = deal(by_label, _in_proportion(counts, np.array([len(indices) for indices in by_label])))
    if not drift:
        return own
    everyone = np.concatenate(own)
    ends = np.cumsum([len(part) for part in own])
    parts = []
    for part, end in zip(own, ends, strict=True):
        others = np.delete(everyone, slice(end - len(part), end))
        parts.append(rng.choice(others, min(len(part), len(others)), replace=False))
    return parts


TEST_SETS: dict[str, Callable[..., list[Ints]]] = {"rho_ood": rho_ood, "out_of_client": out_of_client}


def _in_proportion(counts: Ints, n_test: Ints) -> Ints:
    """Divide each label's test samples (L,) in the proportions of its column of `counts` (C, L); gives (C, L).

    Shares are rounded down, and the rest of a label goes to the clients that have lost the most by rounding so far:
    in this way clients with less than one sample of every label get test samples, too.
    """
    held = counts.sum(axis=0)
    dealt, rest = np.divmod(counts * n_test, np.maximum(held, 1))
    left = np.where(held > 0, n_test - dealt.sum(axis=0), 0)
    owed = np.zeros(len(counts))
    for label in np.flatnonzero(left):
        owed += rest[:, label] / held[label]
        candidates = np.flatnonzero(rest[:, label])
        lucky = candidates[np.argsort(-owed[candidates], kind="stable")[: left[label]]]
        dealt[lucky, label] += 1
        owed[lucky] -= 1
    return dealt
