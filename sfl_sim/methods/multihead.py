"""Multi-head: one body, averaged every round, and a head of its own for every client.

Chen et al. 2023, as Tirana et al. 2026 adapt it to split learning (docs/methods/splitfed.md): the body is part-1; the
heads are part-2, kept at the server. All heads answer, and the most confident one is believed.
"""

from collections.abc import Sequence

from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.split import SplitMethod
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, par, send
from sfl_sim.training.alternatives import Alternatives, Model


class MultiHead(SplitMethod, regular=True, survives=True):
    """Clients train side by side as in SplitFedV1, but heads are never averaged."""

    forgets_lost = True
    needs_labels = "the most confident answer counts"

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.heads: dict[int, Replica] = {}
        """Part-2 of each client that has ever taken part to the end."""

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """w1 <- sum_c k_c w1_c."""
        copies = yield par({c: self.client(c, round) for c in clients})
        yield from self.average(AGGREGATOR, self.part1, copies)

    def client(self, c: int, round: int) -> Flow:
        """Download the body, train it with the client's own head, at first a copy of the initial one, upload it."""
        body = yield from self.wire.fetch(self.part1, c)
        head = yield send(self.heads.get(c, self.part2), SERVER, SERVER)
        yield from self.batches(c, body, head, self.data.batches(c, round), round)
        body = yield from self.wire.deliver(body, c, round)
        self.heads[c] = yield send(head, SERVER, SERVER)  # without optimiser state
        return body

    def model(self) -> Model:
        """The body, then all heads, or the initial one as long as there is none."""
        return [self.part1, Alternatives.of_clients(self.heads, self.part2)]

    def sides(self, c: int) -> tuple[list[Replica], list[Replica]]:
        return [self.part1], [self.heads.get(c, self.part2)]

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        return len(self.heads.keys() | set(clients)) * self.part2.size_bytes
