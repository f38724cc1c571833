"""Base of the forms that methods take where there are tiers of servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import Method, MethodOptions, Task
from sfl_sim.methods.tiers import Tree, at
from sfl_sim.models.replica import Replica
from sfl_sim.ops import Flow, ServerNode, Value, par, send


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
        """Send the frozen weights of a client's layers from the first server that serves it."""
        return at(self.task.tiers.homes(1)[c], super().install(c))

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
