"""Timing-only rounds without an event loop, where nothing but the queue at the server depends on time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

import numpy as np
from numpy.typing import NDArray

from sfl_sim.ops import Expect, Flow
from sfl_sim.sim.clock import Simulator, rare_garbage_collection
from sfl_sim.sim.orders import InTurn
from sfl_sim.sim.recursion import Stage
from sfl_sim.sim.station import Policy, first_come
from sfl_sim.sim.trace import Entry, Fork, Trace, Unforeseen, trace


class Foresight:
    """Runs regular flows (`Method.regular`) of a timing-only run by recursion instead of by its `simulator`.

    It gives the same timeline to the last bit. What it cannot do it leaves to the simulator: links whose rates vary,
    branches within branches, clients that take part in several branches, orders that are neither arrival nor a sequence
    of turns.
    """

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.refused: str | None = None
        """Why the event loop is needed after all, once that has turned out."""
        self._known: Hashable = None
        self._plan: Plan | None = None

    def run(self, flow: Callable[[], Flow], round: int, like: Hashable) -> None:
        """Run `flow()` as round number `round`; flows that are `like` each other issue the same operations."""
        if self.refused is None:
            try:
                self.simulator.skip(*self._foresee(flow, like).run(self.simulator, round))
                return
            except Unforeseen as reason:
                self.refused, self._plan = str(reason), None
        self.simulator.run(flow(), round)

    def _foresee(self, flow: Callable[[], Flow], like: Hashable) -> Plan:
        if self._plan is None or like != self._known:
            with rare_garbage_collection():
                self._known, self._plan = like, Plan(stages(trace(flow(), self.simulator.prices)))
        return self._plan


class Plan:
    """A round whose stages follow upon one another, and its rows, complete but for the times."""

    def __init__(self, stages: list[Stage]) -> None:
        if not stages:
            raise Unforeseen("nothing happens")
        self.stages = stages
        self.rows = np.concatenate([stage.rows for stage in stages])

    def run(self, simulator: Simulator, round: int) -> tuple[NDArray[np.void], float]:
        """The rows of one round that begins now, in order of their end, and when it ends."""
        now_s, found = simulator.now_s, []
        for stage in self.stages:
            lanes, turns, left = simulator.workers, None, dict[int, int]()
            if stage.announced:
                policy, left = simulator.policy(stage.announced.jobs, round)
                lanes, turns = 1, _turns(policy)
            found.append(stage.times(now_s, lanes, turns, left))
            now_s = float(found[-1][-1].max(initial=now_s))
        times_s = np.concatenate(found, axis=1)
        order = np.argsort(times_s[-1])
        rows = self.rows[order]
        rows["round"] = round
        rows["requested_s"], rows["started_s"], rows["ended_s"] = times_s[:, order]
        return rows, now_s


def _turns(policy: Policy) -> Iterator[int] | None:
    """The sequence in which clients are served; None for arrival order."""
    if policy is first_come:
        return None
    if type(policy) is InTurn:  # not a subclass, which may do anything
        return policy.turns
    raise Unforeseen("the order is neither arrival nor a sequence of turns")


def stages(found: Trace) -> list[Stage]:
    """The parts of a round that follow upon one another; Unforeseen if it does not come apart so."""
    plan: list[Stage] = []
    announced: Expect | None = None
    for item in found:
        if isinstance(item, Expect):
            if announced:
                raise Unforeseen("jobs are announced for two states")
            announced = item
            continue
        branches = item.branches if isinstance(item, Fork) else [[item]]
        chains = [[entry for entry in branch if isinstance(entry, Entry)] for branch in branches]
        if sum(map(len, chains)) < sum(map(len, branches)):
            raise Unforeseen("a branch forks or announces jobs")
        plan.append(Stage(chains, announced))
        announced = None
    if announced:
        raise Unforeseen("jobs are announced that do not come")
    return plan
