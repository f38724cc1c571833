"""Which clients share a head: the grouping of Hydra (Tirana et al. 2026, Algorithm 2) and its superclasses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from sfl_sim.errors import ScenarioError

CIFAR10: list[list[list[str]]] = [
    [["automobile", "truck"], ["airplane", "bird"], ["ship"], ["cat", "dog"], ["deer", "frog", "horse"]],
    [["bird", "cat", "deer", "dog", "frog", "horse"], ["airplane", "automobile", "ship", "truck"]],
]
"""The paper's superclasses of CIFAR-10 for 5 and 2 heads."""


def balanced_groups(scores: NDArray[np.int64]) -> list[int]:
    """Each client's group: the groups take turns in choosing the client that scores highest for them (Algorithm 2).

    Args:
        scores: (C, G) how much client c has of what group g is for; ties go to the smallest client.

    Group sizes differ by at most one. O(G C log C).
    """
    n_clients, n_groups = scores.shape
    wishes = [iter(order) for order in np.argsort(-scores, axis=0, kind="stable").T]
    group = [-1] * n_clients
    for turn in range(n_clients):
        chosen = next(client for client in wishes[turn % n_groups] if group[client] < 0)
        group[chosen] = turn % n_groups
    return group


def superclasses(
    n_groups: int, label_names: Sequence[str], given: Sequence[Sequence[str | int]] | None
) -> NDArray[np.int64]:
    """(L, G) ones where label l belongs to superclass g.

    Args:
        n_groups: G.
        label_names: of the L labels.
        given: the labels of each superclass, by name or number; None for each label its own if G = L, the paper's if
            the labels are CIFAR-10's and G is 5 or 2, else G stretches of the labels in their numerical order.

    Raises ScenarioError unless every label belongs to exactly one of the G superclasses.
    """
    n_labels = len(label_names)
    if not 1 <= n_groups <= n_labels:
        raise ScenarioError("heads need labels", key="method.num_heads", found=n_groups, allowed=f"1 to {n_labels}")
    if given is None:
        known = (groups for groups in CIFAR10 if sorted(chain.from_iterable(groups)) == sorted(label_names))
        given = next((groups for groups in known if len(groups) == n_groups), None)
    if given is None:
        given = [list(map(int, labels)) for labels in np.array_split(np.arange(n_labels), n_groups)]
    if len(given) != n_groups:
        problem = f"there are {len(given)} superclasses, and each has a head"
        raise ScenarioError(problem, key="method.num_heads", found=n_groups, allowed=[len(given)])
    belongs = np.zeros((n_labels, n_groups), dtype=np.int64)
    for group, labels in enumerate(given):
        for label in labels:
            belongs[_label(label, label_names), group] += 1
    wrong = [name for name, times in zip(label_names, belongs.sum(axis=1), strict=True) if times != 1]
    if wrong:
        problem = f"every label belongs to one superclass, which is not so for {', '.join(wrong)}"
        raise ScenarioError(problem, key="method.superclasses", found=given)
    if not belongs.any(axis=0).all():
        raise ScenarioError("a superclass has no labels", key="method.superclasses", found=given)
    return belongs


def _label(label: str | int, names: Sequence[str]) -> int:
    number = names.index(label) if label in names else label
    if not isinstance(number, int) or not 0 <= number < len(names):
        raise ScenarioError("no such label", key="method.superclasses", found=label, allowed=", ".join(names))
    return number
