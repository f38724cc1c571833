"""SplitFedV3: every client keeps a part-1 of its own; the copies of part-2 are averaged.

Gawali et al., "Comparison of Privacy-Preserving Distributed Deep Learning Methods in Healthcare", MIUA 2021.
There is no single global model: all front ends answer, and the most confident answer counts
(docs/methods/splitfed.md#splitfedv3).
"""

from collections.abc import Sequence

from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.split import SplitMethod
from sfl_sim.models.replica import Replica
from sfl_sim.ops import SERVER, Flow, par, send
from sfl_sim.training.alternatives import Alternatives, Model


class SplitFedV3(SplitMethod, regular=True, survives=True):
    """Clients train side by side as in SplitFedV1, but part-1 never leaves its client."""

    uploads_model = False
    forgets_lost = True
    needs_labels = "the most confident answer counts"

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.private: dict[int, Replica] = {}
        """Part-1 of each client that has ever taken part to the end."""

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """w2 <- sum_c k_c w2_c."""
        copies = yield par({c: self.client(c, round) for c in clients})
        yield from self.average(SERVER, self.part2, copies)

    def client(self, c: int, round: int) -> Flow:
        """Train the client's own part-1, at first a copy of the initial one, with a copy of part-2."""
        part1 = yield send(self.private.get(c, self.part1), c, c)
        part2 = yield send(self.part2, SERVER, SERVER)
        yield from self.batches(c, part1, part2, self.data.batches(c, round), round)
        self.private[c] = yield send(part1, c, c)  # without optimiser state
        return part2

    def model(self) -> Model:
        """All private part-1s, or the initial one as long as there is none, then part-2."""
        return [Alternatives.of_clients(self.private, self.part1), self.part2]

    def sides(self, c: int) -> tuple[list[Replica], list[Replica]]:
        return [self.private.get(c, self.part1)], [self.part2]

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        return len(clients) * self.part2.size_bytes
