"""SplitFedV1: a part-2 for every client, all of them averaged.

Thapa et al., "SplitFed: When Federated Learning Meets Split Learning", AAAI 2022, Algorithm 1. The variants that
average the copies of part-2 more often are those of SMoFi's comparison (docs/methods/splitfed.md#splitfedv1).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.server_copies import ClientVisit, ServerCopies
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, par, send


class V1Options(MethodOptions):
    """Options of SplitFedV1."""

    server_agg_every: Literal["step", "epoch", "round"] = "round"
    """Average the copies of part-2 after every mini-batch step, local epoch or round."""


class SplitFedV1(ServerCopies, regular=True, survives=True, tiered=True):
    """Clients train side by side, each with its own copy of part-2; both parts are averaged."""

    Options = V1Options
    options: V1Options
    examples = (V1Options(), V1Options(server_agg_every="step"), V1Options(server_agg_every="epoch"))
    neutral = V1Options(server_agg_every="round")

    @classmethod
    def traits(cls, options: MethodOptions) -> Mapping[str, Any]:
        """Return what follows from copies of part-2 that are new in every step."""
        is_new = isinstance(options, V1Options) and options.server_agg_every == "step"
        return {"ignores": {"train.server.momentum": "copies of part-2 are new in every step"}} if is_new else {}

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.forgets_lost = self.options.server_agg_every == "round"
        if len(task.differing_cuts) > 1 and self.options.server_agg_every != "round":
            raise ScenarioError(
                "needs the same cut for all clients: what only some of them hold is averaged when the round ends",
                key="method.server_agg_every",
                found=self.options.server_agg_every,
                allowed=["round"],
            )

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """w2 <- sum_c k_c w2_c after every stretch of mini-batches, w1 <- sum_c k_c w1_c after the last."""
        if self.options.server_agg_every == "round":
            return (yield from super().round(round, clients))
        visits = self.visits(round, clients)
        batches = {c: self.data.steps(c, round, visit.n_batches) for c, visit in visits.items()}
        uploaded = yield from self.stretches(visits, batches, 1, round)
        yield from self.average_at(AGGREGATOR, {c: visits[c] for c in clients if c in uploaded}, round)

    def stretches(
        self, visits: Mapping[int, ClientVisit], batches: Mapping[int, Iterator[Batch]], number: int, round: int
    ) -> Flow:
        """Stretch `number` and all after it; gives the clients that have uploaded part-1.

        A client that is done uploads while the others go on.
        """
        while visits:
            last = all(self.n_stretches(c, visit) == number for c, visit in visits.items())
            trained = yield par({c: self.stretch(c, v, batches[c], number, last, round) for c, v in visits.items()})
            visits = {c: visits[c] for c in trained}
            yield from self.average_at(SERVER, visits, round)
            done = {c for c, visit in visits.items() if self.n_stretches(c, visit) == number}
            number += 1
            if last:
                return done
            if done:
                others = {c: visit for c, visit in visits.items() if c not in done}
                flows: dict[int | None, Flow] = {None: self.stretches(others, batches, number, round)}
                uploaded = yield par(flows | {c: self.upload(c, v, round) for c, v in visits.items() if c in done})
                return {*uploaded.pop(None), *uploaded}
        return set()

    def n_stretches(self, c: int, visit: ClientVisit) -> int:
        """Number of averages of part-2 in which a client takes part."""
        return visit.n_batches if self.options.server_agg_every == "step" else self.data.passes(c)

    def stretch(
        self, c: int, visit: ClientVisit, batches: Iterator[Batch], number: int, last: bool, round: int
    ) -> Flow:
        """Train between two averages, with a new copy of part-2.

        Part-1 is downloaded before a client's first stretch, and uploaded at once if this is the last of all clients'.
        """
        part1, part2 = self.parts[visit.cut]
        if number == 1:
            visit.part1 = yield from self.wire.fetch(part1, c)
        visit.part2 = yield send(part2, SERVER, SERVER)
        start, end = (n * visit.n_batches // self.n_stretches(c, visit) for n in (number - 1, number))
        yield from self.batches(c, visit.part1, visit.part2, islice(batches, end - start), round)
        if last:
            yield from self.upload(c, visit, round)

    def upload(self, c: int, visit: ClientVisit, round: int) -> Flow:
        """Send part-1 to the aggregator."""
        visit.part1 = yield from self.wire.deliver(visit.part1, c, round)
