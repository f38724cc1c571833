"""The round of SplitFedV1, which the momentum family shares: the server trains a copy of part-2 for every client.

A *host* says how clients learn under a method that only changes what the server does: a rule that changes every local
gradient before a step. It is none (`fedavg`, which SplitFedV1 equals), FedProx's or FedNAR's.

Every client may have a cut of its own, which a policy may change from round to round, or all a cut that is drawn for
the round. Layers that no client holds are
averaged at the server, all others at the aggregator: from the clients that hold them and, for the other clients, from
the server. The two exchange models for free, and the server never sees what a client trained. So the result is that of
FedAvg with any cuts (docs/methods/splitfed.md#splitfedv1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.cut_policies import CutCost, PolicyInput
from sfl_sim.methods.split import SplitStep
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, ServerNode, on, par, send
from sfl_sim.rng import stream
from sfl_sim.scenario.fields import OnlyWith
from sfl_sim.training.optimisers import CoClipped, GradientRule, Proximal
from sfl_sim.training.steps import Average


@dataclass
class ClientVisit:
    """Round of one client.

    Attributes:
        cut: the last layer that the client holds.
        n_batches: mini-batches that it runs.
        part1, part2: its copies of the two parts, once they have been made.
    """

    cut: int
    n_batches: int
    part1: Replica = field(init=False)
    part2: Replica = field(init=False)


class ServerCopies(SplitStep):
    """Clients train side by side, each with its own copy of part-2; both parts are averaged when the round ends.

    Attributes:
        equal_steps: whether all clients of a round run equally many mini-batches, the mean; else each runs its own.
        held: of each client, its cut in the rounds in which it was not lost.
    """

    only_averages = True
    forgets_lost = True
    equal_steps = False

    def __init__(self, task: Task, options: MethodOptions | None = None, more_cuts: Sequence[int] = ()) -> None:
        super().__init__(task, options)
        self.cuts = sorted({*task.cuts, *task.round_cuts, *more_cuts})
        self.pieces = task.split(*self.cuts)
        """The global model, cut wherever a client ever cuts it; with one cut, part-1 and part-2."""
        self.looks_at_times = task.cut_policy is not None
        if isinstance(self.options, HostOptions):
            self.rule = host_rule(task, self.options)
        self.held: dict[int, dict[int, int]] = {}
        self._now: Mapping[int, int] = {}

    @cached_property
    def parts(self) -> dict[int, tuple[Replica | Joined, Replica | Joined]]:
        """Part-1 and part-2 of the global model by cut, to be copied."""
        return {cut: (self._joined(0, i), self._joined(i, len(self.pieces))) for i, cut in enumerate(self.cuts, 1)}

    def _joined(self, start: int, stop: int) -> Replica | Joined:
        """Pieces `start` to `stop` (excluded) as one."""
        if stop - start == 1:
            return self.pieces[start]
        network = self.task.network
        bounds = [0, *self.cuts, len(network)]
        return Joined(network.part(bounds[start], bounds[stop]), self.pieces[start:stop])

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """w <- sum_c k_c w_c for both parts, over the clients that are not lost."""
        visits = self.visits(round, clients)
        trained = yield par({c: self.client(c, visit, round) for c, visit in visits.items()})
        visits = {c: visits[c] for c in trained}
        yield from self.average_at(SERVER, visits, round)
        yield from self.average_at(AGGREGATOR, visits, round)

    def visits(self, round: int, clients: Sequence[int]) -> dict[int, ClientVisit]:
        """The cut of each client, and its number of mini-batches."""
        self._now = cuts = self.choose_cuts(round, clients)
        return {c: ClientVisit(cuts[c], n) for c, n in zip(clients, self.n_batches(clients), strict=True)}

    def choose_cuts(self, round: int, clients: Sequence[int]) -> Mapping[int, int]:
        """The cut of each client: the task's, one that is drawn for the round, or what a policy chooses."""
        task = self.task
        if not task.round_cuts:
            return {c: task.cuts[c] for c in clients}
        if not task.cut_policy:
            return dict.fromkeys(clients, int(stream(task.seed, "cut", round).choice(task.round_cuts)))
        chosen = task.cut_policy(self.known, clients) if task.seen.rounds else {}
        return {c: self.known.cut(c) for c in clients} | dict(chosen)

    @cached_property
    def known(self) -> PolicyInput:
        """What a policy may know of the network and the clients."""
        task, data = self.task, self.data
        costs = {}
        for cut, (part1, part2) in self.parts.items():
            n = data.size(0)
            up_bytes, down_bytes = self.wire.crossing_bytes(part1.part, n)
            at_client, at_server = (part.part.work(n, passes=3).macs / n for part in (part1, part2))
            costs[cut] = CutCost(at_client, at_server, up_bytes / n, down_bytes / n, part1.size_bytes)
        return PolicyInput(costs, task.seen, self.held, task.round_cuts[0], data.seen, data.n_batches)

    def client_cuts(self, clients: Sequence[int]) -> Sequence[int]:
        return [self._now[c] for c in clients]

    def figures(self) -> Mapping[str, float]:
        """The mean cut of the round's clients, where it can change from round to round."""
        changes = self._now and (self.task.round_cuts or self.looks_at_times)
        return {"cut_mean": sum(self._now.values()) / len(self._now)} if changes else {}

    def n_batches(self, clients: Sequence[int]) -> list[int]:
        """Mini-batches that each client runs: all that it has, or with `equal_steps` their rounded mean."""
        if self.equal_steps:
            return [self.data.mean_batches(clients)] * len(clients)
        return [self.data.n_batches(c) for c in clients]

    def client(self, c: int, visit: ClientVisit, round: int) -> Flow:
        """Download part-1, copy part-2, train both, upload part-1."""
        part1, part2 = self.parts[visit.cut]
        visit.part1 = yield from self.wire.fetch(part1, c)
        visit.part2 = yield send(part2, SERVER, SERVER)
        batches = self.data.steps(c, round, visit.n_batches)
        yield from self.batches(c, visit.part1, visit.part2, batches, round)
        visit.part1 = yield from self.wire.deliver(visit.part1, c, round)
        self.held.setdefault(c, {})[round] = visit.cut

    def average_at(self, node: ServerNode, visits: Mapping[int, ClientVisit], round: int) -> Flow:
        """Average at the server all layers that none of the `visits` holds at its client, else all other layers."""
        deepest = max((visit.cut for visit in visits.values()), default=0)
        for piece, start in zip(self.pieces, [0, *self.cuts], strict=True):
            if visits and (start >= deepest) == (node == SERVER):
                copies = [visit.part1 if start < visit.cut else visit.part2 for visit in visits.values()]
                yield on(node, self.merge(round), piece, copies, self.task.shares(list(visits)))

    def merge(self, round: int) -> Average:
        """The step by which the copies of a round become the global model."""
        return Average()

    def model(self) -> list[Replica]:
        return self.pieces

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """Size of a part-2 for every client, of the largest where cuts change."""
        return sum(self.parts[min(self.task.round_cuts or [self.task.cuts[c]])][1].size_bytes for c in clients)


class HostOptions(MethodOptions):
    """Options of methods on hosts."""

    host: Literal["fedavg", "fedprox", "fednar"] = "fedavg"
    """Method whose clients train: fedavg (which splitfed_v1 equals), fedprox or fednar."""
    mu: Annotated[float, Field(ge=0), OnlyWith("host", "fedprox")] = 0.01
    """fedprox: weight of the proximal term."""
    max_norm: Annotated[float, Field(gt=0), OnlyWith("host", "fednar")] = 10.0
    """fednar: norm to which gradients with their weight decay are clipped."""


def host_rule(task: Task, options: HostOptions) -> GradientRule | None:
    """Give the host's rule, which changes every local gradient."""
    if options.host == "fednar":
        return co_clipping(task, options.max_norm)
    return Proximal(options.mu) if options.host == "fedprox" else None


def co_clipping(task: Task, max_norm: float) -> CoClipped:
    """Give FedNAR's rule. Raises ScenarioError for AdamW, whose weight decay is no part of a gradient to be clipped."""
    if task.optimizer == "adamw":
        problem = "FedNAR clips the weight decay with the gradient, which makes it Adam's"
        raise ScenarioError(problem, key="train.optimizer", found="adamw", allowed="sgd, nag, adam")
    return CoClipped(max_norm)
