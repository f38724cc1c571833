"""Timing-only rounds without an event loop, where nothing but the queue at the server depends on time."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

from sfl_sim.ops import Expect, Flow
from sfl_sim.records import OP_DTYPE
from sfl_sim.sim.clock import Simulator, rare_garbage_collection
from sfl_sim.sim.orders import InTurn, Roster
from sfl_sim.sim.recursion import Stage
from sfl_sim.sim.station import first_come
from sfl_sim.sim.trace import Entry, Fork, Trace, Unforeseen, trace


class Foresight:
    """Runs regular flows (`Method.regular`) of a timing-only run by recursion instead of by its `simulator`.

    It gives the same timeline to the last bit. What it cannot do it leaves to the simulator: links whose rates vary,
    branches within branches, clients that take part in several branches, orders that are neither arrival nor a sequence
    of turns.
    """

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self._known: Hashable = None
        self._plan: Plan | None = None

    def run(self, flow: Callable[[], Flow], round: int, like: Hashable) -> None:
        """Run `flow()` as round number `round`; flows that are `like` each other issue the same operations."""
        if like != self._known:
            self._known, self._plan = like, self._foresee(flow)
        if self._plan is None:
            self.simulator.run(flow(), round)
        else:
            self.simulator.skip(*self._plan.run(self.simulator, round))

    def _foresee(self, flow: Callable[[], Flow]) -> Plan | None:
        policy = self.simulator.order(Roster([0], {0: 1}))
        if not (policy is first_come or isinstance(policy, InTurn)):
            return None
        try:
            with rare_garbage_collection():
                return Plan(stages(trace(flow(), self.simulator.prices)))
        except Unforeseen:
            return None


class Plan:
    """A round whose stages follow upon one another, and its rows, complete but for the times."""

    def __init__(self, stages: list[Stage]) -> None:
        self.stages = stages
        entries = [entry[:6] for stage in stages for entry in stage.entries]
        self.rows = np.zeros(len(entries), dtype=OP_DTYPE)
        for column, values in zip(Entry._fields, zip(*entries, strict=True), strict=False):
            self.rows[column] = values

    def run(self, simulator: Simulator, round: int) -> tuple[NDArray[np.void], float]:
        """The rows of one round that begins now, in order of their end, and when it ends."""
        now_s, found = simulator.now_s, []
        for stage in self.stages:
            lanes, turns, left = simulator.workers, None, dict[int, int]()
            if stage.announced:
                policy, left = simulator.policy(stage.announced.jobs, round)
                lanes, turns = 1, policy.turns if isinstance(policy, InTurn) else None
            found.append(stage.times(now_s, lanes, turns, left))
            now_s = float(found[-1][-1].max(initial=now_s))
        times_s = np.concatenate(found, axis=1)
        order = np.argsort(times_s[-1])
        rows = self.rows[order]
        rows["round"] = round
        rows["requested_s"], rows["started_s"], rows["ended_s"] = times_s[:, order]
        return rows, now_s


def stages(found: Trace) -> list[Stage]:
    """The parts of a round that follow upon one another; Unforeseen if it does not come apart so."""
    plan: list[Stage] = []
    announced: Expect | None = None
    for item in found:
        if isinstance(item, Expect):
            announced = item
            continue
        branches = item.branches if isinstance(item, Fork) else [[item]]
        chains = [[entry for entry in branch if isinstance(entry, Entry)] for branch in branches]
        if sum(map(len, chains)) < sum(map(len, branches)):
            raise Unforeseen("a branch forks or announces jobs")
        plan.append(Stage(chains, announced))
        announced = None
    return plan
