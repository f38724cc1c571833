"""SplitFedV2: one part-2, trained by all clients in turn.

Thapa et al., "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022 (the SFL of Tirana et al. 2026).
"""

from __future__ import annotations

from collections.abc import Sequence

from sfl_sim.methods.split import SplitMethod
from sfl_sim.models.steps import Renew
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, expect, on, par, send


class SplitFedV2(SplitMethod, regular=True):
    """Part-1 is averaged every round; part-2 is one state, changed in the order in which the server serves."""

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """w2 by every job in turn; w1 <- sum_c k_c w1_c."""
        yield on(SERVER, Renew(), self.part2)
        yield expect(self.part2, {c: self.data.n_batches(c) for c in clients})
        copies = yield par(self.client(c, round) for c in clients)
        yield from self.average(AGGREGATOR, self.part1, copies, clients)

    def client(self, c: int, round: int) -> Flow:
        """Download part-1, train it with the server's part-2, upload it."""
        part1 = yield send(self.part1, AGGREGATOR, c)
        yield from self.batches(c, part1, self.part2, self.data.batches(c, round), round)
        return (yield send(part1, c, AGGREGATOR))
