"""The nodes of a live run as its driver sees them: what lives where, and which jobs are under way."""

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

import zmq
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from zmq.utils.monitor import parse_monitor_message

from sfl_sim.build.code_version import code_version
from sfl_sim.data.batches import Epoch, Images
from sfl_sim.errors import ScenarioError
from sfl_sim.features.live.agent import IMAGES, MeasuredOperation, Pace, leaves, now_s
from sfl_sim.features.live.links import RunKey, address_of, process_of
from sfl_sim.features.live.pickles import Name, read, written
from sfl_sim.models.part import Part
from sfl_sim.models.replica import Joined
from sfl_sim.models.weights import Weights
from sfl_sim.ops import AGGREGATOR, SERVER, Node, On, Send, State, Value

PINGS = 20
"""Messages there and back by which the clock of a node is compared with this one."""
Then = Callable[[MeasuredOperation], None]


class NodeFailed(RuntimeError):
    """A node has raised an error; its traceback is a note."""


class NeverSent(RuntimeError):
    """A flow uses a value at a node where it has never been sent."""


@dataclass
class HeldObject:
    """Where a thing is: its key, and the nodes that have it."""

    key: int
    at: set[Node]


@dataclass
class _RunningOperation:
    """An operation under way: what follows its report, or the loss of one of its nodes, and what it is about."""

    then: Callable[..., None]
    lose: Callable[[int], None]
    nodes: tuple[Node, ...]
    holds: Any


@dataclass
class Offset:
    """How far a node's clock is ahead of the driver's: at most `bound_s` from `s`."""

    s: float = 0.0
    bound_s: float = float("inf")


@dataclass
class Machines:
    """The processes of the nodes.

    Args:
        key: that all of them have.
        n_clients: how many clients there are.

    Attributes:
        tell: told, in a sentence, of clients that have gone away, and of agents that are refused.
        problem: why the run ends early, for its nodes; empty if it does not.
        lost: clients whose processes have gone away.
        on_lost: called with each of them.
        offsets: of the clocks.
        differ: nodes with other code or packages than the driver's, whose results may differ in the last bits.
    """

    key: RunKey
    n_clients: int
    tell: Callable[[str], None] = lambda _: None
    problem: str = ""
    lost: set[int] = field(default_factory=set)
    on_lost: Callable[[int], None] = lambda _: None
    offsets: dict[Node, Offset] = field(default_factory=dict)
    differ: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._context = zmq.Context()
        self._guard = self.key.guard(self._context)
        self._socket = self.key.server(self._context.socket(zmq.ROUTER))
        self._watch = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._watch, zmq.POLLIN)
        self._connections: dict[int, Node] = {}
        self._names: dict[Node, bytes] = {}
        self._ports: dict[Node, int] = {}
        self._ready: dict[Node, str] = {}
        self._has_begun = False
        self._held: Any = WeakIdKeyDictionary()  # the `HeldObject` of a thing
        self._things: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._initial: Any = WeakIdKeyDictionary()  # the content of a state that no step has changed
        self._n_keys = 0
        self._gone: list[int] = []
        self._jobs: dict[int, _RunningOperation] = {}
        self._n_jobs = 0
        self._orphans: dict[int, Any] = {}
        self._n_pongs = 0

    # ------------------------------------------------------------------------------------------------ beginning, end

    def listen(self, address: str) -> str:
        """Let nodes connect to `tcp://host:port`, or without a port, or `ipc://file`; gives it with its port."""
        try:
            if address.count(":") == 2 or address.startswith("ipc:"):
                self._socket.bind(address)
                return address
            return f"{address}:{self._socket.bind_to_random_port(address)}"
        except zmq.ZMQError as error:
            self.close()
            raise ScenarioError(f"cannot be listened at: {error}", key="--listen", found=address) from error

    @property
    def nodes(self) -> list[Node]:
        """All nodes that have a process."""
        return [SERVER, *range(self.n_clients)]

    @property
    def there(self) -> list[Node]:
        """The nodes whose processes have come and have not gone away."""
        return [node for node in self.nodes if node in self._ports]

    @property
    def jobs(self) -> bool:
        """Whether anything is under way."""
        return bool(self._jobs)

    def gather(self, at_most_s: float, alive: Callable[[], str | None] = lambda: None) -> None:
        """Wait until all nodes are there.

        Args:
            alive: says why no more will come; None as long as they may.

        Raises ScenarioError if some are missing then, or are of another version.
        """
        until_s = now_s() + at_most_s
        while missing := [node for node in self.nodes if node not in self._ports]:
            if (why := alive()) or now_s() > until_s:
                names = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
                raise ScenarioError(f"{len(missing)} of {len(self.nodes)} nodes have not come: {names}"
                                    f"{f'; {why}' if why else ''}", key="nodes")  # fmt: skip
            self.step(0.1)

    def begin(self, own: Any, threads: int = 1, host: str = "127.0.0.1") -> None:
        """Get all nodes ready: their data, which they make of `own`, and their way to the server."""
        self._has_begun = True
        self._ready.clear()
        settings = {"own": own, "threads": threads, "server": f"tcp://{host}:{self._ports[SERVER]}"}
        for node in self.nodes:
            self.order(node, "begin", settings)
        while len(self._ready) < len(self.nodes):
            self.step(1.0)
            if self.lost:
                raise ScenarioError(f"node {min(self.lost)} has gone away while it got ready", key="nodes")
        for node, samples in self._ready.items():
            if samples != self._ready[SERVER]:
                raise ScenarioError(f"node {node} has other training samples than the server", key="data")
        self.compare_clocks()

    def compare_clocks(self) -> None:
        """Measure how far the clocks of the nodes are ahead of this one, by the quickest of some messages."""
        self.offsets = {node: Offset() for node in self.nodes}
        self._n_pongs = 0
        for n in range(1, PINGS + 1):
            for node in self.there:
                self.order(node, "ping", now_s())
            until_s = now_s() + 1
            while self._n_pongs < n * len(self.there) and now_s() < until_s:
                self.step(0.1)

    def pace(self, paces: Mapping[Node, Pace | None]) -> None:
        """Let nodes seem as slow as this."""
        for node, pace in paces.items():
            self.order(node, "pace", pace)

    def close(self) -> None:
        """Let all nodes end."""
        for node in self.there:
            with suppress(NodeFailed):
                self.order(node, "end", self.problem)
        time.sleep(0.05)
        self._guard.stop()
        self._socket.disable_monitor()
        self._context.destroy(linger=500)

    # ------------------------------------------------------------------------------------------------------- messages

    def order(self, node: Node, what: str, *about: Any) -> None:
        """Send an order to a node; nothing, if it has gone away."""
        if what == "run" and self._gone:
            gone = self._gone[:]
            self._gone.clear()
            for each in self.there:
                self.order(each, "drop", gone)
        if node in self._names:
            try:
                self._socket.send_multipart([self._names[node], written((what, *about))])
            except zmq.ZMQError:
                self._lose(node)

    def step(self, at_most_s: float) -> bool:
        """Take one message of a node, or notice that one has gone; False if nothing has come."""
        ready = dict(self._poller.poll(max(0, round(1000 * at_most_s))))
        if self._socket in ready:
            name, message = self._socket.recv_multipart(copy=False)
            node = _node(bytes(name).split()[0])
            what, *about = read(bytes(message), self._find)
            if what == "hello":
                if refused := self._refusal(node, about[0]):
                    with suppress(zmq.ZMQError):  # it is gone
                        self._socket.send_multipart([bytes(name), written(("refuse", *refused))])
                    self.tell(f"an agent for client {node} is refused: {refused[0]}")
                    return True
                self._names[node], self._connections[message.get(zmq.SRCFD)] = bytes(name), node
            if self._names.get(node) == bytes(name):
                getattr(self, f"_on_{what}")(node, *about)
        elif self._watch in ready:
            gone = self._connections.pop(parse_monitor_message(self._watch.recv_multipart())["value"], None)
            if gone is not None:
                self._lose(gone)
        return bool(ready)

    def _refusal(self, node: Node, release: str) -> tuple[str, str | None] | None:
        """Say why a new agent cannot be this node, and what could; None if it can."""
        if node not in self.nodes:
            return "no such client", f"0 to {self.n_clients - 1}"
        if node in self._ports:
            return "another agent has this number", None
        if release != (mine := version("sfl-sim")):
            return f"it has sfl-sim {release}, and the run {mine}", None
        return ("the run has begun without it", None) if self._has_begun else None

    def _on_hello(self, node: Node, _: str, code: str, port: int) -> None:
        if code != code_version():
            self.differ.append(node)
        self._ports[node] = port
        self.lost -= {node}  # an agent may be started again as long as others are waited for

    def _on_ready(self, node: Node, samples: str) -> None:
        self._ready[node] = samples

    def _on_pong(self, node: Node, sent_s: float, there_s: float) -> None:
        bound_s = (now_s() - sent_s) / 2
        self._n_pongs += 1
        if bound_s < self.offsets[node].bound_s:
            self.offsets[node] = Offset(there_s - (sent_s + bound_s), bound_s)

    def _on_done(self, node: Node, job: int, measured: MeasuredOperation) -> None:
        self._orphans.pop(job, None)
        if running := self._jobs.pop(job, None):
            sender = node if measured.sender is None else measured.sender
            running.then(measured._replace(
                began_s=measured.began_s - self.offsets[sender].s, ended_s=measured.ended_s - self.offsets[node].s
            ))  # fmt: skip

    def _on_fetched(self, node: Node, job: int, data: bytes) -> None:
        if running := self._jobs.pop(job, None):
            running.then(read(data, self._find))

    def _on_unreachable(self, node: Node, receiver: bytes) -> None:
        self._lose(_node(receiver))

    def _on_failed(self, node: Node, problem: str, trace: str) -> None:
        error = NodeFailed(f"node {node}: {problem}")
        error.add_note(trace)
        raise error

    def _lose(self, node: Node) -> None:
        """Notice that a node has gone away, with all that it was doing.

        Raises NodeFailed if it was the server, or the last client of a run that has begun, to which none comes back.
        """
        if node == SERVER:
            raise NodeFailed("the server's process has gone away")
        if node in self.lost:
            return
        assert isinstance(node, int)
        self.lost.add(node)
        del self._ports[node], self._names[node]
        self.tell(f"client {node} has gone away")
        if self._has_begun and len(self.lost) == self.n_clients:
            raise NodeFailed("all clients have gone away")
        gone = {number: job for number, job in self._jobs.items() if node in job.nodes}
        for number, job in gone.items():
            del self._jobs[number]
            self._orphans[number] = job.holds  # which others may still be about to use
        self.on_lost(node)
        for job in gone.values():
            job.lose(node)

    # --------------------------------------------------------------------------------------------------- operations

    def run(self, op: On, result: Value, then: Then, lose: Callable[[int], None]) -> None:
        """Let a node run a step, whose result is then there."""
        node = process_of(op.node)
        data = self._written((op, result), node)
        for state in leaves(op.state):
            self._initial.pop(state, None)
            self._held[state].at = {node}
        key = self._hold(result, node)
        role = "aggregator" if op.node == AGGREGATOR else "device"
        self.order(node, "run", self._job(then, lose, (node,), op), role, data, key)

    def send(self, op: Send, arrives: Value, then: Then, lose: Callable[[int], None]) -> None:
        """Let a node send a value to another one, or copy it for itself; `arrives` is what its receiver has then."""
        src, dst, payload = process_of(op.src), process_of(op.dst), op.payload
        data = self._written(payload, src)
        if isinstance(payload, State) and isinstance(arrives, State):
            keys = [self._hold(leaf, dst) for leaf in leaves(arrives)]
        else:
            keys = [self._hold(payload, src)]
        if src == dst:
            self.order(src, "copy", self._job(then, lose, (src,), op), data, keys)
            return

        def arrived(measured: MeasuredOperation) -> None:
            if arrives is payload:
                self._hold(payload, dst)
            then(measured)

        envelope = self._written(payload.envelope(), dst, itself=True, is_new=True)
        job = self._job(arrived, lose, (src, dst), (op, arrives))
        self.order(src, "send", job, address_of(dst), data, keys, envelope)

    def fetch(self, value: Value, what: str, then: Callable[[Any], None], lose: Callable[[int], None]) -> None:
        """Ask a node for the `content` of a state, or for the `number` in a value."""
        held = self._held.get(value)
        node = next((node for node in held.at if node not in self.lost), SERVER) if held else SERVER
        self.order(node, "fetch", self._job(then, lose, (node,), value), self._written(value, node), what)

    @contextmanager
    def at_the_driver(self) -> Iterator[None]:
        """Have the contents of all states here for a while, to look at."""
        states = [thing for thing in list(self._things.values()) if isinstance(thing, State) and thing.content is None]
        states = [state for state in states if self._held[state].at - self.lost]
        missing = set(range(len(states)))

        def come(number: int, content: Any) -> None:
            states[number].content = content
            missing.discard(number)

        for number, state in enumerate(states):
            self.fetch(state, "content", partial(come, number), lambda _, n=number: missing.discard(n))  # type: ignore[misc]
        while missing:
            self.step(1.0)
        try:
            yield
        finally:
            for state in states:
                state.content = None

    def _job(self, then: Callable[..., None], lose: Callable[[int], None], nodes: tuple[Node, ...], holds: Any) -> int:
        self._n_jobs += 1
        self._jobs[self._n_jobs] = _RunningOperation(then, lose, nodes, holds)
        return self._n_jobs

    # ------------------------------------------------------------------------------------------------- what is where

    def _hold(self, thing: Any, *at: Node) -> int:
        """Note that a thing is at these nodes, too; gives its key."""
        held = self._held.get(thing)
        if held is None:
            self._n_keys += 1
            held = self._held[thing] = HeldObject(self._n_keys, set())
            self._things[held.key] = thing
            weakref.finalize(thing, self._gone.append, held.key)
        held.at.update(at)
        return int(held.key)

    def _find(self, name: Name) -> Any:
        return self._things[name[1]]

    def _written(self, obj: Any, node: Node, itself: bool = False, is_new: bool = False) -> bytes:
        """Give an object as bytes for a node, with the keys of what is there in the place of that.

        What every node may have is brought before, and so is a state that no step has changed. The object `itself` is
        written with all that it holds, also with states that are new, if it `is_new` to the node. Raises NeverSent if
        it holds a value that is elsewhere.
        """

        def name(each: Any) -> Name | None:
            if itself and each is obj:
                return None
            if isinstance(each, Images):
                return "own", IMAGES
            if isinstance(each, Part) or (isinstance(each, Tensor) and each in self._held):
                return "thing", self._bring(each, *self.nodes)
            if isinstance(each, Epoch):
                return "thing", self._bring(each, node)
            if isinstance(each, State) and each not in self._held and not (is_new or isinstance(each, Joined)):
                self._adopt(each)
            if isinstance(each, Value) and each in self._held:
                return "thing", self._there(each, node)
            return None

        return written(obj, name)

    def _bring(self, thing: Any, *nodes: Node) -> int:
        """Bring what does not change to the nodes that do not have it yet; gives its key."""
        held = self._held.get(thing)
        missing = [node for node in nodes if held is None or node not in held.at]
        if missing:
            if isinstance(thing, Part):
                thing.empty_skeleton()
            key = self._hold(thing, *missing)
            for node in missing:
                self.order(node, "put", [key], self._written(thing, node, itself=True))
        return int(self._held[thing].key)

    def _adopt(self, state: State) -> None:
        """Note a state that no step has changed yet; from now on the driver's is empty."""
        if isinstance(state.content, Weights):
            for tensor in state.content.frozen:
                self._bring(tensor, *self.nodes)
        self._hold(state)
        self._initial[state] = state.content
        state.content = None

    def _there(self, value: Value, node: Node) -> int:
        """Give the key of a value that is at a node, or that every node can have."""
        held = self._held[value]
        if node not in held.at:
            if value not in self._initial:
                at = ", ".join(map(str, held.at))
                raise NeverSent(f"{value} is at {at}, and is used at {node}, to which it has never been sent")
            value.content = self._initial[value]
            data = self._written(value, node, itself=True)
            value.content = None
            self.order(node, "put", [held.key], data)
            held.at.add(node)
        return int(held.key)


def _node(name: bytes) -> Node:
    return SERVER if name == address_of(SERVER) else int(name)
