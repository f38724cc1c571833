"""Asynchronous methods: clients train side by side, and none waits for others.

As many clients train at a time as take part in a round of other methods: each has a slot. It downloads the global
model, trains a round's mini-batches, and uploads. The server takes the update in, and gives the slot to a client that
is idle and there. Meanwhile others go on with what they have downloaded, so that their updates are stale when they
come: by as many versions as the global model has had since.

A round only says when the run evaluates: it ends when the global model has taken in a number of updates, and clients at
work then go on into the next one. A client that is lost takes its update along, and its slot goes to another at once.
"""

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.data.batches import Batch
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.split import SplitStep
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Event, Flow, Lost, On, occur, on, present, send, start, wait
from sfl_sim.rng import stream
from sfl_sim.scenario.fields import OnlyWith, Unless
from sfl_sim.training.steps import Train


class AsynchronousOptions(MethodOptions):
    """Options of asynchronous methods."""

    host: Literal["fedavg", "splitfed_v1"] = "fedavg"
    """Method whose clients train: fedavg's, with the whole model, or splitfed_v1's, with a copy of part-2 for each at
    the server."""
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    """Weight s(tau) of an update that is tau versions old: 1 (constant), (1 + tau)^-a (polynomial), or 1 up to b and
    then 1 / (a (tau - b) + 1) (hinge)."""
    a: Annotated[Annotated[float, Field(gt=0)] | None, Unless("staleness", "constant")] = None
    """How fast the weight falls with staleness; null means 0.5, with hinge 10."""
    b: Annotated[float, Field(ge=0), OnlyWith("staleness", "hinge")] = 4.0
    """hinge: staleness up to which the weight is 1."""
    max_staleness: Annotated[int, Field(ge=0)] | None = None
    """Staleness above which updates are discarded; null: none is."""

    def weight(self, staleness: int) -> float:
        """s(tau) of Xie et al., "Asynchronous Federated Optimization", 2019, with its values of a and b.

        FedBuff's is `polynomial` with a = 0.5. Here a fresh update has staleness 0.
        """
        if self.staleness == "polynomial":
            return float((1 + staleness) ** -(self.a or 0.5))
        if self.staleness == "hinge" and staleness > self.b:
            return 1 / ((self.a or 10.0) * (staleness - self.b) + 1)
        return 1.0


@dataclass(frozen=True)
class ClientUpdate:
    """Result of a client's visit: the parts that it has trained.

    Attributes:
        client: the client.
        version: of the global model that the client began with.
        copies: the parts that it has trained.
        origins: the parts that it began with, for methods that need them.
    """

    client: int
    version: int
    copies: Sequence[Replica]
    origins: Sequence[Replica] = ()


class Asynchronous(SplitStep):
    """A method whose clients train on the global model as it is when they begin, and whose server never waits.

    Attributes:
        parts: the global model: the whole of it at the aggregator, or part-1 there and part-2 at the server. A new
            version has new parts, so that who begins meanwhile has parts of one version.
        version: how often the global model has changed.
        idle: the clients that do not work.
        visits: how often each client has begun to work, which decides on its mini-batches and random draws.
        arrived, arrival: updates that the server has not taken in yet, and the event that there are any.
        n_slots: slots that are taken, some maybe by a client that is yet to be drawn.
        round_number: of the round under way; a client that begins in it has its learning rate.
        worked: clients that have worked in it, or whose update it has taken in.
        staleness: of each update that it has taken in.
        n_discarded: updates that were too stale.
    """

    options: MethodOptions
    knows_deadlines = waits_for_all = False
    depends_on_time = True
    ignores: Mapping[str, str] = {"clients.choice": "a client is drawn as soon as another is done"}

    @classmethod
    def traits(cls, options: MethodOptions) -> Mapping[str, bool]:
        """Return whether the host splits the model."""
        return {"is_split": options.host == "splitfed_v1"} if isinstance(options, AsynchronousOptions) else {}

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.parts = task.split(task.cut) if self.is_split else task.split()
        self.nodes = (AGGREGATOR, SERVER)[: len(self.parts)]
        self.version = 0
        self.idle = list(range(len(self.data)))
        self.visits: Counter[int] = Counter()
        self.arrived: deque[ClientUpdate] = deque()
        self.arrival = Event("an update of a client")
        self.n_slots = self.n_drawn = 0
        self.begin(0)

    def begin(self, round: int) -> None:
        """Begin another round, with the clients that are at work."""
        self.round_number = round
        self.worked = set(range(len(self.data))).difference(self.idle)
        self.staleness: list[int] = []
        self.n_discarded = 0

    def next_update(self, n_slots: int) -> Flow:
        """Wait for an update that is not too stale. Free slots are given away when all updates have been taken in."""
        bound = getattr(self.options, "max_staleness", None)
        while True:
            while not self.arrived:
                for _ in range(n_slots - self.n_slots):
                    self.n_slots += 1
                    yield start(self.slot())
                yield wait([self.arrival])
                self.arrival = Event("an update of a client")
            update = self.arrived.popleft()
            staleness = self.version - update.version
            self.worked.add(update.client)
            if bound is None or staleness <= bound:
                self.staleness.append(staleness)
                return update
            self.n_discarded += 1

    def slot(self) -> Flow:
        """Let an idle client train; if it is lost, another one."""
        update = None
        while update is None:
            c = yield from self.draw()
            with suppress(Lost):
                update = yield from self.client(c)
            self.idle.append(c)
        self.n_slots -= 1
        self.arrived.append(update)
        yield occur(self.arrival)

    def draw(self) -> Flow:
        """Wait for an idle client that is present, and draw one of them; it is not idle any more."""
        while True:
            present_clients = yield present(list(self.idle))
            self.n_drawn += 1
            rng = stream(self.task.seed, "asynchronous clients", self.n_drawn)
            c = present_clients[rng.integers(len(present_clients))]
            if c in self.idle:  # and not in another slot, which has waited for it, too
                self.idle.remove(c)
                self.worked.add(c)
                return c

    def client(self, c: int) -> Flow:
        """Download, train on all local mini-batches, upload; gives the `ClientUpdate`."""
        version = self.version
        self.visits[c] += 1
        train = self.train_both if self.is_split else self.train_whole
        copies = yield from train(c, self.data.batches(c, self.visits[c]), self.round_number)
        return ClientUpdate(c, version, copies)

    def train_whole(self, c: int, batches: Iterable[Batch], round: int) -> Flow:
        """Train the whole model, as in FedAvg."""
        (whole,) = self.parts
        train = Train(self.optimiser(round, c))
        copy = yield from self.wire.fetch(whole, c)
        for batch in batches:
            yield on(c, train, copy, batch)
        return [(yield from self.wire.deliver(copy, c, self.visits[c]))]

    def train_both(self, c: int, batches: Iterable[Batch], round: int) -> Flow:
        """Train part-1 with a copy of part-2, as in SplitFedV1."""
        part1, part2 = self.parts
        part2 = yield send(part2, SERVER, SERVER)
        part1 = yield from self.wire.fetch(part1, c)
        yield from self.batches(c, part1, part2, batches, round, self.visits[c])
        return [(yield from self.wire.deliver(part1, c, self.visits[c])), part2]

    def take(self, updates: Sequence[ClientUpdate]) -> Flow:
        """Make the next version of the global model."""
        parts = []
        for node, part in zip(self.nodes, self.parts, strict=True):
            parts.append((yield send(part, node, node)))
        for i in reversed(range(len(parts))):  # SplitFedV1 averages part-2 first
            yield self.merge(i, parts[i], updates)
        self.parts = parts
        self.version += 1

    @abstractmethod
    def merge(self, i: int, part: Replica, updates: Sequence[ClientUpdate]) -> On:
        """Give the operation that turns `part`, a copy of `parts[i]`, into that of the next version."""

    def weights(self, updates: Sequence[ClientUpdate]) -> list[float]:
        """Compute s(tau) of each update."""
        assert isinstance(self.options, AsynchronousOptions)
        return [self.options.weight(self.version - update.version) for update in updates]

    def took_part(self, clients: Sequence[int]) -> Sequence[int]:
        """List the clients that have worked, whichever were drawn for the round."""
        return sorted(self.worked)

    def figures(self) -> Mapping[str, float]:
        """Mean and largest staleness of the round's updates, and how many updates were too stale."""
        mean = sum(self.staleness) / len(self.staleness)
        return {
            "staleness_mean": mean,
            "staleness_max": float(max(self.staleness)),
            "updates_discarded": float(self.n_discarded),
        }

    def model(self) -> list[Replica]:
        return self.parts

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        return len(clients) * sum(part.size_bytes for part in self.parts[1:])
