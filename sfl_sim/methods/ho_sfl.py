"""HO-SFL: the server trains by gradients, clients by forward passes; they exchange numbers instead of models.

Chen et al., "HO-SFL: Hybrid-Order Split Federated Learning with Backprop-Free Clients and Dimension-Free Aggregation",
2026 (docs/methods/ho_sfl.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.pooled import in_step
from sfl_sim.methods.split import SplitMethod
from sfl_sim.models.averages import average_counters
from sfl_sim.models.on_nan import differentiate
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, State, Step, Value, Work, on, par, send
from sfl_sim.training.optimisers import Optimiser
from sfl_sim.training.steps import ForwardOnly, Renew, gradient_at
from sfl_sim.training.zeroth import SCALAR_BYTES, Directions, Dist, SeededStep, Slopes


class HoOptions(MethodOptions):
    """Options of HO-SFL."""

    directions: Annotated[int, Field(ge=1)] = 5
    """Number of random directions of a step, each of which takes a client a forward pass (P)."""
    mu: Annotated[float, Field(gt=0)] = 1e-3
    """Length of a shift, in units of the direction."""
    dist: Dist = "gauss"
    """Distribution of directions: normal, +1 and -1 (`sign`), or uniform on a sphere."""
    catch_up: Literal["cheaper", "replay", "model"] = "cheaper"
    """What a client gets that has missed steps: the numbers of these steps, the model, or what has fewer bytes."""


class Done(NamedTuple):
    """A step that is over: its round, the clients' step, and the numbers that it takes."""

    round: int
    step: SeededStep
    slopes: State


class HoSfl(SplitMethod, survives=True):
    """All clients hold the same part-1, which they change by the same numbers."""

    Options = HoOptions
    options: HoOptions
    examples = (HoOptions(directions=2), HoOptions(directions=1, catch_up="replay"), HoOptions(catch_up="model"))
    neutral = None
    keeps_graphs = uploads_model = only_averages = False
    ignores: Mapping[str, str] = {
        "train.agg_weights": "numbers are averaged, all alike",
        "server.include_model_exchange": "numbers are exchanged, and the model only by who has missed some",
    }

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if self.wire.nopeek:
            raise ScenarioError("is a gradient of part-1, which clients do not compute", key="privacy.nopeek")
        if task.client_lr:
            raise ScenarioError("must be the same for all clients, whose part-1s stay equal", key="train.lr")
        self.batch_size = task.data.common("batch_size", task.method)
        task.data.check_one_length(task.method, "gradients are kept apart from the weights by which they are priced")
        self.initial = self.part1.snapshot()
        """What every client holds before the first step."""
        self.part1s: dict[int, Replica] = {}
        """Part-1 of each client that has taken part."""
        self.history: list[Done] = []
        self.n_taken: dict[int, int] = {}
        """Number of steps of the history that each client has taken."""
        self.arrived: dict[int, State] = {}
        """Gradients of part-2 of each client in the step under way."""

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Clients catch up; then steps of those that have a mini-batch."""
        yield on(SERVER, Renew(), self.part2)
        yield on(AGGREGATOR, Renew(), self.part1)
        there = set((yield par({c: self.begin(c) for c in clients})))
        sizes, steps = dict.fromkeys(clients, self.batch_size), max(map(self.data.n_batches, clients))
        for number, step in enumerate(in_step(self.data, round, sizes, steps)):
            batches = {c: batch for c, batch in zip(clients, step, strict=True) if batch is not None and c in there}
            there -= batches.keys() - (yield from self.step(batches, round, number))

    def begin(self, c: int) -> Flow:
        """Bring the steps that client `c` has missed, as numbers or as the model; its optimiser begins anew."""
        first, last = self.n_taken.get(c, 0), len(self.history)
        numbers_bytes = 2 * SCALAR_BYTES * self.options.directions * (last - first)
        replays = {"replay": True, "model": False, "cheaper": numbers_bytes <= self.part1.size_bytes}
        if c not in self.part1s:
            self.part1s[c] = yield send(self.initial, c, c)
        if first < last and replays[self.options.catch_up]:
            missed = yield send(Missed(self.history[first:], numbers_bytes), SERVER, c)
            for number in range(first, last):
                if number and self.history[number].round > self.history[number - 1].round:
                    yield on(c, Renew(), self.part1s[c])
                yield on(c, self.history[number].step, self.part1s[c], MissedStep(missed, number - first))
                self.n_taken[c] = number + 1
        elif first < last:
            self.part1s[c] = yield send(self.part1, AGGREGATOR, c)
        self.n_taken[c] = last
        yield on(c, Renew(), self.part1s[c])

    def step(self, batches: Mapping[int, Batch], round: int, number: int) -> Flow:
        """One step of both parts; gives the clients that have taken it."""
        options, self.arrived = self.options, {}
        directions = Directions(options.dist, options.directions, options.mu, self.task.seed, (round, number))
        slopes = yield par({c: self.client(c, batch, directions, round) for c, batch in batches.items()})
        if self.arrived:
            gradients = [self.arrived[c] for c in batches if c in self.arrived]
            yield on(SERVER, StepByMean(self.optimiser(round, SERVER)), self.part2, gradients)
        if not slopes:
            return set()
        done = Done(round, SeededStep(self.optimiser(round, next(iter(slopes))), directions), State("numbers"))
        mean = yield on(SERVER, Mean(), done.slopes, list(slopes.values()))
        self.history.append(done)
        yield on(AGGREGATOR, done.step, self.part1, mean)
        return set((yield par({c: self.follow(c, done.step, mean) for c in slopes})))

    def client(self, c: int, batch: Batch, directions: Directions, round: int) -> Flow:
        """Send activations, and the slopes along the directions of what their gradient says of part-1."""
        yield send(Value("seeds", SCALAR_BYTES * directions.count, content=directions.seeds()), SERVER, c)
        part1 = self.part1s[c]
        smashed = yield on(c, ForwardOnly(), part1, batch)
        sent = yield from self.wire.upload(smashed, part1.part, batch, c, round)
        kept = State("gradient")
        gradient = yield on(SERVER, HoDifferentiate(), kept, sent, self.part2)
        self.arrived[c] = kept
        gradient = yield from self.wire.download(gradient, sent, part1, c, round)
        slopes = yield on(c, Slopes(directions), part1, batch, smashed, gradient)
        return (yield send(slopes, c, SERVER))

    def follow(self, c: int, step: SeededStep, mean: Value) -> Flow:
        """Send the mean slopes to client `c`, which takes the step."""
        mean = yield send(mean, SERVER, c)
        yield on(c, step, self.part1s[c], mean)
        self.n_taken[c] = len(self.history)

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """Size of part-2, and of the part-1 that goes to clients which have missed much."""
        return self.part1.size_bytes + self.part2.size_bytes


class Missed(Value):
    """The numbers of steps, and the seeds of their directions."""

    __slots__ = ("made_of", "seeds")

    def __init__(self, steps: Sequence[Done], size_bytes: int) -> None:
        super().__init__("numbers", size_bytes)
        self.made_of = [done.slopes for done in steps]
        self.seeds = torch.stack([done.step.directions.seeds() for done in steps])

    def load(self) -> tuple[Tensor, Tensor]:
        """Slopes (m, P) and seeds (m, P) of m steps."""
        return torch.stack([slopes.load() for slopes in self.made_of]), self.seeds


class MissedStep(Value):
    """The numbers of one of the steps that a client has missed."""

    __slots__ = ("made_of", "number")

    def __init__(self, missed: Value, number: int) -> None:
        super().__init__("numbers")
        self.made_of = [missed]
        self.number = number

    def load(self) -> Tensor:
        """Slopes (P,)."""
        slopes: Tensor = self.made_of[0].load()[0][self.number]
        return slopes


class HoDifferentiate(Step):
    """Part-2's gradients on smashed data; that of the weights is kept, and part-2 stays as it is for other jobs."""

    name = "differentiate"

    def work(self, kept: State, smashed: Value, part2: Replica) -> Work:
        return part2.part.work(smashed.samples, passes=3)

    def out(self, kept: State, smashed: Value, part2: Replica) -> Value:
        return gradient_at(part2.part, smashed)

    def run(self, kept: State, smashed: Value, part2: Replica) -> Tensor | None:
        """Give the mean loss's gradient at the input (n, ...); keep that of the weights, and the running statistics."""
        weights = part2.weights
        before, (x, labels) = weights.state, smashed.load()
        x = x.detach().requires_grad_(not part2.part.first)
        differentiate(part2.part.loss(weights(x, training=True), labels))
        kept.content = weights.grad.clone(), weights.state
        weights.grad.zero_()
        weights.put(before)
        gradient: Tensor | None = x.grad
        return gradient


@dataclass(frozen=True)
class StepByMean(Step):
    """The optimiser's step by the mean of gradients that clients have brought; running statistics are averaged, too."""

    optimiser: Optimiser
    name = "step"

    def work(self, part2: Replica, gradients: Sequence[State]) -> Work:
        return Work.of(0)._replace(updated=part2.part.n_parameters)

    def run(self, part2: Replica, gradients: Sequence[State]) -> None:
        weights, n = part2.weights, len(gradients)
        weights.keep_statistics()
        for gradient in gradients:
            weights.grad.add_(gradient.content[0] / n)
        states = [gradient.content[1] for gradient in gradients]
        weights.buffers.copy_(sum(buffers / n for buffers, _ in states))
        average_counters(weights, [frozen for _, frozen in states], [1 / n] * n)
        self.optimiser.step(weights)


class Mean(Step):
    """The mean of the clients' slopes, kept in a state."""

    name = "mean"

    def out(self, mean: State, slopes: Sequence[Value]) -> Value:
        return Value("numbers", slopes[0].size_bytes, step=slopes[0].step)

    def run(self, mean: State, slopes: Sequence[Value]) -> Tensor:
        """Give the mean (P,)."""
        mean.content = torch.stack([client_slopes.load() for client_slopes in slopes]).mean(dim=0)
        numbers: Tensor = mean.content
        return numbers
