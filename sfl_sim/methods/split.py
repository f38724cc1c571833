"""The mini-batch of split learning, and the base of methods whose clients share one state at the server."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from sfl_sim.data.batches import Batch
from sfl_sim.methods.base import Method, MethodOptions, Task, once_a_round
from sfl_sim.models.replica import Bundle, Joined, Replica
from sfl_sim.ops import SERVER, Flow, Lost, Step, on
from sfl_sim.training.alternatives import Model
from sfl_sim.training.exit_steps import ExitBackward
from sfl_sim.training.steps import Backward, Forward, Train


class MiniBatchSteps:
    """The steps of both sides on a mini-batch; those with an optimiser are made once a round."""

    forward: Step = Forward()
    trains: ClassVar[type[Train]] = Train
    """The server's step on smashed data."""
    goes_back: ClassVar[type[Backward | ExitBackward]] = Backward
    """The client's step from the gradient at the cut, or from its own loss."""

    @once_a_round
    def server_step(self: Any, round: int) -> Step:
        """Return the server's step of a round."""
        step: Step = self.trains(self.optimiser(round, SERVER))
        return step

    @once_a_round
    def backward(self: Any, round: int, c: int) -> Step:
        """Return the step of client `c` in a round."""
        step: Step = self.goes_back(self.optimiser(round, c))
        return step


class SplitStep(MiniBatchSteps, Method):
    """A method whose clients train part-1 and whose server trains part-2, one mini-batch after another."""

    def batches(
        self, c: int, part1: Replica, part2: Replica | Joined, batches: Iterable[Batch], round: int, visit: int = 0
    ) -> Flow:
        """Train both parts on the mini-batches of client `c`, one after another; `visit` is as for `minibatch`."""
        for batch in batches:
            yield from self.minibatch(c, part1, part2, batch, round, visit)

    def minibatch(
        self, c: int, part1: Replica, part2: Replica | Joined, batch: Batch, round: int, visit: int = 0
    ) -> Flow:
        """Train both parts on one mini-batch: SPLITSTEP of docs/methods/README.md#one-split-step.

        `visit` counts the client's visits, from 1, if a round may have several; it then names the codecs' draws.
        """
        visit = visit or round
        smashed = yield on(c, self.forward, part1, batch)
        smashed = yield from self.wire.upload(smashed, part1.part, batch, c, visit)
        gradient = yield on(SERVER, self.server_step(round), part2, smashed)
        gradient = yield from self.wire.download(gradient, smashed, part1, c, visit)
        yield on(c, self.backward(round, c), part1, gradient)


class TwoParts(Method):
    """A method whose model is cut after the same layer for all clients: into `part1` and `part2`."""

    only_averages = True

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.part1, self.part2 = task.split(task.cut)

    def model(self) -> Model:
        return [self.part1, self.part2]

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        return self.part2.size_bytes


class SplitMethod(SplitStep, TwoParts):
    """A method that trains two parts, one mini-batch after another."""


class Copies(Method):
    """A method whose clients each train a copy of one model, averaged every round.

    Attributes:
        client_model: what every client downloads, trains and uploads: part-1, or a bundle that begins with it. To be
            set by the method.
        copies: the current one of each client that is not lost; the global one until the client has begun the round.
    """

    client_model: Replica | Bundle

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.copies: dict[int, Replica | Bundle] = {}

    def begin(self, clients: Sequence[int]) -> dict[int, int]:
        """Begin a round; gives the number of mini-batches of each of the `clients`."""
        self.copies = dict.fromkeys(clients, self.client_model)
        return {c: self.data.n_batches(c) for c in clients}

    def part1_now(self) -> Replica:
        """Give the average of the clients' current part-1s; the initial one if all are lost."""
        if not self.copies:
            return part1_of(self.client_model)
        return Replica.averaged([part1_of(copy) for copy in self.copies.values()], self.task.shares(list(self.copies)))


class SharedServer(SplitStep, Copies):
    """A method whose clients share one state at the server, to which they bring a job for every mini-batch."""

    shares_server_model = True
    follows_order = True
    depends_on_time = True

    def client(self, c: int, part2: Replica | Joined, round: int) -> Flow:
        """Download the client model, train it with `part2`, upload it. If the client is lost, `part2` stays changed."""
        try:
            self.copies[c] = model = yield from self.wire.fetch(self.client_model, c)
            yield from self.batches(c, model, part2, self.data.batches(c, round), round)
            self.copies[c] = model = yield from self.wire.deliver(model, c, round)
        except Lost:
            del self.copies[c]
            raise
        return model


def in_turn(shared: bool) -> dict[str, bool]:
    """Return the traits of a method whose clients train one part at the server in turn, or each a copy of it."""
    follow = ("follows_order", "shares_server_model", "depends_on_time")
    return dict.fromkeys(follow, shared) | {"forgets_lost": not shared}


def part1_of(model: Replica | Bundle) -> Replica:
    """Give the part-1 with which a client's model begins."""
    return model.replicas[0] if isinstance(model, Bundle) else model
