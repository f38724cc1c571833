"""Timing-only rounds without an event loop, where clients meet nowhere but at the server."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from sfl_sim.ops import Expect, Flow
from sfl_sim.sim.array_clock import Stage, TimedStage, Turns
from sfl_sim.sim.clock import Simulator, rare_garbage_collection
from sfl_sim.sim.orders import InTurn
from sfl_sim.sim.station import first_come
from sfl_sim.sim.trace import Entry, Fork, Trace, Unforeseen, trace


class FastPath:
    """Runs regular flows (`Method.regular`) of a timing-only run by recursion instead of by its `simulator`.

    It gives the same timeline to the last bit. What it cannot do it leaves to the simulator: clients that go away,
    deadlines, devices that jitter, links that clients share, branches within branches, clients that take part in
    several branches, orders that are neither arrival nor a sequence of turns.
    """

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.refused: str | None = None
        """Why the event loop is needed after all, once that has turned out."""
        self._known: Hashable = None
        self._plan: TimedPlan | None = None

    def run(self, flow: Callable[[], Flow], round: int, like: Hashable) -> None:
        """Run `flow()` as round number `round`; flows that are `like` each other issue the same operations."""
        if self.refused is None:
            try:
                plan = self._foresee(flow, like)
                self.simulator.skip(*plan.run(self.simulator.now_s, round, plan.turns(round)))
                return
            except Unforeseen as reason:
                self.refused, self._plan = str(reason), None
        self.simulator.run(flow(), round)

    def _foresee(self, flow: Callable[[], Flow], like: Hashable) -> TimedPlan:
        if self._plan is None or like != self._known:
            with rare_garbage_collection():
                plan = Plan(stages(trace(flow(), self.simulator.prices)))
                self._known, self._plan = like, TimedPlan(plan, self.simulator)
        return self._plan


class Plan:
    """A round whose stages follow upon one another, for any fleet, and its rows, complete but for the times.

    Raises Unforeseen if nothing happens.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        if not stages:
            raise Unforeseen("nothing happens")
        self.stages = stages
        self.rows = np.concatenate([stage.rows for stage in stages])


class TimedPlan:
    """A plan in the world of a `simulator`.

    Raises Unforeseen where durations depend on more than when they begin, or operations may be lost.
    """

    def __init__(self, plan: Plan, simulator: Simulator) -> None:
        if not simulator.prices.foreseeable:
            raise Unforeseen("durations depend on more than when they begin")
        if simulator.losses.policy != "wait":
            raise Unforeseen("operations may be lost")
        self.plan = plan
        self.simulator = simulator
        self._timed = [TimedStage(stage, stage.durations(simulator.prices)) for stage in plan.stages]

    def turns(self, round: int) -> list[Turns]:
        """In which sequence each stage's clients are served in a round: all that a plan's rounds can differ in."""
        return [self._turns(stage, round) for stage in self.plan.stages]

    def _turns(self, stage: Stage, round: int) -> Turns:
        if stage.announced is None:
            return None
        policy, left = self.simulator.policy(stage.announced.jobs, round)
        if policy is first_come:
            return None
        if type(policy) is not InTurn:  # not a subclass, which may do anything
            raise Unforeseen("the order is neither arrival nor a sequence of turns")
        served = []
        for client in islice(policy.turns, len(stage.jobs)):
            if not left.get(client):
                raise Unforeseen(f"a turn of client {client}, which has no job")
            left[client] -= 1
            served.append(client)
        return tuple(served)

    def run(self, start_s: float, round: int, turns: Sequence[Turns]) -> tuple[NDArray[np.void], float]:
        """The rows of one round that begins at `start_s`, in order of their end, and when it ends."""
        now_s, found = start_s, []
        for stage, served in zip(self._timed, turns, strict=True):
            lanes = 1 if stage.stage.announced else self.simulator.workers
            found.append(stage.times(now_s, lanes, served))
            now_s = float(found[-1][-1].max(initial=now_s))
        times_s = np.concatenate(found, axis=1)
        order = np.argsort(times_s[-1])
        rows = self.plan.rows[order]
        rows["round"] = round
        rows["requested_s"], rows["started_s"], rows["ended_s"] = times_s[:, order]
        return rows, now_s


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
