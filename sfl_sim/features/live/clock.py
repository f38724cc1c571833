"""The clock of a live run: the wall's, and operations that nodes report."""

import time
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import simpy
from simpy.core import EmptySchedule

from sfl_sim.features.live.agent import MeasuredOperation, leaves
from sfl_sim.features.live.machines import Machines
from sfl_sim.ops import Lost, Node, On, Read, Send, ServerNode, State, Value, Work
from sfl_sim.sim.branch import WAITS, Branch
from sfl_sim.sim.nodes import client_of, maker_of
from sfl_sim.sim.operations import OperationRow, Operations
from sfl_sim.sim.station import Job
from sfl_sim.store.places import DEVICE
from sfl_sim.system.cost import amounts
from sfl_sim.system.presence import Presence

FOR_EVER_S = 2.0**40
NOTHING = Work.of(0)


class Wall(simpy.Environment):
    """An event loop in the wall's time, whose events are also the reports of nodes.

    While an event is handled, `now` is the instant of that event, or the end of the operation that was reported.
    Between two rounds the clock stands still.

    Args:
        machines: the nodes.
        slowdown: seconds of the wall that are one second of the run.
        started_s: what it shows in the beginning.
    """

    def __init__(self, machines: Machines, slowdown: float, started_s: float) -> None:
        super().__init__(started_s)
        self.machines = machines
        self.slowdown = slowdown
        self._paused_s: float | None = time.monotonic()
        self._began_s = self._paused_s - slowdown * started_s
        self._pauses: list[tuple[float, float, float]] = []
        """When each pause began and ended, and how long the clock had stood before."""

    def at_s(self, wall_s: float) -> float:
        """Give the time of this clock at an instant of `time.monotonic`; at one of a pause, when that began."""
        stood_s = 0.0
        if at := bisect_left(self._pauses, (wall_s,)):
            from_s, until_s, before_s = self._pauses[at - 1]
            stood_s = before_s + min(until_s, wall_s) - from_s
        if self._paused_s is not None:
            stood_s += max(0.0, wall_s - self._paused_s)
        return (wall_s - stood_s - self._began_s) / self.slowdown

    def go(self) -> None:
        """Go on from where the clock stands."""
        if self._paused_s is not None:
            from_s, until_s, before_s = self._pauses[-1] if self._pauses else (0.0, 0.0, 0.0)
            self._pauses.append((self._paused_s, time.monotonic(), before_s + until_s - from_s))
            self._paused_s = None
        self._now = max(self._now, self.at_s(time.monotonic()))

    def stand(self) -> None:
        """Stand still until `go`."""
        self._paused_s = self._paused_s or time.monotonic()

    def reported(self, ended_s: float) -> None:
        """Let it be the end of an operation: later than all that has happened."""
        self._now = max(self._now, ended_s)

    def step(self) -> None:
        """Handle the next event whose time has come, or the next report."""
        while True:
            wall_s = self.at_s(time.monotonic())
            if self._queue and self._queue[0][0] <= wall_s:
                instant_s = self._now
                super().step()
                self._now = max(self._now, instant_s)
                return
            if not (self._queue or self.machines.jobs):
                raise EmptySchedule
            wait_s = (self._queue[0][0] - wall_s) * self.slowdown if self._queue else 1.0
            if self.machines.step(min(wait_s, 1.0)):
                return


class Empty:
    """The executor of a driver: it computes nothing, and copies are empty.

    Attributes:
        wall: the clock of its run.
    """

    name = "live"
    computes = True
    wall: Wall

    def clock(self, machines: Machines, slowdown: float, now_s: float) -> Wall:
        """Make the clock, which stands still when a round has been finished."""
        self.wall = Wall(machines, slowdown, now_s)
        return self.wall

    def run(self, op: On) -> None:
        """Compute nothing."""

    def snapshot(self, payload: Value) -> Value:
        """Give an empty copy if the payload can change, itself if not."""
        copy = payload.snapshot()
        for leaf in leaves(copy) if isinstance(copy, State) else ():
            leaf.content = None
        return copy

    def read(self, value: Value) -> None:
        """Give None: `LiveOperations` asks the node."""

    def finish(self) -> None:
        """Finish a round: what follows, such as an evaluation, takes no time."""
        self.wall.stand()


class LiveOperations(Operations):
    """Lets nodes carry operations out, and records what they report.

    Attributes:
        steps: a row for each operation.
    """

    env: Wall
    steps: list[dict[str, Any]]

    def begin_round(self, round: int, in_round: bool = True) -> None:
        """Count operations to this round from now on, and let the clock go."""
        self.env.go()
        super().begin_round(round, in_round)
        self.env.machines.on_lost = self.lose_client

    def lose_client(self, client: int) -> None:
        """Note that a client's process has gone away: it is absent from now on."""
        presence = self.prices.fleet.presence
        assert isinstance(presence, list)
        self.env.reported(self.env.at_s(time.monotonic()))
        presence[client] = Presence([(0.0, max(self.env.now, 1.0))], FOR_EVER_S)
        self._leave(client)

    def on(self, branch: Branch, op: On) -> Any:
        """Let a client's device run a step, or bring it to the station of another node."""
        branch.requested_s = self.env.now
        branch.macs, branch.lasts_s, branch.result = self.prices.look_up(op)
        branch.result.maker = maker_of(op)
        branch.lost_s = inf
        if isinstance(op.node, ServerNode):
            return self._bring(branch, self._station_of[op.node], inf)
        self._check(branch, op.node)
        self._run(branch, op, partial(self._end_step, branch))
        return WAITS

    def _check(self, branch: Branch, *clients: int) -> None:
        """Lose an operation whose client is not there any more."""
        for client in clients:
            if client in self.env.machines.lost:
                raise self._gone(branch, client)

    def _gone(self, branch: Branch, client: int) -> Lost:
        branch.started_s = branch.ended_s = self.env.now
        branch.macs = 0.0
        self._leave(client)
        if isinstance(branch.op, Send):
            return self._lose(client, self.env.now, self._message(branch, 0))
        return self._lose(client, self.env.now, self._step(branch, client_of(branch.op), DEVICE))

    def _lost(self, branch: Branch, client: int) -> None:
        self.go_on(branch, error=self._gone(branch, client))

    def _run(self, branch: Branch, op: On, then: Callable[[], None]) -> None:
        def done(measured: MeasuredOperation) -> None:
            self._measured(branch, measured)
            client = client_of(op)
            batch = next((each for each in op.args if isinstance(each, Value)), branch.result)
            (_, work, _), _ = self.prices.computing(op)
            part = getattr(op.state, "part", None)
            self._note(
                measured, op.node, client, op.step.name, batch.samples, branch.lasts_s,
                part="" if part is None else f"{part.in_numel}-{part.out_numel}", **amounts(work),
            )  # fmt: skip
            then()

        self.env.machines.run(op, branch.result, done, partial(self._lost, branch))

    def _measured(self, branch: Branch, measured: MeasuredOperation) -> None:
        began_s, ended_s = self.env.at_s(measured.began_s), self.env.at_s(measured.ended_s)
        branch.started_s = max(branch.requested_s, began_s)
        branch.ended_s = max(branch.started_s, ended_s)
        self.env.reported(branch.ended_s)

    def _note(
        self,
        measured: MeasuredOperation,
        node: Node | str,
        client: int,
        kind: str,
        samples: int,
        priced_s: float,
        **more: Any,
    ) -> None:
        """Add a row of steps.parquet."""
        place = str(node) if isinstance(node, ServerNode | str) else DEVICE
        self.steps.append({
            "round": self.round, "node": place, "client": client, "kind": kind, "samples": samples,
            "priced_s": priced_s * self.env.slowdown, "cpu_s": measured.cpu_s, "wall_s": measured.wall_s,
            "lasts_s": measured.ended_s - measured.began_s, "late_s": time.monotonic() - measured.ended_s,
            "moved_bytes": measured.moved_bytes, "size_bytes": 0, "part": "", **amounts(NOTHING), **more,
        })  # fmt: skip

    def begin(self, job: Job) -> None:
        """Let the server run the step of a job whose turn has come."""
        branch = job.branch
        branch.started_s = job.started_s
        self._run(branch, branch.op, partial(self.env.schedule, job))
        for look in self.after_job:
            if branch.op.node in self.servers:
                look(branch.op)

    def ended_s(self, branch: Branch) -> float:
        """Give the instant that was reported as the end of an operation."""
        return branch.ended_s

    def lost(self, job: Job) -> None:
        """Record a job that will not be served, because its client has gone away."""
        job.branch.ended_s = job.branch.lost_s = self.env.now
        super().lost(job)

    def send(self, branch: Branch, op: Send) -> Any:
        """Let a payload move over the link between two nodes."""
        link, payload = self._links[op.src, op.dst], self.executor.snapshot(op.payload)
        branch.result, branch.requested_s = payload, self.env.now
        if link is None:
            return self._copy(branch, op, payload)
        branch.link = link
        self._check(branch, *link.ends)

        def arrived(measured: MeasuredOperation) -> None:
            self._measured(branch, measured)
            priced_s = sum(self.prices.transfer_s(link, branch.started_s, payload.size_bytes))
            self._note(measured, link.place, link.client, payload.kind, payload.samples, priced_s,
                       size_bytes=payload.size_bytes)  # fmt: skip
            self._end_message(branch)

        self.env.machines.send(op, payload, arrived, partial(self._lost, branch))
        return WAITS

    def _copy(self, branch: Branch, op: Send, payload: Value) -> Any:
        """Let a node copy a state for itself."""
        if not isinstance(payload, State):
            return payload

        def copied(measured: MeasuredOperation) -> None:
            self._measured(branch, measured)
            self.go_on(branch, payload)

        self.env.machines.send(op, payload, copied, lambda client: self.go_on(branch, error=Lost(client)))
        return WAITS

    def read(self, branch: Branch, op: Read) -> Any:
        """Ask the node that has a value for the number in it."""

        def come(number: float) -> None:
            self.records.reads.append(number)
            self.env.reported(self.env.at_s(time.monotonic()))
            self.go_on(branch, number)

        self.env.machines.fetch(op.value, "number", come, lambda client: self.go_on(branch, error=Lost(client)))
        return WAITS

    def overtake(self, client: int, branch: Branch) -> Lost | None:
        """Lose nothing: live runs have no clients that are overtaken."""
        return None

    def under_way(self, branch: Branch) -> OperationRow:
        """Make the row of the operation for which a branch waits, as if it ended now."""
        branch.started_s = branch.ended_s = self.env.now
        return super().under_way(branch)
