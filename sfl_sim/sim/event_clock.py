"""The event clock: drives flows through an event loop in simulated time."""

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.core import EmptySchedule
from simpy.events import NORMAL, URGENT

from sfl_sim.errors import DeadlockError
from sfl_sim.ops import SERVER, Expect, Flow, Lost, Occur, On, Par, Present, Read, Send, ServerNode, Start, Wait
from sfl_sim.rng import stream
from sfl_sim.sim.branch import WAITS, Branch, Callbacks, Events
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.operations import Executor, Operations, Recording, row_bytes
from sfl_sim.sim.orders import LABELS_OF_THEIR_OWN, InARow, Order, Roster
from sfl_sim.sim.prices import ClientResources, Prices
from sfl_sim.sim.serving_station import ServingStation
from sfl_sim.sim.station import OrderPolicy, Station
from sfl_sim.store.columns import OP_DTYPE
from sfl_sim.system.fleet import Fleet


@dataclass(frozen=True)
class Queueing:
    """How a server serves jobs.

    Attributes:
        order: makes each round's order policy for states that a flow `expect`s jobs on.
        workers: number of its workers.
        burst: consecutive jobs of a chosen client.
        max_wait_s: how long it is held for a job, for orders that ask.
        recorded: by round, the clients that another run's server served one after another, for orders that ask.
    """

    order: Order
    workers: float = 1
    burst: float = 1
    max_wait_s: float = inf
    recorded: Mapping[int, Sequence[int]] = field(default_factory=dict)


class EventClock:
    """Clock of a simulated system: clients with a device and two links each, an aggregator, and a server with a queue.

    Args:
        fleet: rates of devices, links and server.
        executor: carries the operations out.
        queueing: how the servers serve jobs, or, of one worker each, in which order alone.
        station: makes the server of an event loop and of so many workers: for training, or a `ServingStation`.
        environment: makes an event loop that begins at an instant; that of a live run keeps the wall's time.
        operations: makes what carries operations out in it.
        labels: the clients' dominant labels, for orders that ask.
        seed: of the run; the order's random stream is (seed, round).
        include_model_exchange: False lets models and averages take no time (docs/methods/timing.md).
        dropouts: which operations are lost in rounds; None: none.
        queues: how servers of tiers serve jobs that do not as the main server does.

    Attributes:
        records: rows of all operations, what was read, and what was lost.
        after_job: called with each operation at a server after its step has run.
    """

    def __init__(
        self,
        fleet: Fleet,
        executor: Executor,
        queueing: Queueing | Order,
        *,
        station: Callable[[simpy.Environment, float], Station | ServingStation] = Station,
        environment: Callable[[float], simpy.Environment] = simpy.Environment,
        operations: Callable[..., Operations] = Operations,
        labels: Sequence[int] = LABELS_OF_THEIR_OWN,
        seed: int = 0,
        include_model_exchange: bool = True,
        dropouts: Dropouts | None = None,
        queues: Mapping[ServerNode, Queueing] | None = None,
    ) -> None:
        self.dropouts = dropouts or Dropouts()
        self.prices = Prices(fleet, include_model_exchange)
        self.executor = executor
        main = queueing if isinstance(queueing, Queueing) else Queueing(queueing)
        of_tiers = [node for tier in fleet.tiers.values() for node in tier.nodes]
        self.queues = {**dict.fromkeys([SERVER, *of_tiers], main), **(queues or {})}
        self.station = station
        self.environment = environment
        self.operations = operations
        self.labels = labels
        self.seed = seed
        self.records = Recording()
        self._begins: Callbacks = [self._begin_branches]
        self._ended: Callbacks = [self._all_ended]
        self._joined: Callbacks = [self._join]
        self.after_job: list[Callable[[On], None]] = []
        self.resources = ClientResources(self.prices, self.dropouts, seed)
        self._wanted = inf
        self._background: dict[Branch, None] = {}
        self._begin(0.0)

    def _begin(self, now_s: float) -> None:
        """Make a new event loop: between two rounds no flow waits, and devices and links are free."""
        self.env = self.environment(now_s)
        self._servers: dict[ServerNode, Station | ServingStation] = {
            node: self.station(self.env, queue.workers) for node, queue in self.queues.items()
        }
        self._awaiting = Events(self.env, self._go_on)
        self._operations = self.operations(
            self.env, self.executor, self.prices, self.resources,
            servers=self._servers, records=self.records, after_job=self.after_job, go_on=self._go_on,
        )  # fmt: skip
        self._handlers: dict[type, Callable[[Branch, Any], Any]] = {
            On: self._operations.on,
            Send: self._operations.send,
            Par: self._par,
            Start: self._start,
            Present: self._present,
            Read: self._operations.read,
            Expect: self._expect,
            Occur: self._awaiting.occur,
            Wait: self._awaiting.wait,
        }

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start of the run."""
        return float(self.env.now)

    def run(self, flow: Flow, round: int, *, in_round: bool = True) -> Any:
        """Run `flow` as round number `round` (from 1) until it returns, and give what it returns.

        Setup and finish are counted to the first and the last round, but are not `in_round`: every client is present
        then, because rounds do not wait for registrations or for final models.
        Raises DeadlockError if no event is left and flows wait, or jobs that were announced are missing; and Lost if
        `flow` ends with it.
        """
        self._operations.begin_round(round, in_round)
        self._wanted = self.dropouts.wanted if in_round else inf
        whole = Branch()
        self._fork(whole, [flow])
        step = self.env.step
        try:
            with rare_garbage_collection():
                while not whole.is_over:
                    step()
        except EmptySchedule as error:
            raise DeadlockError(self._who_waits()) from error
        value = whole.branches[0].value
        if isinstance(value, Lost):
            raise value
        for server, station in self._servers.items():
            if isinstance(station, Station) and not self._background and (missing := station.missing()):
                client, n_jobs = next(iter(missing.items()))
                raise DeadlockError(
                    f"round {round} has ended without {n_jobs:,} jobs of client {client} that `expect` has announced; "
                    f"do fewer reach the {server}, or does a flow lack `yield from`?"
                )
        return value

    def serve(self, arrivals: Iterable[tuple[float, Flow]]) -> None:
        """Begin each flow at its instant, in seconds that never fall, and run until all of them have returned.

        All count as round 1. Raises DeadlockError if flows still wait when no event is left.
        """
        self._operations.begin_round(1)
        self._arrive(self._coming(arrivals))
        with rare_garbage_collection():
            self.env.run()
        if self._awaiting.events or any(self._waiting()):
            raise DeadlockError(self._who_waits())

    def _coming(self, arrivals: Iterable[tuple[float, Flow]]) -> Iterator[float]:
        """Begin the flows; generates the seconds until the next ones."""
        last_s = self.now_s
        for at_s, flow in arrivals:
            if at_s > last_s:  # the clock may be off by a bit, and what is simultaneous must stay so
                yield max(0.0, at_s - self.env.now)
                last_s = at_s
            self._go_on(Branch(flow))

    def _arrive(self, coming: Iterator[float]) -> None:
        for seconds in coming:
            self.env.timeout(seconds).callbacks.append(lambda _: self._arrive(coming))
            return

    def take_rows(self) -> NDArray[np.void]:
        """The operations that have ended since the last call, as an `OP_DTYPE` array in order of their end."""
        return self.records.take()

    def under_way(self) -> NDArray[np.void]:
        """The operations that have not ended, of flows that go on into the next round, as rows that end now."""
        rows, branches = bytearray(), list(self._background)
        for branch in branches:
            if isinstance(branch.op, Par):
                branches += branch.branches
            elif isinstance(branch.op, (On, Send)):
                rows += row_bytes(*self._operations.under_way(branch))
        return np.frombuffer(rows, OP_DTYPE)

    def skip(self, rows: NDArray[np.void], until_s: float) -> None:
        """Add operations that the array clock has timed, from now to `until_s`, and go on then; no flow may wait."""
        self.records.add(rows)
        self._begin(until_s)

    def _go_on(self, branch: Branch, result: Any = None, error: Exception | None = None) -> None:
        """Carry out a flow's operations one after another until it has to wait, beginning with its last result.

        An error in an operation is raised in the flow, where it was yielded: `Lost`, which the flow may catch, or a
        mistake, whose traceback then names the line.
        """
        flow, handlers = branch.flow, self._handlers
        while result is not WAITS:
            try:
                op = flow.send(result) if error is None else flow.throw(error)
            except StopIteration as stop:
                self._end(branch, stop.value)
                return
            except Lost as lost:
                self._end(branch, lost.with_traceback(None))  # whose frames hold the client's model
                return
            branch.op = op
            try:
                handler = handlers.get(type(op), _refuse)
                result, error = handler(branch, op), None
            except Exception as raised:
                result, error = None, raised

    def _end(self, branch: Branch, value: Any) -> None:
        branch.value, branch.op, branch.result = value, None, None  # which hold models
        parent = branch.parent
        if parent is None:
            self._background.pop(branch, None)
        else:
            parent.n_left -= 1
            if not isinstance(value, Lost):
                parent.n_wanted -= 1
            if not parent.n_left:
                parent.callbacks = self._ended
                self.env.schedule(parent)
            elif not parent.n_wanted:
                self._overtake(parent)

    def _par(self, branch: Branch, op: Par) -> Any:
        self._fork(branch, op.flows, inf if op.names is None else self._wanted)
        return WAITS

    def _fork(self, branch: Branch, flows: Sequence[Flow], wanted: float = inf) -> None:
        """Let flows begin one after another at this instant, before anything else happens.

        Args:
            wanted: as soon as so many have ended and were not lost, the others are overtaken.
        """
        branch.branches, branch.n_left = [Branch(flow, branch) for flow in flows], len(flows)
        branch.n_wanted = wanted
        branch.callbacks = self._begins if flows else self._joined
        self.env.schedule(branch, URGENT if flows else NORMAL)

    def _begin_branches(self, branch: Branch) -> None:
        wanted, branch.n_wanted = branch.n_wanted, inf  # nobody is overtaken before all have begun
        for child in branch.branches:
            self._go_on(child)
        if wanted < inf:
            ended = [child for child in branch.branches if child.flow.gi_frame is None]
            branch.n_wanted = wanted - sum(not isinstance(child.value, Lost) for child in ended)
            if branch.n_left and branch.n_wanted <= 0:
                self._overtake(branch)

    def _all_ended(self, branch: Branch) -> None:
        """Let a branch go on all of whose branches have ended, after what was to happen at this instant anyway."""
        branch.is_over = branch.flow is None
        if not branch.is_over:
            branch.callbacks = self._joined
            self.env.schedule(branch)

    def _overtake(self, branch: Branch) -> None:
        """Lose the clients whose flows have not ended, of those that a branch runs in parallel."""
        branch.n_wanted = inf
        flows = zip(branch.op.names, list(branch.branches), strict=True)
        late = {client: child for client, child in flows if child.flow.gi_frame is not None}
        self.dropouts.overtake(late)
        for client, child in late.items():
            if not self._lose(client, child):
                self._operations.lose_waiting(client)
            self._operations.leave(client)

    def _lose(self, client: int, branch: Branch) -> bool:
        """Raise `Lost` in a client's flow and in those that it runs in parallel, where they wait for the client.

        Gives False if the client does nothing that could be lost: all of them wait for others.
        """
        op = branch.op
        if isinstance(op, Par):
            left = [child for child in list(branch.branches) if child.flow.gi_frame is not None]
            lost = [self._lose(client, child) for child in left]
            return any(lost) or not left
        is_waiting = op is None or isinstance(op, Wait)
        error = self._operations.overtake(client, branch) if isinstance(op, On | Send) else None
        if is_waiting or error:
            self._go_on(branch.moved(), error=error or Lost(client))
        return not is_waiting

    def _join(self, branch: Branch) -> None:
        names, values = branch.op.names, [ended.value for ended in branch.branches]
        del branch.branches
        if names is None:
            self._go_on(branch, values, next((value for value in values if isinstance(value, Lost)), None))
        else:
            ended = zip(names, values, strict=True)
            self._go_on(branch, {name: value for name, value in ended if not isinstance(value, Lost)})

    def _start(self, _: Branch, op: Start) -> None:
        branch = Branch(op.flow)
        self._background[branch] = None
        branch.callbacks = [self._go_on]
        self.env.schedule(branch, URGENT)

    def _present(self, branch: Branch, op: Present) -> Any:
        prices, presence, now_s = self.resources.prices, self.resources.prices.presence_of, self.env.now
        if prices.fleet.presence is None and not prices.fleet.tiers:
            return list(op.nodes)
        if present := [node for node in op.nodes if (there := presence(node)) is None or there.is_present(now_s)]:
            return present
        again_s = min((there.again_s(now_s) for node in op.nodes if (there := presence(node))), default=inf)
        if again_s == inf:
            raise DeadlockError(f"round {self._operations.round} waits for clients, none of whom ever comes")
        branch.callbacks = [lambda _: self._go_on(branch, self._present(branch, op))]
        self.env.schedule(branch, NORMAL, again_s - now_s)
        return WAITS

    def _expect(self, _: Branch, op: Expect) -> None:
        self._servers[op.node].rank(op.state.guard, *self.policy(op, self._operations.round))

    def policy(self, announced: Expect, round: int) -> tuple[OrderPolicy, dict[int, int]]:
        """A server's policy for the jobs that are announced in a round; it follows the returned count of them."""
        node, turn = announced.node, announced.turn
        left = {client: number for client, number in announced.jobs.items() if number}
        queue, name = self.queues[node], "order" if node == SERVER else f"order of {node}"
        rows = left if turn == 1 else {client: number // turn for client, number in left.items()}
        roster = Roster(
            list(rows), rows, burst=queue.burst, rng=stream(self.seed, name, round), labels=self.labels,
            max_wait_s=queue.max_wait_s, recorded=queue.recorded.get(round, ())[::turn],
        )  # fmt: skip
        policy = queue.order(roster)
        return (policy if turn == 1 else InARow(policy, rows, turn)), left

    def _waiting(self) -> Iterator[str]:
        """Say who waits at each server for which state."""
        for server, station in self._servers.items():
            for clients, turn in station.waiting():
                held = "" if turn is None else f", which the order holds for client {turn}"
                named = ", ".join(map(str, clients[:10])) + (", ..." if len(clients) > 10 else "")
                yield f"client {named} waits for the {server}{held}"

    def _who_waits(self) -> str:
        lines = [*self._waiting()]
        lines += [f"a flow waits for {event.about}" for event in self._awaiting.events]
        ended_s = self.records.last_end_s(self.now_s)  # patience may have ended later
        why = "; ".join(lines) or "no operation is pending"
        return f"round {self._operations.round} is stuck at {ended_s:.3f} s: {why}"


def _refuse(_: Branch, op: Any) -> Any:
    """Raise TypeError: `op` is not in the vocabulary."""
    advice = "; `yield from` runs a flow" if isinstance(op, Generator) else ""
    raise TypeError(f"a flow yielded {op!r}, which is no operation{advice}")


RARE = 70_000
"""Objects made since the last garbage collection at which the next one begins where it is rare: usually 700."""


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Run Python's garbage collection rarely: a round makes many objects and hardly any cycle.

    1,000 clients run 1.15 to 1.2 times as fast, 100,000 clients 1.6 times (benchmarks/clock.py).
    """
    usual = gc.get_threshold()
    gc.set_threshold(RARE, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
