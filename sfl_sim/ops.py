"""Vocabulary of methods: the operations that they may yield. It has no clock, no resource and no tensor.

A method is a generator (a *flow*) that yields operations and receives their results:

    on(node, step, state, *args)   run `step` at `node`, changing `state`; gives the step's result. States that one step
                                   changes together are joined to one state, serialised by its first member
    send(payload, src, dst)        move a payload; a state is copied when the operation is issued
    par(flows)                     run flows in parallel and wait for all; gives the list of their return values. Named
                                   flows, in a mapping, give a mapping without those whose client was lost
    start(flow)                    run a flow in the background; not even the end of the round waits for it
    present(nodes)                 wait until at least one of the clients, or servers, is there; gives those that are
    read(value)                    wait for the number in `value`: the only way to branch on a result of training; None
                                   in a timing-only run, which knows no number
    expect(state, jobs)            announce how many training jobs each client will bring to a shared `state`,
                                   so that the order policy knows whose turn can come
    occur(event), wait(events)     order parallel flows: `wait` continues once all events have occurred, or after
                                   `at_most_s`, and gives True if they have

A client may go away while it takes part. The operation that it runs, or waits for at the server, then raises `Lost` in
the flow that yielded it. A flow that does not catch it ends. In a mapping it is then left out; in a list, or by itself,
`Lost` is raised in the flow that waits for it, and so on. If no flow catches it, the run ends.

Example: one client's mini-batch in split learning. Any driver can run it, even a test by hand:

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
    Send(payload='a', src=3, dst=SERVER)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, Protocol


class ServerNode(NamedTuple):
    """Node where jobs of clients wait for a worker. Clients themselves are the nodes 0, 1, 2, ...

    Attributes:
        role: what it does.
        number: tells servers of one role apart, from 1; 0 where there is one.
        beside: name of the server at whose place it stands; empty: it has a place of its own.
    """

    role: str
    number: int = 0
    beside: str = ""

    @property
    def name(self) -> str:
        """Name in records."""
        return f"{self.role}{self.number}" if self.number else self.role

    @property
    def place(self) -> str:
        """Name of the place where it stands: messages between nodes at one place need no link."""
        return self.beside or self.name

    def __repr__(self) -> str:
        return str(self).upper()

    def __str__(self) -> str:
        return self.name


def role_of(name: str) -> str:
    """Return the role of the server of this name: that of its tier, which has no digits.

    >>> role_of("edge12")
    'edge'
    """
    return name.rstrip("0123456789")


Node = int | ServerNode

SERVER = ServerNode("server")
"""Main server, which holds part-2."""
AGGREGATOR = ServerNode("aggregator", beside="server")
"""Fed server, which averages part-1 and sees neither activations nor labels."""


def aggregator_of(server: ServerNode) -> ServerNode:
    """Give the fed server at the place of a server."""
    return ServerNode(AGGREGATOR.role, beside=server.place)


class Value:
    """Value that flows hold and pass on: a size that the clock prices, and a content that only executors touch.

    Attributes:
        kind: kind (`smashed`, `gradients`, `model`, ...), as shown in records.
        size_bytes: size as a message.
        samples: number of training samples that it stands for; 0 if there are none.
        step: mini-batch index within the round; -1 if none.
        length: positions of each of these samples, where mini-batches of sequences are padded to their longest; 0 where
            all samples have the network's own shape.
        maker: node that produced it, or the client whose job at a server did; None before an operation does.
        content: content, filled by the executor; None in timing-only runs.

    In a simulation the receiver holds the very value that was sent. Where nodes are processes, its sender packs it, and
    the bytes of what is `packed` are `size_bytes`.
    """

    __slots__ = ("__weakref__", "content", "kind", "length", "maker", "samples", "size_bytes", "step")

    made_of: Sequence[Value] = ()
    """Other values whose contents `load` needs."""

    def __init__(self, kind: str, size_bytes: int = 0, samples: int = 0, step: int = -1, content: Any = None) -> None:
        self.kind = kind
        self.size_bytes = size_bytes
        self.samples = samples
        self.step = step
        self.length = 0
        self.maker: Node | None = None
        self.content = content

    def snapshot(self) -> Value:
        """Return a copy that later changes do not affect: itself, since only states change."""
        return self

    def load(self) -> Any:
        """Return the content, for steps. A value that makes its content only then (a mini-batch) overrides this."""
        return self.content

    def packed(self) -> Any:
        """Return what crosses a link: collections of tensors and bytes, by default what steps load."""
        return self.load()

    def envelope(self) -> Value:
        """Return the value as its receiver knows it before it comes; its `unpacked` takes what is `packed`."""
        envelope = Value(self.kind, self.size_bytes, self.samples, self.step)
        envelope.maker, envelope.length = self.maker, self.length
        return envelope

    def unpacked(self, packed: Any) -> Value:
        """Take what has crossed the link, and return what has arrived: by default this value, with that as content."""
        self.content = packed
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind}, {self.size_bytes} B, {self.samples} samples, step {self.step})"


class State(Value):
    """Value that operations may change. Operations on states with the same `guard` run in the order of service."""

    __slots__ = ()

    def envelope(self) -> State:
        """Return a copy without content."""
        raise NotImplementedError(f"{self!r} is not sent")

    @property
    def guard(self) -> State:
        """State whose changes are serialised with those of this one: itself, or the first member of a joined state."""
        return self

    def at(self, length: int) -> State:
        """Return what prices are asked of for samples of so many positions: by default this state."""
        return self


KINDS = ("conv", "depthwise", "dense", "attention")
"""Kinds of layers whose MACs may take differently long. `depthwise`: convolutions with a group per input channel.
`attention`: all matrix products of torch's self-attention block, projections included; of language models those of the
scores and values alone. `dense`: any other matrix product.
`conv`: any other convolution."""

FINER = ("pointwise", "grouped", "moved", "pointwise_backward")
"""Amounts that a cost profile may price apart. `pointwise` and `grouped`: MACs of 1x1 convolutions, and of convolutions
in groups of several channels, both part of `conv`. `moved`: elements of activations that operations read and write.
`pointwise_backward`: the part of `pointwise` that backward passes run."""


class Work(NamedTuple):
    """Work of a step.

    Attributes:
        macs: number of multiply-accumulate operations.
        by_kind: MACs by kind of layer, in the order of `KINDS`; they add up to `macs`.
        n_ops: calls of convolutions, linear maps and attention blocks, each for a whole mini-batch.
        finer: amounts in the order of `FINER`.
        weights: elements that these calls read for weights, each for a whole mini-batch.
        updated: elements of weights whose gradients are computed; `priced`, all that the optimiser's step reads and
            writes for them.
        padded: MACs that convolutions would need beyond their own if the channels of each group were multiples of 16.
    """

    macs: float
    by_kind: tuple[float, float, float, float]
    n_ops: float
    finer: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    weights: float = 0.0
    updated: float = 0.0
    padded: float = 0.0

    @classmethod
    def of(cls, macs: float) -> Work:
        """Make work without layers, such as an average of models: it counts as dense, without calls."""
        return cls(macs, (0, 0, macs, 0), 0)

    @classmethod
    def total(cls, works: Iterable[Work]) -> Work:
        """Sum the work of several steps."""
        macs, by_kind, n_ops, finer = 0.0, (0.0, 0.0, 0.0, 0.0), 0.0, (0.0, 0.0, 0.0, 0.0)
        weights = updated = padded = 0.0
        for work in works:
            macs, n_ops, weights = macs + work.macs, n_ops + work.n_ops, weights + work.weights
            by_kind, finer = _sum(by_kind, work.by_kind), _sum(finer, work.finer)
            updated, padded = updated + work.updated, padded + work.padded
        return cls(macs, by_kind, n_ops, finer, weights, updated, padded)

    def of_batch(self, n: int) -> Work:
        """Return the work of `n` such steps as one batch, which calls each layer once."""
        macs, by_kind, finer = n * self.macs, _times(n, self.by_kind), _times(n, self.finer)
        return self._replace(macs=macs, by_kind=by_kind, finer=finer, padded=n * self.padded)

    def called(self, times: float) -> Work:
        """Return the same work with `times` as many calls, each of which reads its weights anew."""
        return self._replace(n_ops=times * self.n_ops, weights=times * self.weights)


Four = tuple[float, float, float, float]


def _sum(these: Four, those: Four) -> Four:
    return these[0] + those[0], these[1] + those[1], these[2] + those[2], these[3] + those[3]


def _times(n: float, these: Four) -> Four:
    return n * these[0], n * these[1], n * these[2], n * these[3]


class Step(Protocol):
    """Step of a node that may change a state, and has a price before it runs.

    A step that only changes its own state needs no more than a `name` and `run`: by default it computes nothing and its
    result is empty.

    Attributes:
        name: `kind` of its records.
        aggregates: True for averages of models, which count as model exchange.
        passes: what the state's part computes for the samples of the first argument, in forward passes: 1 forward,
            2 backward, 3 both; 0: nothing.
    """

    name: str
    aggregates: bool = False
    passes: int = 0

    def work(self, state: Any, *args: Any) -> Work:
        """Return the work of the step: by default that of its `passes`."""
        work: Work = state.part.work(args[0].samples, self.passes) if self.passes else Work.of(0)
        return work

    def out(self, state: Any, *args: Any) -> Value:
        """Return the result without its content: by default `done`, of the mini-batch to which `args` belong."""
        for arg in args:
            if isinstance(arg, Value) and arg.step >= 0:
                return Value("done", step=arg.step)
        return Value("done")

    def shape(self, state: Any, *args: Any) -> Hashable:
        """Return all that `work` and `out` depend on, so that equal operations are priced once; None asks every time.

        The result must then be a plain `Value` of the mini-batch of the first argument. A class that overrides
        `passes`, `work` or `out` must define `shape`, too; otherwise it is not asked.
        """
        return None

    @abstractmethod
    def run(self, state: Any, *args: Any) -> Any:
        """Run the step and return the result's content. Executors call it in the order of simulated time."""


def priced(step: Step, state: Any, *args: Any) -> Work:
    """Return the work of a step, with all that its `optimiser`, if it has one, reads and writes."""
    work, optimiser = step.work(state, *args), getattr(step, "optimiser", None)
    return work._replace(updated=work.updated * optimiser.n_moved) if optimiser and work.updated else work


@dataclass(slots=True, init=False)
class On:
    """Operation that runs `step` at `node`, changing `state`; the flow receives its result."""

    node: Node
    step: Step
    state: State
    args: tuple[Any, ...]

    def __init__(self, node: Node, step: Step, state: State, *args: Any) -> None:
        self.node = node
        self.step = step
        self.state = state
        self.args = args


def describe(op: On) -> str:
    """Describe the operation in words: `train of mini-batch 2 of client 3, at the server`."""
    values = [arg for arg in op.args if isinstance(arg, Value)]
    batch = next((f" of mini-batch {value.step}" for value in values if value.step >= 0), "")
    if not isinstance(op.node, ServerNode):
        return f"{op.step.name}{batch} of client {op.node}"
    makers = (value.maker for value in values if not isinstance(value.maker, ServerNode | None))
    whose = next((f" of client {maker}" for maker in makers), "")
    return f"{op.step.name}{batch}{whose}, at the {op.node}"


@dataclass(slots=True)
class Send:
    """Operation that moves `payload` from `src` to `dst`; the flow receives what arrives, a copy if it is a state.

    A node that sends to itself makes a copy, in no time.
    """

    payload: Value
    src: Node
    dst: Node


@dataclass(slots=True)
class Par:
    """Operation that runs `flows` in parallel and waits for all of them; `names` are their keys in a mapping."""

    flows: list[Flow]
    names: list[Any] | None = None


@dataclass(slots=True)
class Start:
    """Operation that starts `flow` in the background; it may go on in the next round."""

    flow: Flow


@dataclass(slots=True)
class Present:
    """Operation that waits until at least one of the `nodes`, clients or servers of tiers, is present.

    The flow receives the list of all that are, in the order given.
    """

    nodes: Sequence[Node]


@dataclass(slots=True)
class Read:
    """Operation that waits for the number in `value`; None in a timing-only run, which knows no number."""

    value: Value


@dataclass(slots=True)
class Expect:
    """Announcement of `jobs[c]` training jobs of client c on `state` in this round, for the order policy of a server.

    The mapping's order is the cyclic order. A client brings `turn` jobs in a row, between which the server is held for
    it, and these count as one for the policy.
    """

    state: State
    jobs: Mapping[int, int]
    turn: int = 1
    node: ServerNode = SERVER


class Event:
    """Event that one flow lets occur, once, and for which others wait.

    Attributes:
        about: description, for the error if it never occurs.
        occurred: True once it has occurred; set by the driver of the flows.
    """

    __slots__ = ("about", "occurred")

    def __init__(self, about: str) -> None:
        self.about = about
        self.occurred = False

    def __repr__(self) -> str:
        return f"Event({self.about})"


@dataclass(slots=True)
class Occur:
    """Operation that lets `event` occur; flows that wait for it go on."""

    event: Event


@dataclass(slots=True)
class Wait:
    """Operation that waits until all `events` have occurred: no time if they have, or if there are none.

    After `at_most_s` seconds the flow goes on in any case. It receives True if all of them have occurred.
    """

    events: Sequence[Event]
    at_most_s: float = inf


class Lost(Exception):
    """Exception in a flow whose operation will never end, since `client` has gone away."""

    def __init__(self, client: int) -> None:
        super().__init__(client)
        self.client = client

    def __str__(self) -> str:
        return f"client {self.client} has gone away"


Op = On | Send | Par | Start | Present | Read | Expect | Occur | Wait
Flow = Generator[Op, Any, Any]


def par(flows: Iterable[Flow] | Mapping[Any, Flow]) -> Par:
    """Run `flows` in parallel; the flow receives the list of their return values, in the order given.

    For a mapping it receives a mapping in the same order, without flows that ended because a client was lost.
    """
    if isinstance(flows, Mapping):
        return Par(list(flows.values()), list(flows))
    return Par(list(flows))


on, send, start, present, read, expect, occur, wait = On, Send, Start, Present, Read, Expect, Occur, Wait
"""The words of flows: each makes its operation."""
