"""Clients that run ahead: a client, its uplink and the server's jobs for it are flows side by side.

Nobody waits for anybody unless a flow of a method says so: activations go up while the client computes on, and the
model leaves behind them. Most such clients learn from a loss of their own, that of an auxiliary head behind the cut,
and the server trains part-2 on what they send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import Method, MethodOptions, Task
from sfl_sim.methods.split import Copies, MiniBatchSteps, TwoParts, in_turn
from sfl_sim.models.heads import Aux, auxiliary_network
from sfl_sim.models.network import Network
from sfl_sim.models.part import Part
from sfl_sim.models.replica import Bundle, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Event, Flow, Lost, Occur, Step, Value, expect, occur, on, par, send, wait
from sfl_sim.scenario.fields import Unless
from sfl_sim.training.exit_steps import ExitBackward, ExitForward, LocalBackward
from sfl_sim.training.steps import Backward, Renew, TrainAlone


class Mailbox:
    """Messages of a client that wait at the server, in their order. Once the client is lost, nobody waits here.

    The client sends without waiting for what becomes of them. Two flows of it run side by side: one makes messages and
    puts them, the other takes them at the server.

    Args:
        client: the client.
        ahead: how many messages it may have made with which the server is not done yet; None: any number.
    """

    def __init__(self, client: int, ahead: int | None = None) -> None:
        self.client = client
        self.ahead = ahead
        self.is_closed = False
        self._messages: deque[Value] = deque()
        self._n_put = self._n_taken = self._n_done = 0
        self._awaited: Event | None = None  # one of the two waits at most: the client for room, or the server

    def room(self) -> Flow:
        """Wait until the client may make its next message."""
        if self.ahead is not None and self._n_put - self._n_done >= self.ahead:
            yield from self._wait(f"the server to be done with client {self.client}'s message {self._n_done}")
        self._check_open()

    def put(self, message: Value) -> Flow:
        """Put a message that has come to the server."""
        self._messages.append(message)
        self._n_put += 1
        if self._awaited:
            yield self._wake(self._awaited)

    def take(self) -> Flow:
        """Wait for the next message, and give it; with the one before, the server is done."""
        self._n_done = self._n_taken
        if self._awaited:
            yield self._wake(self._awaited)
        if not self._messages:
            yield from self._wait(f"client {self.client} to have sent message {self._n_taken}")
        self._check_open()
        self._n_taken += 1
        return self._messages.popleft()

    def close(self) -> Flow:
        """Let whoever waits here go on, and get `Lost`."""
        self.is_closed = True
        if self._awaited:
            yield self._wake(self._awaited)

    def _wait(self, about: str) -> Flow:
        if not self.is_closed:
            self._awaited = Event(about)
            yield wait([self._awaited])

    def _wake(self, event: Event) -> Occur:
        self._awaited = None
        return occur(event)

    def _check_open(self) -> None:
        if self.is_closed:
            raise Lost(self.client)


def closing(flow: Flow, *mailboxes: Mailbox) -> Flow:
    """Run a flow of a client; if the client is lost in it, all `mailboxes` close."""
    try:
        return (yield from flow)
    except Lost:
        for mailbox in mailboxes:
            yield from mailbox.close()
        raise


class Boxes(NamedTuple):
    """Mailboxes of a client's visit: what is to go up, what has come up, and what has come down."""

    outbox: Mailbox
    inbox: Mailbox
    replies: Mailbox

    @classmethod
    def of(cls, c: int) -> Boxes:
        """Make those of client `c`, which are empty."""
        return cls(Mailbox(c), Mailbox(c), Mailbox(c))


class HeadOptions(MethodOptions):
    """Options of methods whose clients have an auxiliary head."""

    aux: Aux = "exit"
    """Auxiliary head: that of an early exit, one `linear` layer, all layers behind the cut (`twin`), or an integer m:
    the first m of them and the last one."""


class UploadOptions(HeadOptions):
    """Options of methods whose clients send some of their activations."""

    upload_every: Annotated[int, Field(ge=1)] = 1
    """Number of mini-batches of which one goes up (h)."""
    upload: Annotated[Literal["first", "last"], Unless("upload_every", 1)] = "last"
    """Which one of them; a rest of fewer than h sends its first one, but no last one."""
    server: Literal["shared", "copies"] = "shared"
    """Part-2: one that all clients train in turn, or a copy for each, averaged every round."""


class RunsAhead(MiniBatchSteps, Method):
    """The flows of a client, and of the server's jobs for it; by default clients learn by a head's loss."""

    sends_gradients = False
    forward: Step = ExitForward(1.0)
    trains = TrainAlone
    goes_back: ClassVar[type[Backward | ExitBackward]] = LocalBackward

    @classmethod
    def at_client(cls, network: Network, cut: int, options: MethodOptions) -> tuple[Network, int]:
        """Give the layers up to the cut with the head, if any; beside adapters a head without any is left out."""
        if not isinstance(options, HeadOptions):
            return network, cut
        client = auxiliary_network(network, cut, options.aux)
        return (client, cut + 1) if bool(client.lora) == bool(network.lora) else (network, cut)

    def new_head(self, cut: int) -> Replica:
        """Make the head behind a cut that the options ask for."""
        assert isinstance(self.options, HeadOptions)
        task = self.task
        network = auxiliary_network(task.network, cut, self.options.aux)
        return task.at_clients(network.split(cut, seed=task.seed, device=task.device)[1])

    def is_sent(self, step: int) -> bool:
        """Say whether the activations of a round's mini-batch go up: those of one in h, or of all."""
        if not isinstance(self.options, UploadOptions):
            return True
        h = self.options.upload_every
        return step % h == (0 if self.options.upload == "first" else h - 1)

    def learn(self, c: int, model: Replica | Bundle, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Train the client's model by the loss of its head."""
        for batch in batches:
            smashed = yield on(c, self.forward, model, batch)
            if self.is_sent(batch.step):
                yield from boxes.outbox.put(smashed)
            yield on(c, self.local_step(c, batch, round), model, batch)

    def local_step(self, c: int, batch: Batch, round: int) -> Step:
        """The client's step on a mini-batch that has passed forward."""
        return self.backward(round, c)

    def upload(self, c: int, part: Part, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Send what `part` has made, one message after the other, while the client goes on."""
        for batch in batches:
            if self.is_sent(batch.step):
                smashed = yield from boxes.outbox.take()
                smashed = yield from self.wire.upload(smashed, part, batch, c, round)
                yield from boxes.inbox.put(smashed)

    def serve(self, c: int, part2: Replica, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Train part-2 on what arrives."""
        for batch in batches:
            if self.is_sent(batch.step):
                smashed = yield from boxes.inbox.take()
                yield on(SERVER, self.server_step(round), part2, smashed)


class Ahead(RunsAhead, TwoParts, Copies):
    """A round of three flows for each client, between which messages wait in mailboxes.

    By default clients learn by the loss of a head, which the method makes with `new_head`.
    """

    follows_order = True

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.client_model: Replica | Bundle = self.part1
        if isinstance(self.options, UploadOptions) and self.options.upload == "last":
            h, fewest = self.options.upload_every, min(map(self.data.n_batches, range(len(self.data))))
            if h > fewest:
                problem = (
                    "a client has fewer mini-batches a round, so that it never sends any; or set method.upload: first"
                )
                raise ScenarioError(problem, key="method.upload_every", found=h, allowed=f"1 to {fewest}")

    @classmethod
    def traits(cls, options: MethodOptions) -> Mapping[str, bool]:
        """Return what follows from whether clients take turns at part-2."""
        return in_turn(options.server == "shared" if isinstance(options, UploadOptions) else cls.follows_order)

    def n_jobs(self, n_batches: int, round: int) -> int:
        """Count the jobs at part-2 of a client with so many mini-batches: one for every upload."""
        return sum(map(self.is_sent, range(n_batches)))

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Visits of all clients side by side; then what they have trained is merged."""
        n_batches = self.begin(clients)
        if self.follows_order:
            yield on(SERVER, Renew(), self.part2)
            yield expect(self.part2, {c: self.n_jobs(n, round) for c, n in n_batches.items()})
        yield from self.merge((yield par({c: self.visit(c, round) for c in clients})))

    def merge(self, trained: Mapping[int, tuple[Replica | Bundle, Replica]]) -> Flow:
        """Average the clients' models, and part-2 if each has a copy: what is given of each client is both."""
        if not self.follows_order:
            yield from self.average(SERVER, self.part2, {c: part2 for c, (_, part2) in trained.items()})
        yield from self.average(AGGREGATOR, self.client_model, {c: model for c, (model, _) in trained.items()})

    def visit(self, c: int, round: int) -> Flow:
        """Run a client and the server's jobs for it side by side; gives what both have trained."""
        part2 = self.part2 if self.follows_order else (yield send(self.part2, SERVER, SERVER))
        boxes, batches = Boxes.of(c), list(self.data.batches(c, round))
        flows = self.work(c, boxes, batches, round), self.serve(c, part2, boxes, batches, round)
        try:
            model, _ = yield par(closing(flow, *boxes) for flow in flows)
        except Lost:
            del self.copies[c]
            raise
        return model, part2

    def work(self, c: int, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Download the client's model, train it while activations go up, and upload it behind them."""
        self.copies[c] = model = yield from self.wire.fetch(self.client_model, c)
        flows = self.learn(c, model, boxes, batches, round), self.upload(c, self.part1.part, boxes, batches, round)
        yield par(closing(flow, *boxes) for flow in flows)
        self.copies[c] = model = yield from self.wire.deliver(model, c, round)
        return model

    def current(self) -> list[Replica]:
        return [self.part1_now(), self.part2] if self.follows_order else super().current()

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        return self.part2.size_bytes * (1 if self.follows_order else len(clients))
