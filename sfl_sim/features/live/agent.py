"""A node of a live run: a process that runs steps, one after another, and exchanges messages with other nodes."""

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
import zmq
import zmq.asyncio
from torch import Tensor
from zmq.utils.monitor import parse_monitor_message

from sfl_sim.build.code_version import code_version
from sfl_sim.errors import ScenarioError, in_short
from sfl_sim.features.live.links import RunKey, address_of, connection_of
from sfl_sim.features.live.pickles import ForeignCode, Name, read, written
from sfl_sim.models.part import Part
from sfl_sim.models.replica import Joined
from sfl_sim.ops import SERVER, Node, State
from sfl_sim.training.executors import Eager

MOST_AT_ONCE = 64
"""Jobs that a server has at the same time: one computes, the others wait as long as they seem to take."""
ANSWERS_S = 10.0
"""How long a driver may take to answer."""
LAST_WORDS_S = 0.5
"""How long after its connection has gone a node still reads what the driver has said before."""
IMAGES = 0
"""The name of a node's own samples."""
OVERTAKES_S = 20.0
"""How long a message waits for what the driver has sent before it."""

now_s = time.monotonic


class EndedEarly(RuntimeError):
    """The run has ended before its last round, or without this node."""


@dataclass(frozen=True)
class Pace:
    """How slow a node shall seem: emulation of a device and of its links on a machine that is faster.

    Attributes:
        factor: seconds of a step over the processor's seconds for it.
        links: by the receiver's name, bits per second and latency in seconds.
    """

    factor: float
    links: dict[bytes, tuple[float, float]]


class MeasuredOperation(NamedTuple):
    """What a node reports of an operation that has ended, in seconds of its own clock.

    Attributes:
        began_s, ended_s: its start and its end.
        cpu_s: the processor's seconds for a step; 0 for a message.
        wall_s: seconds of a step without those for which it was stretched.
        moved_bytes: bytes of a message on its link, with all that frames it.
        sender: whose clock `began_s` is of, if that is not the node that reports.
    """

    began_s: float
    ended_s: float
    cpu_s: float = 0.0
    wall_s: float = 0.0
    moved_bytes: int = 0
    sender: Node | None = None


def leaves(state: State) -> Iterator[State]:
    """Generate the states of which `state` consists and which have names of their own, itself first."""
    if not isinstance(state, Joined):
        yield state
    for member in getattr(state, "members", ()):
        if member is not state:
            yield from leaves(member)


def own_of(recipe: Callable[[], Any]) -> dict[int, Any]:
    """Make a node's own samples."""
    return {IMAGES: recipe()}


class Agent:
    """A node, connected to its driver.

    Args:
        node: the client, or the server.
        own: makes what it has without a message, of what the driver says about that: its training data, by name.
        allow_code: whether it runs code of packages that are not the simulator's own.
    """

    def __init__(self, node: Node, own: Callable[[Any], dict[int, Any]], allow_code: bool) -> None:
        self.node = node
        self.make_own = own
        self.own: dict[int, Any] = {}
        self.allow_code = allow_code
        self.things: dict[int, Any] = {}
        self._keys: dict[int, int] = {}  # of parts and frozen parameters, by id: what this node may have to name
        self._lock = threading.RLock()
        self._pace: Pace | None = None
        self._data: Any = None
        self._executor = Eager()
        self._queues: dict[bytes, asyncio.Queue[Any]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Event()
        self._problem: Exception | None = None

    async def serve(self, driver: str, key: RunKey, server: str = "tcp://127.0.0.1") -> None:
        """Take orders of the driver at an address until it says that all is over, or goes away.

        Args:
            server: address without a port at which the server listens to clients.

        Raises ScenarioError if no driver with this key answers, or it refuses this node, and EndedEarly.
        """
        self._loop = asyncio.get_running_loop()
        self._key, context = key, zmq.asyncio.Context()
        self._context = context
        self._control = key.client(context.socket(zmq.DEALER))
        self._control.identity = connection_of(self.node)
        watch = self._control.get_monitor_socket()
        self._control.connect(driver)
        guard, port = None, 0
        if self.node == SERVER:
            guard = key.guard(context)
            self._data = key.server(context.socket(zmq.ROUTER))
            port = self._data.bind_to_random_port(server)
            self._spawn(self._receive())
        self.report("hello", version("sfl-sim"), code_version(), port)
        self._spawn(self._orders())
        self._spawn(self._watched(watch, driver.removeprefix("tcp://")))
        try:
            await self._ended.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            if guard:
                guard.stop()
            context.destroy(linger=500)
        if self._problem:
            raise self._problem

    def _spawn(self, task: Any) -> None:
        running = self._loop.create_task(task)
        self._tasks.add(running)
        running.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.report("failed", in_short(error), "".join(traceback.format_exception(error)))

    def report(self, what: str, *about: Any) -> None:
        """Tell the driver; from any thread."""
        message = written((what, *about), self._name)
        self._loop.call_soon_threadsafe(lambda: self._control.send(message))

    async def _watched(self, watch: Any, driver: str) -> None:
        """End when the driver has gone away, or cannot be talked to."""
        known, until_s = "nobody listens there", now_s() + ANSWERS_S
        while True:
            seen = await watch.poll(100)
            event = parse_monitor_message(await watch.recv_multipart())["event"] if seen else None
            if event == zmq.EVENT_CONNECTED and known:
                known = "whoever listens there has another key, or is no sfl-sim live"
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                known = ""
            elif event == zmq.EVENT_DISCONNECTED and not known:
                await asyncio.sleep(LAST_WORDS_S)
                self._end(EndedEarly("the connection to sfl-sim live has broken off before the end of the run"))
            elif known and now_s() > until_s:
                self._end(ScenarioError(known, key="--server", found=driver))

    def _end(self, problem: Exception | None) -> None:
        """End with the first problem that is told."""
        if not self._ended.is_set():
            self._problem = problem
            self._ended.set()

    async def _orders(self) -> None:
        while True:
            order = await self._control.recv()
            try:
                what, *about = self.read(order)
                await getattr(self, f"do_{what}")(*about)
            except Exception as error:  # of which the driver ends the run
                self._fail(error)

    def read(self, data: bytes) -> Any:
        """Give the object of a message; names are of what is here."""
        try:
            return read(data, self._find, self.allow_code)
        except (ImportError, AttributeError) as error:
            raise ForeignCode(f"node {self.node} lacks code of the run: {error}") from error

    def _find(self, name: Name) -> Any:
        kind, key = name
        return self.own[key] if kind == "own" else self.things[key]

    def _name(self, obj: Any) -> Name | None:
        if isinstance(obj, Part | Tensor) and (key := self._keys.get(id(obj))) is not None:
            return "thing", key
        return None

    def _put(self, keys: Sequence[int], things: Sequence[Any]) -> None:
        for key, thing in zip(keys, things, strict=True):
            self.things[key] = thing
            if isinstance(thing, Part | Tensor):
                self._keys[id(thing)] = key

    # ------------------------------------------------------------------------------------------------------ orders

    async def do_begin(self, settings: dict[str, Any]) -> None:
        """Get ready: make what is this node's own, and connect to the server."""
        torch.set_num_threads(settings["threads"])
        self.own = await asyncio.to_thread(self.make_own, settings["own"])
        n = MOST_AT_ONCE if self.node == SERVER else 1
        begin = torch.set_num_threads, (settings["threads"],)
        self._workers = {role: ThreadPoolExecutor(n, role, *begin) for role in ("device", "aggregator")}
        if self.node != SERVER and self._data is None:
            self._data = self._key.client(self._context.socket(zmq.DEALER))
            self._data.identity = address_of(self.node)
            self._data.connect(settings["server"])
            self._spawn(self._receive())
            await self._data.send_multipart([address_of(SERVER), b""])  # from now on it knows the way back
        samples = self.own[IMAGES].x
        self.report("ready", blake2b(written(samples), digest_size=16).hexdigest())

    async def do_pace(self, pace: Pace | None) -> None:
        """Seem as slow as this from now on."""
        self._pace = pace

    async def do_put(self, keys: Sequence[int], data: bytes) -> None:
        """Keep a thing that the driver has brought under its key."""
        self._put(keys, [self.read(data)])

    async def do_drop(self, keys: Sequence[int]) -> None:
        """Forget things that no flow holds any more."""
        for key in keys:
            self._keys.pop(id(self.things.pop(key, None)), None)

    async def do_run(self, job: int, role: str, data: bytes, key: int) -> None:
        """Run a step as soon as a worker is free."""
        self._workers[role].submit(self._run, job, data, key)

    def _run(self, job: int, data: bytes, key: int) -> None:
        try:
            with self._lock:
                op, result = self.read(data)  # late: earlier steps make what it takes
                began_s, cpu_s = now_s(), time.thread_time()
                result.content = self._executor.run(op)
                cpu_s = time.thread_time() - cpu_s
                self.things[key] = result
            wall_s = now_s() - began_s
            if self._pace:
                time.sleep(max(0.0, began_s + self._pace.factor * cpu_s - now_s()))
            self.report("done", job, MeasuredOperation(began_s, now_s(), cpu_s, wall_s))
        except Exception as error:
            self.report("failed", in_short(error), traceback.format_exc())

    async def do_copy(self, job: int, data: bytes, keys: Sequence[int]) -> None:
        """Copy a state for this node itself, or for another one in this process."""

        def copied() -> None:
            with self._lock:
                copy = self.read(data).snapshot()
            self._put(keys, list(leaves(copy)) if isinstance(copy, State) else [copy])

        began_s = now_s()
        await asyncio.to_thread(copied)
        self.report("done", job, MeasuredOperation(began_s, now_s()))

    async def do_send(self, job: int, receiver: bytes, data: bytes, keys: Sequence[int], envelope: bytes) -> None:
        """Pack a value as it is now; then it waits for the link."""
        value = self.read(data)

        def packed_state() -> bytes:
            with self._lock:
                return written(value.packed(), self._name)

        if isinstance(value, State):
            packed = await asyncio.to_thread(packed_state)
        else:
            packed = written(value.packed(), self._name)
            self._put(keys, [value])  # a gradient at it may come back
        link = receiver if self.node == SERVER else address_of(SERVER)
        if link not in self._queues:
            self._queues[link] = asyncio.Queue()
            self._spawn(self._link(self._queues[link]))
        self._queues[link].put_nowait((job, receiver, keys, envelope, packed))

    async def do_fetch(self, job: int, data: bytes, what: str) -> None:
        """Give the driver the content of a state, or what a value loads."""

        def found() -> bytes:
            with self._lock:
                obj = self.read(data)
                return written(obj.content if what == "content" else float(obj.load()), self._name)

        self.report("fetched", job, await asyncio.to_thread(found))

    async def do_ping(self, sent_s: float) -> None:
        """Tell the time."""
        self.report("pong", sent_s, now_s())

    async def do_end(self, why_early: str) -> None:
        """End with the run."""
        self._end(EndedEarly(f"the run has ended early: {why_early}") if why_early else None)

    async def do_refuse(self, problem: str, allowed: str | None) -> None:
        """End, since the run has no use for a node with this number."""
        self._end(ScenarioError(problem, key="--client", found=self.node, allowed=allowed))

    # ---------------------------------------------------------------------------------------------------- messages

    async def _link(self, queue: asyncio.Queue[Any]) -> None:
        """Send one message after another, each in the time that the link shall take for it."""
        while True:
            job, receiver, keys, envelope, packed = await queue.get()
            began_s, due_s, size = now_s(), 0.0, len(envelope) + len(packed)
            if self._pace and (link := self._pace.links.get(receiver)):
                rate_bps, latency_s = link
                due_s = began_s + 8 * size / rate_bps + latency_s
                await asyncio.sleep(8 * size / rate_bps)
            head = written((job, self.node, began_s, due_s, keys))
            if not await self._pass_on(receiver, head, envelope, packed):
                self.report("unreachable", receiver)

    async def _pass_on(self, receiver: bytes, *frames: bytes) -> bool:
        """Send frames to their receiver, or to the server, which passes them on; False if nobody is there."""
        route = [receiver] if self.node == SERVER else []
        try:
            await self._data.send_multipart([*route, receiver, *frames])
        except zmq.ZMQError:
            return False
        return True

    async def _receive(self) -> None:
        """Take messages of other nodes; the server passes on those between clients."""
        while True:
            parts = await self._data.recv_multipart()
            receiver, *frames = parts[1:] if self.node == SERVER else parts
            if receiver != address_of(self.node):
                await self._pass_on(receiver, *frames)
            elif len(frames) == 3:
                self._spawn(self._arrived(*frames))

    async def _arrived(self, head: bytes, envelope: bytes, packed: bytes) -> None:
        job, sender, began_s, due_s, keys = self.read(head)
        await asyncio.sleep(max(0.0, due_s - now_s()))
        ended_s = now_s()
        while True:
            try:
                value = self.read(envelope)
                content = self.read(packed)
                break
            except KeyError:  # it has overtaken what the driver has sent before it
                if now_s() - ended_s > OVERTAKES_S:
                    raise
                await asyncio.sleep(0.002)
        arrived = value.unpacked(content)
        self._put(keys, list(leaves(arrived)) if isinstance(arrived, State) else [arrived])
        moved = len(envelope) + len(packed) + len(head)
        self.report("done", job, MeasuredOperation(began_s, ended_s, moved_bytes=moved, sender=sender))
