"""Hydra: a shared trunk and a head for every group of clients at the server, against forgetting within a round.

Tirana et al., "Data Heterogeneity and Forgotten Labels in Split Federated Learning", AAAI 2026, Algorithms 1 and 2
(docs/methods/hydra.md). Symbols: w1 is part-1, w2a the trunk, w2b[g] the head of group g, u(c) the group of client c.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.split import SharedServer
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, expect, on, par, send
from sfl_sim.training.steps import Average, Renew

HEAD_LAYERS = 2

CIFAR10: list[list[list[str]]] = [
    [["automobile", "truck"], ["airplane", "bird"], ["ship"], ["cat", "dog"], ["deer", "frog", "horse"]],
    [["bird", "cat", "deer", "dog", "frog", "horse"], ["airplane", "automobile", "ship", "truck"]],
]
"""The paper's superclasses of CIFAR-10 for 5 and 2 heads."""


class HydraOptions(MethodOptions):
    """Options of Hydra."""

    cut2: int | str | Annotated[float, Field(gt=0, lt=1)] | None = None
    """Layer after which the heads begin, as model.cut; null: before the last two layers with parameters, or before the
    last one if there would be no trunk."""
    num_heads: Annotated[int, Field(ge=1)] | None = None
    """Number of heads (G); null: one for each label, or for each superclass given."""
    superclasses: list[list[str | int]] | None = None
    """Superclasses: lists of labels, by name or number; null: the paper's for CIFAR-10, else labels in a row."""
    grouping: Literal["algorithm2", "superclass"] = "algorithm2"
    """Grouping of clients: Algorithm 2, or each client to the superclass of its dominant label."""
    head_weights: Literal["samples", "uniform"] = "samples"
    """Weights of heads in their average (q_g): the samples that each has processed, or uniform."""


class Hydra(SharedServer, regular=True, survives=True):
    """SplitFedV2 whose last layers are copied for every group of clients, and averaged every round."""

    only_averages = True
    needs_labels = "heads belong to groups of labels"

    Options = HydraOptions
    options: HydraOptions
    examples = (HydraOptions(cut2=2), HydraOptions(cut2=2, num_heads=2))

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        cut2 = self._cut2()
        self.part1, self.trunk, self.head = task.split(task.cut, cut2)
        self.client_model = self.part1
        self.part2 = task.network.part(task.cut, len(task.network))
        self.groups = self._groups()
        """u(c), the group of every client c."""
        self.heads: dict[int, Replica] = {}
        """w2b[g], this round's copies of the head."""

    def setup(self) -> Flow:
        yield from self.tell_labels()

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """w2a and w2b[u(c)] by every job in turn; then w1 <- sum_c k_c w1_c beside w2b <- sum_g q_g w2b[g]."""
        yield on(SERVER, Renew(), self.trunk)
        self.heads = {}
        for group in sorted({self.groups[c] for c in clients}):
            self.heads[group] = yield send(self.head, SERVER, SERVER)
        yield expect(self.trunk, self.begin(clients))
        part2s = {group: Joined(self.part2, [self.trunk, head]) for group, head in self.heads.items()}
        copies = yield par({c: self.client(c, part2s[self.groups[c]], round) for c in clients})
        average = self.average(AGGREGATOR, self.part1, copies)
        yield par([average, self.average_heads(list(copies))])

    def average_heads(self, clients: Sequence[int]) -> Flow:
        """w2b <- sum_g q_g w2b[g] over the groups of `clients`."""
        if clients:
            yield on(SERVER, Average(), self.head, *self.weighted_heads(clients))

    def weighted_heads(self, clients: Sequence[int]) -> tuple[list[Replica], list[float]]:
        """The heads of the clients' groups, and their weights q_g, which add up to one."""
        seen = dict.fromkeys(sorted({self.groups[c] for c in clients}), 0)
        for c in clients:
            seen[self.groups[c]] += self.data.seen(c)
        if self.options.head_weights == "uniform":
            seen = dict.fromkeys(seen, 1)
        return [self.heads[group] for group in seen], [samples / sum(seen.values()) for samples in seen.values()]

    def model(self) -> list[Replica]:
        return [self.part1, self.trunk, self.head]

    def current(self) -> list[Replica]:
        """Give part-1, the trunk, and the average of current heads; the round's first head if all clients are lost."""
        head = Replica.averaged(*self.weighted_heads(list(self.copies))) if self.copies else self.head
        return [self.part1_now(), self.trunk, head]

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        return self.trunk.size_bytes + len({self.groups[c] for c in clients}) * self.head.size_bytes

    def _cut2(self) -> int:
        """The cut between trunk and heads: from `task.cut` (no trunk) to the end of the network (no heads)."""
        network, cut, cut2 = self.task.network, self.task.cut, self.options.cut2
        if cut2 is None:
            begins = [index for index, layer in enumerate(network.layers) if layer.parameters + layer.frozen][
                -HEAD_LAYERS:
            ]
            cut2 = next((index for index in begins if index > cut), None)
            if cut2 is None:
                problem = f"after cut {cut} there are no layers for both a trunk and heads; say where heads begin"
                raise ScenarioError(
                    problem, key="method.cut2", allowed=f"{cut} (no trunk) to {len(network)} (no heads)"
                )
        return network.cut_at(cut2, key="method.cut2", above=cut, ends=True)

    def _groups(self) -> list[int]:
        """The group of every client."""
        given, rho = self.options.superclasses, self.task.label_counts
        n_heads = self.options.num_heads or len(given or self.task.label_names)
        belongs = superclasses(n_heads, self.task.label_names, given)
        if self.options.grouping == "superclass":
            return [int(group) for group in belongs[rho.argmax(axis=1)].argmax(axis=1)]
        return balanced_groups(rho @ belongs)


def balanced_groups(scores: NDArray[np.int64]) -> list[int]:
    """Group clients by Algorithm 2: the groups take turns in choosing the client that scores highest for them.

    Args:
        scores: (C, G) how much client c has of what group g is for; ties go to the smallest client.

    Gives u(c) of every client. Group sizes differ by at most one. O(G C log C).
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
    """Assign labels to superclasses: (L, G), one where label l belongs to superclass g, else zero.

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
