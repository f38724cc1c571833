"""Hierarchical training: every server of the first tier runs a method of its own with its clients, and averages follow.

Source: docs/methods/several_servers.md. Any method with `tiered = True` can be the host.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import Method, MethodOptions, Task
from sfl_sim.methods.tiers import Tree, relocated
from sfl_sim.models.replica import Replica
from sfl_sim.ops import SERVER, Flow, ServerNode, Value, par, send


class Tiered(Method):
    """A method with copies of the model's parts at the servers of all tiers.

    Attributes:
        tree: these copies; to be set by the form.
    """

    only_averages = True
    tree: Tree

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self._groups: Mapping[ServerNode, Sequence[int]] = {}
        self._round = 1
        lora = task.network.lora
        if lora and lora.aggregate in ("concat", "svd"):
            problem = "joins adapters at one server, and cannot be where there are several"
            raise ScenarioError(problem, key="lora.aggregate", found=lora.aggregate, allowed=["separate", "ffa"])

    def begin(self, round: int, clients: Sequence[int]) -> Flow:
        """Begin a round; gives the clients that each server of the first tier serves in it."""
        self._round, self._groups = round, (yield from self.task.tiers.groups(round, clients))
        return self._groups

    def install(self, c: int) -> Flow:
        return relocated(super().install(c), self.task.tiers.homes(1)[c])

    def setup(self) -> Flow:
        """Send what is frozen down, tier by tier, unless it is installed."""
        network = self.task.network
        if network.lora and not network.lora.preinstalled:
            frozen = Value("model", network.frozen_bytes(network.layers))
            for tier in reversed(self.task.tiers.tiers):
                yield par(_sent(frozen, high, low) for low, high in zip(tier.servers, tier.above, strict=True))

    def weight(self, clients: Sequence[int]) -> float:
        """Give the weight of clients in averages between servers."""
        return float(len(clients) if self.task.uniform_weights else sum(map(self.data.samples, clients)))

    def took_part(self, clients: Sequence[int]) -> Sequence[int]:
        """Give the clients whom a server has served."""
        served = {c for group in self._groups.values() for c in group}
        return [c for c in clients if c in served]

    def model(self) -> list[Replica]:
        """Give the average of what all servers hold, by the samples of their clients."""
        groups: dict[ServerNode, list[int]] = {}
        for c, server in enumerate(self.task.tiers.homes(self._round)):
            groups.setdefault(server, []).append(c)
        return self.tree.whole({server: self.weight(group) for server, group in groups.items()})


def _sent(value: Value, src: ServerNode, dst: ServerNode) -> Flow:
    yield send(value, src, dst)


class Hierarchical(Tiered):
    """Rounds of one method side by side at all servers of the first tier; every so many, their models are averaged.

    Attributes:
        host: the method's class; a subclass of this one has it (`hierarchical`).
        hosts: the method at each of these servers.
        whole: the method whose model is the average, at the main server.
    """

    host: ClassVar[type[Method]]

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        host = self.host
        first, *others = task.tiers.tiers
        self.whole = host(task, options)
        for trait in Method.__annotations__.keys() - {"regular"}:
            setattr(self, trait, getattr(self.whole, trait))
        self.hosts = {server: host(task, options) for server in first.servers}
        above = {server: host(task, options) for tier in others for server in tier.servers}
        methods = self.hosts | above | {SERVER: self.whole}
        parts = {server: dict(enumerate(_parts(method))) for server, method in methods.items()}
        self.tree = Tree(task.tiers, parts, self._clients_hold)

    def _clients_hold(self) -> int:
        """Count the parts that clients hold; without a cut all of them."""
        if not self.is_split:
            return len(self.tree.parts[SERVER])
        deepest, end, n = max(self.task.cuts), 0, 0
        for part in self.tree.parts[SERVER].values():
            n += end < deepest
            end += len(part.part.skeleton)
        return n

    def setup(self) -> Flow:
        """Send what is frozen down; then the setups of the hosts."""
        yield from super().setup()
        yield par(relocated(host.setup(), server) for server, host in self.hosts.items())

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """A round of every host with its clients; then the averages that are due."""
        groups = yield from self.begin(round, clients)
        rounds = {server: self.hosts[server].round(round, group) for server, group in groups.items() if group}
        yield par(relocated(flow, server) for server, flow in rounds.items())
        self.tree.count({server: self.weight(group) for server, group in groups.items()})
        yield from self.tree.average(round)

    def client_cuts(self, clients: Sequence[int]) -> Sequence[int]:
        """Give the cut of each of the round's clients, as the host of the server that serves it has it."""
        home = {c: server for server, group in self._groups.items() for c in group}
        return [cut for c in clients for cut in self.hosts[home[c]].client_cuts([c])]

    def held_bytes(self, clients: Sequence[int]) -> dict[ServerNode, int]:
        """Give the bytes of models that each server of the first tier holds while `clients` train, if known."""
        homes = self.task.tiers.homes(self._round)
        held = {s: host.server_bytes([c for c in clients if homes[c] == s]) for s, host in self.hosts.items()}
        return {server: size_bytes for server, size_bytes in held.items() if size_bytes is not None}

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """Give the bytes of models at the server of the first tier that holds most."""
        return max(self.held_bytes(clients).values(), default=None)


def hierarchical(host: type[Method]) -> type[Hierarchical]:
    """Make the hierarchical form of a method."""
    return type(f"Hierarchical{host.__name__}", (Hierarchical,), {"host": host})


def _parts(method: Method) -> list[Replica]:
    parts = method.model()
    assert all(isinstance(part, Replica) for part in parts), "a method with tiers has one model"
    return [part for part in parts if isinstance(part, Replica)]
