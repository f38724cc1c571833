"""Chains: a mini-batch passes a part of the model at a server of every tier on its way to the main server, and back.

Several tiers: 2603.08687; several hops: 2402.00208 (docs/methods/several_servers.md#chains). Parts at servers of tiers
are copies of one client each, as in SplitFedV1, so that a graph waits for the gradient of its own mini-batch. The last
part is as the method has it: a copy for every client (SplitFedV1), or one that all train in turn (SplitFedV2).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import Method, MethodOptions, Task, once_a_round
from sfl_sim.methods.hierarchical import Tiered
from sfl_sim.methods.split import SplitStep
from sfl_sim.methods.splitfed_v1 import SplitFedV1
from sfl_sim.methods.splitfed_v2 import SplitFedV2
from sfl_sim.methods.tiers import Tree, relocated
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import SERVER, Flow, ServerNode, expect, on, par, send
from sfl_sim.training.steps import Average, Relay, RelayBack, Renew


@dataclass
class ChainVisit:
    """Round of one client.

    Attributes:
        way: the servers on its way, the main one included.
        parts: its copies of the parts, its own first; the last one may be everybody's.
    """

    way: Sequence[ServerNode]
    parts: list[Any] = field(default_factory=list)


class Chain(Tiered, SplitStep):
    """Parts of the model at clients, at servers of all tiers and at the main server; all but the last are copies.

    Attributes:
        shared: True if all clients train one last part, in turn; a subclass says so (`chain`).
        cuts: last layer of each client. ends: last layer of each tier.
        bounds: where pieces of the model begin and the last one ends: wherever a client or a tier ever cuts it.
    """

    shared: ClassVar[bool]

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        shared = self.shared
        if options is not None and options != type(options)():
            key, value = next((key, value) for key, value in options if value != getattr(type(options)(), key))
            raise ScenarioError("has no effect where tiers have cuts", key=f"method.{key}", found=value)
        self.shares_server_model = self.depends_on_time = shared
        self.forgets_lost = not shared
        self.cuts = [*task.lasting_cuts] if not shared else [task.cut] * len(task.data)
        self.ends = [tier.cut or 0 for tier in task.tiers.tiers]
        self.bounds = [0, *sorted({*self.cuts, *self.ends}), len(task.network)]
        tiers: list[tuple[Sequence[ServerNode], int]] = [
            (t.servers, end) for t, end in zip(task.tiers.tiers, self.ends, strict=True)
        ]
        parts = {}
        for servers, end in [*tiers, ([SERVER], len(task.network))]:
            for server in servers:
                pieces = task.split(*self.bounds[1:-1])
                parts[server] = {n: piece for n, piece in enumerate(pieces) if self.bounds[n] < end}
        self.tree = Tree(task.tiers, parts, lambda: sum(start < max(self.cuts) for start in self.bounds[:-1]))

    def _held(self, server: ServerNode, start: int, stop: int) -> Replica | Joined:
        """Layers `start` to `stop` (excluded) of what a server holds."""
        pieces = [piece for n, piece in self.tree.parts[server].items() if start <= self.bounds[n] < stop]
        return pieces[0] if len(pieces) == 1 else Joined(self.task.network.part(start, stop), pieces)

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """All clients side by side; then averages of copies at their servers, and from tier to tier."""
        groups = yield from self.begin(round, clients)
        visits = {c: ChainVisit(self.task.tiers.way(server)) for server, group in groups.items() for c in group}
        if self.shared:
            yield on(SERVER, Renew(), self.last)
            yield expect(self.last, {c: self.data.n_batches(c) for c in self.took_part(clients)})
        trained = yield par({c: self.client(c, visits[c], round) for c in self.took_part(clients)})
        visits = {c: visits[c] for c in trained}
        yield par(self.average_at(server, visits) for server in self.tree.parts)
        self.tree.count({server: self.weight([c for c in group if c in visits]) for server, group in groups.items()})
        yield from self.tree.average(round)

    @property
    def last(self) -> Replica | Joined:
        """The last part of the global model."""
        return self._held(SERVER, self.ends[-1], len(self.task.network))

    def client(self, c: int, visit: ChainVisit, round: int) -> Flow:
        """Download part-1, copy the other parts, train all, upload part-1."""
        home, *_ = visit.way
        starts = [self.cuts[c], *self.ends]
        part1 = yield from relocated(self.wire.fetch(self._held(home, 0, self.cuts[c]), c), home)
        visit.parts = [part1]
        for server, start, stop in zip(visit.way, starts, [*self.ends, len(self.task.network)], strict=True):
            held = self._held(server, start, stop)
            visit.parts.append(held if self.shared and server is SERVER else (yield send(held, server, server)))
        for batch in self.data.batches(c, round):
            yield from self.hops(c, visit, batch, round)
        visit.parts[0] = yield from relocated(self.wire.deliver(part1, c, round), home)

    def hops(self, c: int, visit: ChainVisit, batch: Batch, round: int) -> Flow:
        """Train all parts on one mini-batch: forward from hop to hop, the loss at the last, backward the same way."""
        part1, *middle, last = visit.parts
        home = visit.way[0]
        smashed = yield on(c, self.forward, part1, batch)
        smashed = passed = yield from relocated(self.wire.upload(smashed, part1.part, batch, c, round), home)
        for here, above, part in zip(visit.way, visit.way[1:], middle, strict=False):
            passed = yield on(here, Relay(), part, passed)
            passed = yield send(passed, here, above)
        gradient = yield on(SERVER, self.server_step(round), last, passed)
        for here, above, part in [*zip(visit.way, visit.way[1:], middle, strict=False)][::-1]:
            gradient = yield send(gradient, above, here)
            gradient = yield on(here, self.relay_back(round), part, gradient)
        gradient = yield from relocated(self.wire.download(gradient, smashed, part1, c, round), home)
        yield on(c, self.backward(round, c), part1, gradient)

    @once_a_round
    def relay_back(self, round: int) -> RelayBack:
        """The step of a server in the middle from the gradient that comes down to it."""
        return RelayBack(self.optimiser(round, SERVER))

    def average_at(self, server: ServerNode, visits: dict[int, ChainVisit]) -> Flow:
        """Average at a server the copies of those parts that it is the first to hold, of the clients below it."""
        level = next((n for n, tier in enumerate(self.task.tiers.tiers) if server in tier.servers), len(self.ends))
        below = {c: visit for c, visit in visits.items() if visit.way[level] == server}
        begins = self.ends[level - 1] if level else 0
        for number, piece in self.tree.parts[server].items():
            start = self.bounds[number]
            if below and start >= begins and not (self.shared and level == len(self.ends)):
                copies = [
                    visit.parts[level + (start >= self.cuts[c] if not level else 1)] for c, visit in below.items()
                ]
                yield on(self.tree.node(server, number), Average(), piece, copies, self.task.shares(list(below)))

    def held_bytes(self, clients: Sequence[int]) -> dict[ServerNode, int]:
        homes, held = self.task.tiers.homes(self._round), dict.fromkeys(self.tree.parts, 0)
        for c in clients:
            way = self.task.tiers.way(homes[c])
            for server, start, stop in zip(way, [self.cuts[c], *self.ends], self.ends, strict=False):
                held[server] += self._held(server, start, stop).size_bytes
        return held | {SERVER: self.server_bytes(clients) or 0}

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        return self.last.size_bytes * (1 if self.shared else len(clients))


CHAINS: dict[type[Method], bool] = {SplitFedV1: False, SplitFedV2: True}
"""Methods with a form for tiers with cuts, and whether clients share the last part in it."""


def chain(host: type[Method], name: str = "") -> type[Chain]:
    """Make the form of a method of this name for tiers with cuts. Raises ScenarioError if it has none."""
    if host not in CHAINS:
        able = ["splitfed_v1", "splitfed_v2"]
        raise ScenarioError("has no form for tiers with cuts", key="method.name", found=name, allowed=able)
    return type(f"{host.__name__}Chain", (Chain,), {"shared": CHAINS[host], "survives": True})
