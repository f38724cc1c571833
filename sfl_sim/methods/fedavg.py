"""FedAvg: federated averaging without a split.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017, Algorithm 1
(docs/methods/fedavg.md).
"""

from collections.abc import Sequence

from sfl_sim.methods.base import Method, MethodOptions, Task
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, Flow, on, par
from sfl_sim.training.steps import Train


class FedAvg(Method, regular=True, survives=True, tiered=True):
    """Clients train copies of the whole model; the aggregator averages them."""

    is_split, only_averages, forgets_lost = False, True, True

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        (self.whole,) = task.split()

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """w <- sum_c k_c w_c, with w_c trained from w on the client's own data."""
        copies = yield par({c: self.client(c, round, Train(self.optimiser(round, c))) for c in clients})
        yield from self.average(AGGREGATOR, self.whole, copies)

    def client(self, c: int, round: int, train: Train) -> Flow:
        """Download, train on all local mini-batches, upload."""
        copy = yield from self.wire.fetch(self.whole, c)
        for batch in self.data.batches(c, round):
            yield on(c, train, copy, batch)
        return (yield from self.wire.deliver(copy, c, round))

    def model(self) -> list[Replica]:
        return [self.whole]

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """Give 0: there is no main server."""
        return 0
