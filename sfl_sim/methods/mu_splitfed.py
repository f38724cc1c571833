"""MU-SplitFed: zeroth order on both sides; the server takes several steps while a client's messages are on their way.

Liang et al., "Towards Straggler-Resilient Split Federated Learning: An Unbalanced Update Approach", NeurIPS 2025
(docs/methods/mu_splitfed.md).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.ahead import Ahead, Boxes
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.models.part import Part
from sfl_sim.models.replica import Bundle, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, on, send
from sfl_sim.training.codecs import Delta
from sfl_sim.training.steps import Average, ForwardOnly
from sfl_sim.training.zeroth import CentralSlope, Directions, Dist, ForwardShifted, SeededStep, ZerothSteps


class MuOptions(MethodOptions):
    """Options of MU-SplitFed."""

    tau: Annotated[int, Field(ge=1)] = 2
    """Number of the server's steps on each mini-batch."""
    mu: Annotated[float, Field(gt=0)] = 5e-3
    """Length of a shift, in units of the direction."""
    dist: Dist = "sphere"
    """Distribution of directions: uniform on a sphere whose radius is the root of their dimension, normal (`gauss`), or
    +1 and -1 (`sign`)."""
    directions: Annotated[int, Field(ge=1)] = 1
    """Number of random directions of a step of the server."""
    global_lr: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Share of the way to the average that the global model goes in a round (eta_g)."""


class MuSplitFed(Ahead, survives=True):
    """Nobody computes a gradient: clients send three activations of a mini-batch, and get one number."""

    Options = MuOptions
    options: MuOptions
    tuned = ("tau", (1, 2, 4))
    examples = (MuOptions(tau=1), MuOptions(tau=1, dist="gauss", directions=2))  # momentum outlives a step of tau
    neutral = None
    sends_gradients = keeps_graphs = follows_order = False
    ignores: Mapping[str, str] = {"train.agg_weights": "changes are averaged, all alike"}

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if isinstance(self.wire.up, Delta):
            problem = "compares activations of the same weights, and here some come from shifted ones"
            raise ScenarioError(problem, key="wire.up", found="delta")

    def directions(self, count: int, *ids: int) -> Directions:
        """The directions of a step: of the client with one, of the server with as many as the options say."""
        return Directions(self.options.dist, count, self.options.mu, self.task.seed, ids)

    def learn(self, c: int, model: Replica | Bundle, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Three forward passes, whose outputs go up one after another; a step along the direction by what comes."""
        for batch in batches:
            v = self.directions(1, c, round, batch.step)
            for step in (ForwardOnly(), ForwardShifted(directions=v, sign=1), ForwardShifted(directions=v, sign=-1)):
                yield from boxes.outbox.put((yield on(c, step, model, batch)))
            slope = yield from boxes.replies.take()
            yield on(c, SeededStep(self.optimiser(round, c), v), model, slope)

    def upload(self, c: int, part: Part, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Send three messages for each mini-batch, each with a code of its own."""
        for batch in batches:
            for number in range(3):
                message = yield from boxes.outbox.take()
                coded = self.wire.coded_up(message, [part], c, round, batch.step, number)
                yield from boxes.inbox.put((yield send(coded, c, SERVER)))

    def serve(self, c: int, part2: Replica, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Train the client's part-2 on the first message; compare the other two by what it has become."""
        for batch in batches:
            smashed = yield from boxes.inbox.take()
            numbers = range(1, self.options.tau + 1)
            steps = tuple(self.directions(self.options.directions, c, round, batch.step, n) for n in numbers)
            yield on(SERVER, ZerothSteps(self.optimiser(round, SERVER), steps), part2, smashed)
            ahead = yield from boxes.inbox.take()
            behind = yield from boxes.inbox.take()
            slope = yield on(SERVER, CentralSlope(self.options.mu), part2, smashed, ahead, behind)
            yield from boxes.replies.put((yield send(slope, SERVER, c)))

    def merge(self, trained: Mapping[int, tuple[Replica | Bundle, Replica]]) -> Flow:
        """w <- w + eta_g * the mean of (w_c - w), of both parts."""
        n, rate = len(trained), self.options.global_lr
        sides = ((SERVER, self.part2, 1), (AGGREGATOR, self.part1, 0))
        for node, state, side in sides if n else ():
            copies = [state, *(both[side] for both in trained.values())]
            yield on(node, Average(), state, copies, [1 - rate, *[rate / n] * n])
