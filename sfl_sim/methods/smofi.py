"""SMoFi: the momentum buffers of the server's surrogates are fused after every step.

Yang et al., "SMoFi: Step-wise Momentum Fusion for Split Federated Learning on Heterogeneous Data", AAAI 2026
(METHODS.md section 9). With nothing to fuse and no global momentum it is SplitFedV1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.hosts import Hosted, HostOptions
from sfl_sim.methods.late_steps import Events
from sfl_sim.methods.surrogates import Visit
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import SERVER, Flow, Value, occur, on, wait
from sfl_sim.training.fusion import Fuse, Fusion, TrainFused
from sfl_sim.training.merging import MomentumAverage
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import Average


class SmofiOptions(HostOptions):
    """`fusion`: whether there is any. `barrier`: what waits for the fusion of the last step:
    the clients' next mini-batches (paper), the server's part of them (strict), or only its optimisers (relaxed).
    `staleness`: alpha of the weight (delta + 1)^alpha of a client that is done since delta steps. `normalise`: by how
    many buffers there are, or by their weights. `carry_fused`: through all rounds. `server_momentum`: beta_g of both
    parts.
    """

    fusion: bool = True
    barrier: Literal["paper", "strict", "relaxed"] = "paper"
    staleness: Annotated[float, Field(le=0)] = -0.1
    normalise: Literal["count", "weights"] = "count"
    carry_fused: bool = False
    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.3


FUSION = {"barrier", "staleness", "normalise", "carry_fused"}
"""Options that mean something only where there is a fusion."""


class Smofi(Hosted, regular=True, survives=True):
    """SplitFedV1 whose surrogates share their momentum, fused after every step, and a global momentum."""

    Options = SmofiOptions
    options: SmofiOptions

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if self.options.fusion and len(set(task.cuts)) > 1:
            raise ScenarioError(
                "needs the same cut for all clients, so that their momentum buffers can be fused",
                key="model.cut", found=sorted(set(task.cuts)),
            )  # fmt: skip
        if not self.options.fusion and (useless := FUSION & self.options.model_fields_set):
            raise ScenarioError("says how momentum is fused, with method.fusion off", key=f"method.{min(useless)}")
        if self.options.carry_fused:
            self._check_carrying()
        self.is_late = self.is_exact or self._waits("relaxed")
        self.carried: Fusion | None = None
        """What the next round goes on from."""

    def _check_carrying(self) -> None:
        key, drawn = "method.carry_fused", sorted(set(self.task.round_cuts))
        if len(drawn) > 1:
            raise ScenarioError(f"needs one cut for all rounds, not a draw from {drawn}", key=key, found=True)
        if self.task.optimizer in ("adam", "adamw"):
            problem = "needs SGD: the step counters that correct Adam's averages begin anew every round"
            raise ScenarioError(problem, key=key, found=True)

    def _waits(self, barrier: str) -> bool:
        return self.options.fusion and self.options.barrier == barrier

    def merge(self, round: int) -> Average:
        """v <- beta_g*v + (w - sum_c k_c w_c); w <- w - v."""
        beta = self.options.server_momentum
        return MomentumAverage(Sgd(1.0, beta)) if beta else super().merge(round)

    def minibatch(self, c: int, part1: Replica, part2: Replica | Joined, batch: Batch, round: int) -> Flow:
        """Of all clients at once, with the barrier of the paper."""
        if self._waits("paper"):
            yield from self.last_fusion(batch.step)
        done = yield from super().minibatch(c, part1, part2, batch, round)
        if self._waits("paper"):
            yield occur(self.passed[c, batch.step])
        return done

    def serve(self, c: int, part2: Replica | Joined, smashed: Value, round: int) -> Flow:
        """After the last fusion, with a strict barrier. (Eq. 4)"""
        if not self.options.fusion:
            return (yield from super().serve(c, part2, smashed, round))
        if self._waits("strict"):
            yield from self.last_fusion(smashed.step)
        if self.is_late:
            return (yield from super().serve(c, part2, smashed, round))
        train = TrainFused(self.part2_optimiser(round), self.rows[c])
        gradient = yield on(SERVER, train, part2, smashed, self.fusion)
        yield occur(self.updated[c, smashed.step])
        return gradient

    def before_step(self, step: int) -> Flow:
        """The last fusion, if nothing has waited for it before."""
        if self._waits("relaxed"):
            yield from self.last_fusion(step)

    def last_fusion(self, step: int) -> Flow:
        """Wait for what the mini-batch before `step` left."""
        if step:
            yield wait([self.fused[step - 1]])

    def beside(self, visits: dict[int, Visit], round: int) -> list[Flow]:
        """The fusions."""
        flows = super().beside(visits, round)
        if not self.options.fusion:
            return flows
        _, part2 = self.parts[next(iter(visits.values())).cut]
        self.fusion = Fusion(part2, len(visits), self.part2_optimiser(round), self.carried)
        self.rows = {c: visit.row for c, visit in visits.items()}
        self.fused, self.passed = Events("the fusion of mini-batch"), Events("the end of client and mini-batch")
        self.awaited.append(self.passed)
        return [*flows, self.fusions(dict(visits))]

    def fusions(self, visits: Mapping[int, Visit]) -> Flow:
        """After each step: who has no mini-batch left counts with the buffer of its last step, and less and less.

        So does who is lost, once it has made a step.
        """
        assert self.fusion
        step = 0
        while active := [c for c, visit in visits.items() if visit.n_batches > step]:
            yield wait([self.updated[c, step] for c in active])
            late = {visit.row: step + 1 - visit.n_batches for visit in visits.values() if visit.n_batches}
            if not late:  # everybody is lost
                break
            shares = dict(zip(late, self.shares(list(late.values())), strict=True))
            yield on(SERVER, Fuse(), self.fusion, [shares.get(row, 0.0) for row in range(len(visits))])
            if self._waits("paper"):
                yield wait([self.passed[c, step] for c in active])
            yield occur(self.fused[step])
            step += 1
        for fused in list(self.fused.values()):  # flows of who is lost may not have noticed
            yield occur(fused)
        if step and self.options.carry_fused:
            self.carried = self.fusion
        self.fusion = None  # as much memory as all surrogates

    def shares(self, late: Sequence[int]) -> list[float]:
        """Each buffer's share of what is fused, where the clients are done since so many steps. (Eq. 5 and 6)"""
        weights = [(max(0, delta) + 1) ** self.options.staleness for delta in late]
        total = len(weights) if self.options.normalise == "count" else sum(weights)
        return [weight / total for weight in weights]
