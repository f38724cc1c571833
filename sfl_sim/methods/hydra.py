"""Hydra: a shared trunk and a head for every group of clients at the server, against forgetting within a round.

Tirana et al., "Data Heterogeneity and Forgotten Labels in Split Federated Learning", AAAI 2026, Algorithms 1 and 2
(METHODS.md section 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.grouping import balanced_groups, superclasses
from sfl_sim.methods.split import SharedServer
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, expect, on, par, send
from sfl_sim.training.steps import Average, Renew

HEAD_LAYERS = 2


class HydraOptions(MethodOptions):
    """`cut2`: the layer after which the heads begin, as `model.cut`; null: before the last two layers with
    parameters, or before the last one if there would be no trunk.

    `num_heads`: null for one per label, or per superclass given. `superclasses`: lists of labels, by name or number.
    `grouping`: balanced groups, or each client to the superclass of its dominant label. `head_weights`: of the average.
    """

    cut2: int | str | Annotated[float, Field(gt=0, lt=1)] | None = None
    num_heads: Annotated[int, Field(ge=1)] | None = None
    superclasses: list[list[str | int]] | None = None
    grouping: Literal["algorithm2", "superclass"] = "algorithm2"
    head_weights: Literal["samples", "uniform"] = "samples"


class Hydra(SharedServer, regular=True, survives=True):
    """SplitFedV2 whose last layers are copied for every group of clients, and averaged every round."""

    Options = HydraOptions
    options: HydraOptions

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.cut2 = self._cut2()
        self.part1, self.trunk, self.head = task.split(task.cut, self.cut2)
        self.part2 = task.network.part(task.cut, len(task.network))
        self.groups = self._groups()
        self.heads: dict[int, Replica] = {}
        """This round's copies of the head, by group."""

    def _cut2(self) -> int:
        """Between the cut (no trunk) and the end of the network (no heads)."""
        network, cut, cut2 = self.task.network, self.task.cut, self.options.cut2
        if cut2 is None:
            begins = [index for index, layer in enumerate(network.layers) if layer.parameters][-HEAD_LAYERS:]
            cut2 = next((index for index in begins if index > cut), None)
            if cut2 is None:
                problem = f"after cut {cut} there are no layers for both a trunk and heads; say where heads begin"
                raise ScenarioError(
                    problem, key="method.cut2", allowed=f"{cut} (no trunk) to {len(network)} (no heads)"
                )
        return network.cut_at(cut2, key="method.cut2", above=cut, ends=True)

    def _groups(self) -> list[int]:
        """The group of every client."""
        given, counts = self.options.superclasses, self.task.label_counts
        n_heads = self.options.num_heads or len(given or self.task.label_names)
        belongs = superclasses(n_heads, self.task.label_names, given)
        if self.options.grouping == "superclass":
            return [int(group) for group in belongs[counts.argmax(axis=1)].argmax(axis=1)]
        return balanced_groups(counts @ belongs)

    def setup(self) -> Flow:
        """The groups are made of what all clients tell."""
        yield from self.tell_labels()

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Trunk and the client's head by every job in turn; then part-1 and the heads are averaged, side by side."""
        yield on(SERVER, Renew(), self.trunk)
        self.heads = {}
        for group in sorted({self.groups[c] for c in clients}):
            self.heads[group] = yield send(self.head, SERVER, SERVER)
        yield expect(self.trunk, self.begin(clients))
        part2s = {group: Joined(self.part2, [self.trunk, head]) for group, head in self.heads.items()}
        copies = yield par({c: self.client(c, part2s[self.groups[c]], round) for c in clients})
        average = self.average(AGGREGATOR, self.part1, list(copies.values()), list(copies))
        yield par([average, self._average_heads(list(copies))])

    def _average_heads(self, clients: Sequence[int]) -> Flow:
        if clients:
            yield on(SERVER, Average(), self.head, *self._heads_of(clients))

    def _heads_of(self, clients: Sequence[int]) -> tuple[list[Replica], list[float]]:
        """The heads of the clients' groups, and q_g: of the clients' samples, or all alike (METHODS.md CHOICE 17)."""
        seen = dict.fromkeys(sorted({self.groups[c] for c in clients}), 0)
        for c in clients:
            seen[self.groups[c]] += self.data.seen(c)
        if self.options.head_weights == "uniform":
            seen = dict.fromkeys(seen, 1)
        return [self.heads[group] for group in seen], [weight / sum(seen.values()) for weight in seen.values()]

    def model(self) -> list[Replica]:
        """Part-1, the trunk, the averaged head."""
        return [self.part1, self.trunk, self.head]

    def current(self, part1_of: int | None = None) -> list[Replica]:
        """With the average of the current heads, of the round's start where nobody has reached a head."""
        head = Replica.averaged(*self._heads_of(list(self.replicas))) if self.replicas else self.head
        return [self.part1_now(part1_of), self.trunk, head]

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """The trunk and as many heads as there are groups among `clients`."""
        return self.trunk.size_bytes + len({self.groups[c] for c in clients}) * self.head.size_bytes
