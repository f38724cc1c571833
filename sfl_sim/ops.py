"""The vocabulary: what a method may say. It holds no clock, no resource and no tensor.

A method is a generator (a *flow*) that yields operations and receives their results:

    on(node, step, state, *args)   run `step` at `node`, changing `state`; gives the step's result. What one step
                                   changes at once is joined into one state, serialised by the first of its members
    send(payload, src, dst)        move a payload; a state is snapshotted when the operation is issued
    par(flows)                     run flows side by side; gives the list of what they return. Named flows, in a
                                   mapping, give a mapping without those whose client was lost
    start(flow)                    let a flow run beside, which nobody waits for: not even the end of the round
    present(clients)               those of the clients who are there now; waits until somebody is
    read(value)                    the number in `value`: the only way to branch on what training produced
    expect(state, jobs)            announce how many training jobs each client will bring to a shared `state`,
                                   so that the order policy knows whose turn can come
    occur(event), wait(events)     a precedence between flows that run side by side: who waits for events goes on once
                                   all of them have occurred, or after `at_most_s`; gives whether they have

A client may go away while it takes part. What it was doing, or waiting for at the server, then raises `Lost` in the
flow that asked for it, which may catch it. A flow that does not ends, and leaves the mapping that it is part of; in a
list, or by itself, it takes along the flow that waits for it, and so on: what nobody catches ends the run.

Example: one client's mini-batch in split learning. Any driver can run it, a test by hand:

    >>> def batch_of(client, part1, part2, batch, forward, train, backward):
    ...     smashed = yield on(client, forward, part1, batch)
    ...     smashed = yield send(smashed, client, SERVER)
    ...     gradient = yield on(SERVER, train, part2, smashed)
    ...     gradient = yield send(gradient, SERVER, client)
    ...     yield on(client, backward, part1, gradient)
    >>> flow = batch_of(3, "w1", "w2", "x", "F", "T", "B")
    >>> flow.send(None)
    On(node=3, step='F', state='w1', args=('x',))
    >>> flow.send("a")
    Send(payload='a', src=3, dst=-1)
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, Protocol

SERVER = -1
"""The main server, which holds part-2. Clients are the nodes 0, 1, 2, ..."""
AGGREGATOR = -2
"""The fed server, which averages part-1 and sees neither activations nor labels."""

NODE_NAMES = {SERVER: "server", AGGREGATOR: "aggregator"}


class Value:
    """What flows hold and pass on: a size that the clock prices, and a content that only executors touch.

    Attributes:
        kind: what it is (`smashed`, `gradients`, `model`, ...), as shown in records.
        size_bytes: bytes on the wire.
        samples: training samples it stands for; 0 if that makes no sense.
        step: mini-batch index within the round; -1 if none.
        maker: the node that produced it; None until an operation did.
        content: filled by the executor; None in timing-only runs.
    """

    __slots__ = ("__weakref__", "content", "kind", "maker", "samples", "size_bytes", "step")

    def __init__(self, kind: str, size_bytes: int = 0, samples: int = 0, step: int = -1, content: Any = None) -> None:
        self.kind = kind
        self.size_bytes = size_bytes
        self.samples = samples
        self.step = step
        self.maker: int | None = None
        self.content = content

    def snapshot(self) -> Value:
        """The value as it is now, safe from later changes. Values never change, so: itself."""
        return self

    def load(self) -> Any:
        """The content, for steps. A value that makes its content late (a mini-batch) overrides this."""
        return self.content

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind}, {self.size_bytes} B, {self.samples} samples, step {self.step})"


class State(Value):
    """A value that operations may change. Operations on states with one `guard` are serialised in service order."""

    __slots__ = ()

    @property
    def guard(self) -> State:
        """The state for whose turn a change of this one waits: itself, unless it is made of several."""
        return self


KINDS = ("conv", "depthwise", "dense", "attention")
"""Kinds of layers that devices may take differently long for. `depthwise`: convolutions with a group per input channel.
`attention`: all matrix products of a self-attention block, its projections included. `dense`: any other matrix product.
`conv`: any other convolution."""


class Work(NamedTuple):
    """What a step computes.

    Attributes:
        macs: multiply-accumulate operations.
        by_kind: the same by kind of layer, in the order of `KINDS`; they add up to `macs`.
        n_ops: calls of convolutions, linear maps and attention blocks; a call takes a whole mini-batch.
    """

    macs: float
    by_kind: tuple[float, float, float, float]
    n_ops: float

    @classmethod
    def of(cls, macs: float) -> Work:
        """Work without layers, such as the sum of an average: as if dense, and called for nothing."""
        return cls(macs, (0, 0, macs, 0), 0)

    @classmethod
    def total(cls, works: Iterable[Work]) -> Work:
        """What several steps compute together, one after another."""
        macs, by_kind, n_ops = 0.0, (0.0, 0.0, 0.0, 0.0), 0.0
        for work in works:
            conv, depthwise, dense, attention = (a + b for a, b in zip(by_kind, work.by_kind, strict=True))
            macs, by_kind, n_ops = macs + work.macs, (conv, depthwise, dense, attention), n_ops + work.n_ops
        return cls(macs, by_kind, n_ops)


class Step(Protocol):
    """Something a node can do to a state: priced without running it.

    `name` is the `kind` of its records. `aggregates` marks the averaging of models, which belongs to model exchange.
    """

    name: str
    aggregates: bool

    def work(self, state: Any, *args: Any) -> Work:
        """What it computes."""

    def out(self, state: Any, *args: Any) -> Value:
        """The result without its content."""

    def run(self, state: Any, *args: Any) -> Any:
        """Do it, and give the result's content. Called in simulated-time order."""


@dataclass(slots=True)
class On:
    """Run `step` at `node`, changing `state`."""

    node: int
    step: Step
    state: State
    args: tuple[Any, ...]


def told(op: On) -> str:
    """The operation for a person: `train of mini-batch 2 of client 3, at the server`."""
    values = [arg for arg in op.args if isinstance(arg, Value)]
    batch = next((f" of mini-batch {value.step}" for value in values if value.step >= 0), "")
    if op.node >= 0:
        return f"{op.step.name}{batch} of client {op.node}"
    maker = next((f" of client {value.maker}" for value in values if value.maker is not None and value.maker >= 0), "")
    return f"{op.step.name}{batch}{maker}, at the {NODE_NAMES[op.node]}"


@dataclass(slots=True)
class Send:
    """Move `payload` from `src` to `dst`. A node that sends to itself makes a local copy, in no time."""

    payload: Value
    src: int
    dst: int


@dataclass(slots=True)
class Par:
    """Run `flows` side by side and wait for all of them; `names`, if any, are what they are known by."""

    flows: list[Flow]
    names: list[Any] | None = None


@dataclass(slots=True)
class Start:
    """Begin `flow`, and go on at once."""

    flow: Flow


@dataclass(slots=True)
class Present:
    """Who of the `clients` is there; waits until somebody is."""

    clients: Sequence[int]


@dataclass(slots=True)
class Read:
    """Wait for the number in `value`."""

    value: Value


@dataclass(slots=True)
class Expect:
    """`jobs[c]` training jobs of client c will change `state`; the mapping's order is the cyclic order."""

    state: State
    jobs: Mapping[int, int]


class Event:
    """Something that one flow does and that others wait for. It occurs once and stays so.

    Attributes:
        about: what it is, for whoever is told that it never came.
        occurred: kept by whoever drives the flows.
    """

    __slots__ = ("about", "occurred")

    def __init__(self, about: str) -> None:
        self.about = about
        self.occurred = False

    def __repr__(self) -> str:
        return f"Event({self.about})"


@dataclass(slots=True)
class Occur:
    """From now on `event` has occurred."""

    event: Event


@dataclass(slots=True)
class Wait:
    """Wait until all `events` have occurred, but not longer than `at_most_s`."""

    events: Sequence[Event]
    at_most_s: float


class Lost(Exception):
    """Thrown into a flow: `client` has gone away, and what it was asked for will never be."""

    def __init__(self, client: int) -> None:
        super().__init__(client)
        self.client = client

    def __str__(self) -> str:
        return f"client {self.client} has gone away"


Op = On | Send | Par | Start | Present | Read | Expect | Occur | Wait
Flow = Generator[Op, Any, Any]


def on(node: int, step: Step, state: State, *args: Any) -> On:
    """Run `step` at `node` on `state`; the flow receives its `Value`."""
    return On(node, step, state, args)


def send(payload: Value, src: int, dst: int) -> Send:
    """Move `payload`; the flow receives what arrives (a copy if it is a state)."""
    return Send(payload, src, dst)


def par(flows: Iterable[Flow] | Mapping[Any, Flow]) -> Par:
    """Run `flows` side by side; the flow receives the list of their return values, in the order given.

    Of a mapping it receives a mapping, in the same order: without those flows that ended because a client was lost.
    """
    if isinstance(flows, Mapping):
        return Par(list(flows.values()), list(flows))
    return Par(list(flows))


def start(flow: Flow) -> Start:
    """Let `flow` run beside. What it has not done by the end of the round it goes on with in the next one."""
    return Start(flow)


def present(clients: Sequence[int]) -> Present:
    """Receive the list of those of `clients` who are there now, in the order given, as soon as it is not empty."""
    return Present(clients)


def read(value: Value) -> Read:
    """Receive the number in `value`."""
    return Read(value)


def expect(state: State, jobs: Mapping[int, int]) -> Expect:
    """Tell the order policy which clients will bring how many training jobs to `state` this round."""
    return Expect(state, jobs)


def occur(event: Event) -> Occur:
    """Let the flows go on that wait for `event`."""
    return Occur(event)


def wait(events: Sequence[Event], at_most_s: float = inf) -> Wait:
    """Go on once all `events` have occurred: at once if they have, or if there are none.

    After `at_most_s` seconds the flow goes on in any case. It receives whether all of them have occurred.
    """
    return Wait(events, at_most_s)
