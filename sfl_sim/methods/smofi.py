"""SMoFi: the momentum buffers of the server's surrogates are fused after every step (docs/methods/smofi.md).

Yang et al., "SMoFi: Step-wise Momentum Fusion for Split Federated Learning on Heterogeneous Data", AAAI 2026. Without
fusion and global momentum it is SplitFedV1. Symbols are the paper's: client j runs T_j mini-batches tau, counted from
0; m_j is the momentum buffer of its surrogate, and mbar what all buffers are fused to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.server_copies import ClientVisit, HostOptions, ServerCopies
from sfl_sim.models.on_nan import rule_in_force
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.models.weights import Weights
from sfl_sim.ops import AGGREGATOR, SERVER, Event, Flow, Lost, State, Step, Value, Work, occur, on, par, send, wait
from sfl_sim.scenario.fields import OnlyWith
from sfl_sim.training.optimisers import OPTIMISERS, Foreign, Optimiser, Sgd
from sfl_sim.training.steps import Average, Backward, Forward, MomentumAverage, Train


class Fusion(State):
    """Momentum buffers of a round's surrogates, and the fused one, which starts as the last round's mbar or as zeros.

    A surrogate's optimiser works on its row of the matrix, so that rows are averaged without being copied together. The
    content, from the first step that starts from mbar on: `separate` (moments, surrogates, P), as each surrogate's last
    step left them, and `fused` (moments, P). With Adam, moments are the averages of the gradient and of its square.
    """

    __slots__ = ("_carried", "moments", "part", "surrogates")
    content: tuple[Tensor, Tensor] | None

    def __init__(
        self, model: Replica | Joined, surrogates: int, optimiser: Optimiser, carried: Fusion | None = None
    ) -> None:
        super().__init__("momentum")
        self.part = model.part
        self.surrogates = surrogates
        self.moments = optimiser.n_moments
        self._carried = carried

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """Content of the state, outside timing-only runs."""
        assert self.content is not None, "a timing-only fusion has no numbers"
        return self.content

    def advance(self, weights: Weights, row: int, optimiser: Optimiser) -> None:
        """Step the surrogate in `row` from mbar, not its own buffer (Eq. 4); that stays if the step is left out."""
        if self.content is None:
            separate = weights.flat.new_zeros(self.moments, self.surrogates, len(weights.flat))
            self.content = separate, self._carried.buffers[1] if self._carried else torch.zeros_like(separate[:, 0])
            self._carried = None
        separate, fused = self.buffers
        mine = separate[:, row]
        before = mine.clone() if rule_in_force().skips else mine
        mine.copy_(fused)
        weights.momentum, weights.variance = [*mine, None, None][:2]
        if not optimiser.step(weights):
            mine.copy_(before)


@dataclass(frozen=True)
class TrainFused(Train):
    """`Train` whose optimiser starts from mbar; `row` is the surrogate's row."""

    row: int

    def run(self, part2: Replica, smashed: Value, fusion: Fusion) -> Tensor | None:  # type: ignore[override]
        gradient = self.differentiate(part2, smashed)
        fusion.advance(part2.weights, self.row, self.optimiser)
        return gradient


@dataclass(frozen=True)
class Differentiate(Train):
    """`Train` without its optimiser step: the parameters' gradients wait in the state for `UpdateFromFused`."""

    def run(self, part: Replica | Joined, data: Value) -> Tensor | None:
        return self.differentiate(part, data)


@dataclass(frozen=True)
class UpdateFromFused(Step):
    """The optimiser step that `Differentiate` left out in step `tau`, from mbar; priced there."""

    optimiser: Optimiser
    row: int
    tau: int
    name = "update"

    def out(self, part2: Replica, fusion: Fusion) -> Value:
        """Give no result; the record names the mini-batch."""
        return Value("done", step=self.tau)

    def run(self, part2: Replica, fusion: Fusion) -> None:
        fusion.advance(part2.weights, self.row, self.optimiser)


class Fuse(Step):
    """Fuse the buffers: mbar <- the sum of all m_j weighted by `shares`; one MAC per element and buffer.

    One product of a vector with the matrix, at the speed of memory: for 20 surrogates 0.4 % of the step before it,
    and 5 to 11 times as fast as parameter by parameter (research/proofs/smofi.py).
    """

    name = "fuse"
    aggregates = True

    def work(self, fusion: Fusion, shares: Sequence[float]) -> Work:
        return Work.of(fusion.moments * fusion.surrogates * fusion.part.n_parameters)

    def run(self, fusion: Fusion, shares: Sequence[float]) -> None:
        everyones, mbar = fusion.buffers
        device, dtype = everyones.device, everyones.dtype
        on_host = torch.tensor(shares, dtype=dtype, pin_memory=device.type == "cuda")  # pinned: the host does not wait
        weights = on_host.to(device, non_blocking=True)
        for separate, fused in zip(everyones, mbar, strict=True):
            torch.mv(separate.t(), weights, out=fused)


class SmofiOptions(HostOptions):
    """Options of SMoFi."""

    fusion: bool = True
    """Fuse momentum after every step."""
    barrier: Annotated[Literal["paper", "strict", "relaxed"], OnlyWith("fusion", True)] = "paper"
    """What waits for the fusion after the last step: the clients' next mini-batches (paper), the server's part of them
    (strict), or only its optimisers (relaxed)."""
    staleness: Annotated[float, Field(le=0), OnlyWith("fusion", True)] = -0.1
    """Exponent of the weights of clients that are done (alpha of Eq. 6)."""
    carry_fused: Annotated[bool, OnlyWith("fusion", True)] = False
    """Go on with the fused momentum (mbar) in the next round."""
    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Momentum of the step after a round, of both parts (beta_g)."""


class Smofi(ServerCopies, regular=True, survives=True):
    """SplitFedV1 whose surrogates share their momentum, fused after every step, with a global momentum over rounds."""

    Options = SmofiOptions
    options: SmofiOptions
    tuned = ("server_momentum", (0.1, 0.3, 0.5, 0.7, 0.9))
    examples = (
        *(SmofiOptions(barrier=barrier) for barrier in ("paper", "strict", "relaxed")),
        SmofiOptions(fusion=False),
    )
    neutral = SmofiOptions(server_momentum=0.0)
    only_averages = False
    like = "fedavgm"

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.forgets_lost = self.waits_for_all = not self.options.fusion
        at_server = task.optimiser(1, SERVER)
        if not self.options.fusion:
            self.idea_off = "method.fusion is off"
        elif isinstance(at_server, Sgd) and not at_server.momentum:
            self.idea_off = "there is no momentum to be fused: train.momentum, or train.server.momentum, is 0"
        self.carried: Fusion | None = None
        """The last round's buffers, whose mbar the next round goes on from with `carry_fused`."""
        if self.options.fusion and len(task.differing_cuts) > 1:
            raise ScenarioError(
                "needs the same cut for all clients, so that their momentum buffers can be fused",
                key="model.cut",
                found=task.differing_cuts,
            )
        if self.options.fusion and isinstance(at_server, Foreign):
            problem = "fuses momentum buffers, which an optimiser of your own does not show"
            raise ScenarioError(problem, key="train.optimizer", allowed=OPTIMISERS)
        carries, key = self.options.fusion and self.options.carry_fused, "method.carry_fused"
        drawn = sorted(set(task.round_cuts))
        if carries and len(drawn) > 1:
            raise ScenarioError(f"needs one cut for all rounds, not a draw from {drawn}", key=key, found=True)
        if carries and not isinstance(at_server, Sgd):
            problem = "needs SGD: the step counters that correct Adam's averages begin anew every round"
            raise ScenarioError(problem, key=key, found=True)

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Train with fusions after every step; then W <- W - v of both parts, over the clients that are not lost."""
        if not self.options.fusion:
            return (yield from super().round(round, clients))
        visits = self.visits(round, clients)
        lost = yield from self.steps(visits, round)
        visits = {j: visit for j, visit in visits.items() if j not in lost}
        yield from self.average_at(SERVER, visits, round)
        yield from self.average_at(AGGREGATOR, visits, round)

    def steps(self, visits: Mapping[int, ClientVisit], round: int) -> Flow:
        """Train all clients side by side while mbar is fused after each step tau; gives the clients that are lost."""
        _, W_s = self.parts[next(iter(visits.values())).cut]
        optimiser = self.optimiser(round, SERVER)
        now = FusionProgress(visits, optimiser, Fusion(W_s, len(visits), optimiser, self.carried))
        flows = [(j, self.train(j, now, round)) for j in visits]
        if self.options.barrier == "relaxed":
            flows += [(j, self.update(j, now)) for j in visits]
        yield par([*(self.unless_lost(j, flow, now) for j, flow in flows), self.fuse(now)])
        return now.lost

    def train(self, j: int, now: FusionProgress, round: int) -> Flow:
        """W_c,j <- W_c, W_s,j <- W_s; then every mini-batch of client j."""
        visit = now.visits[j]
        W_c, W_s = self.parts[visit.cut]
        visit.part1 = yield from self.wire.fetch(W_c, j)
        visit.part2 = yield send(W_s, SERVER, SERVER)
        for batch in self.data.steps(j, round, visit.n_batches):
            yield from self.step(j, batch, now, round)
        visit.part1 = yield from self.wire.deliver(visit.part1, j, round)

    def step(self, j: int, batch: Batch, now: FusionProgress, round: int) -> Flow:
        """Step tau: forward to the server, (4) and (3) there, backward at the client, whose own buffer is not fused."""
        visit, tau, barrier = now.visits[j], batch.step, self.options.barrier
        if barrier == "paper":
            yield wait(now.fusion_before(tau))
        smashed = yield on(j, Forward(), visit.part1, batch)
        smashed = yield from self.wire.upload(smashed, visit.part1.part, batch, j, round)
        if barrier == "strict":
            yield wait(now.fusion_before(tau))
        if barrier == "relaxed":
            yield from now.until(j, now.updated, tau - 1)
            gradient = yield on(SERVER, Differentiate(now.optimiser), visit.part2, smashed)
            yield occur(now.differentiated[j, tau])
        else:
            train = TrainFused(now.optimiser, now.row[j])
            gradient = yield on(SERVER, train, visit.part2, smashed, now.fusion)
            yield occur(now.updated[j, tau])
        gradient = yield from self.wire.download(gradient, smashed, visit.part1, j, round)
        yield on(j, Backward(self.optimiser(round, j)), visit.part1, gradient)
        if barrier == "paper":
            yield occur(now.passed[j, tau])

    def update(self, j: int, now: FusionProgress) -> Flow:
        """Steps (4) and (3) of surrogate j with the barrier `relaxed`: each when gradient and mbar are there."""
        for tau in range(now.T[j]):
            yield from now.until(j, now.differentiated, tau)
            yield wait(now.fusion_before(tau))
            if j in now.lost:
                raise Lost(j)
            # No client's job: client j may have delivered its part-1 long ago, and be away.
            yield on(SERVER, UpdateFromFused(now.optimiser, now.row[j], tau), now.visits[j].part2, now.fusion)
            yield occur(now.updated[j, tau])

    def fuse(self, now: FusionProgress) -> Flow:
        """mbar by (5) after each step. A client that is lost counts like one that is done, once it has made a step."""
        tau = 0
        while active := [j for j, T_j in now.T.items() if T_j > tau]:
            yield wait([now.updated[j, tau] for j in active])
            delta = {j: tau + 1 - T_j for j, T_j in now.T.items() if T_j}
            if not delta:  # everybody is lost
                break
            shares = dict(zip(delta, self.shares(list(delta.values())), strict=True))
            yield on(SERVER, Fuse(), now.fusion, [shares.get(j, 0.0) for j in now.row])
            if self.options.barrier == "paper":
                yield wait([now.passed[j, tau] for j in active])
            yield occur(now.fused[tau])
            tau += 1
        for fused in list(now.fused.values()):  # flows of lost clients may still wait for one
            yield occur(fused)
        if tau and self.options.carry_fused:
            self.carried = now.fusion

    def shares(self, delta: Sequence[int]) -> list[float]:
        """Share of each buffer in mbar by (5) and (6); delta_j is not positive while client j is active."""
        return [(max(0, delta_j) + 1) ** self.options.staleness / len(delta) for delta_j in delta]

    def unless_lost(self, j: int, flow: Flow, now: FusionProgress) -> Flow:
        """Run a flow of client j; once j is lost, no other flow waits for it."""
        try:
            yield from flow
        except Lost:
            for event in now.lose(j):
                yield occur(event)

    def merge(self, round: int) -> Average:
        """v <- beta_g v + (W - sum_j k_j W_j); W <- W - v."""
        beta_g = self.options.server_momentum
        return MomentumAverage(Sgd(1.0, beta_g)) if beta_g else super().merge(round)


class EventsByKey(dict[Any, Event]):
    """Events by what they belong to, each made when it is first asked for."""

    def __init__(self, about: str) -> None:
        super().__init__()
        self.about = about

    def __missing__(self, key: Any) -> Event:
        event = self[key] = Event(f"{self.about} {key}")
        return event


class FusionProgress:
    """Progress of a round with fusions.

    Attributes:
        visits: of all clients, by j.
        fusion: m_j of all surrogates, and mbar.
        T: mini-batches on which each client's surrogate steps: fewer than the client has once it is lost.
        row: row of each m_j in the fusion.
        lost: clients that have been lost.
        differentiated: by (j, tau), the server has the gradient, with the barrier `relaxed`.
        updated: by (j, tau), the surrogate has made its step.
        passed: by (j, tau), the client has made its own step.
        fused: by tau, mbar is there.
    """

    def __init__(self, visits: Mapping[int, ClientVisit], optimiser: Optimiser, fusion: Fusion) -> None:
        self.visits = visits
        self.optimiser = optimiser
        self.fusion = fusion
        self.T = {j: visit.n_batches for j, visit in visits.items()}
        self.row = {j: row for row, j in enumerate(visits)}
        self.lost: set[int] = set()
        self.differentiated = EventsByKey("the gradient of client and mini-batch")
        self.updated = EventsByKey("the server's step of client and mini-batch")
        self.passed = EventsByKey("the end of client and mini-batch")
        self.fused = EventsByKey("the fusion of mini-batch")

    def fusion_before(self, tau: int) -> list[Event]:
        """Give the events to wait for before mbar is used in step `tau`: none in the first step."""
        return [self.fused[tau - 1]] if tau else []

    def until(self, j: int, events: EventsByKey, tau: int) -> Flow:
        """Wait for what another flow of client j does in step `tau`; raises Lost if that flow has lost the client."""
        if tau >= 0:
            yield wait([events[j, tau]])
            if j in self.lost:
                raise Lost(j)

    def lose(self, j: int) -> list[Event]:
        """Count client j as done from now on; gives the events that will not occur otherwise."""
        if j in self.lost:
            return []
        self.lost.add(j)
        steps = range(self.T[j])
        self.T[j] = sum(self.updated[j, tau].occurred for tau in steps)
        return [events[j, tau] for tau in steps for events in (self.differentiated, self.updated, self.passed)]
