"""Plan of a round: its operations, recorded once and timed again and again without an event loop.

A round has a plan if its clients meet only at the server: then it is a sequence of stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from math import inf

import numpy as np
from numpy.typing import NDArray

from sfl_sim.ops import Expect, Flow, Occur, Wait
from sfl_sim.sim.array_clock import Asked, Stage, TimedStage, Turns
from sfl_sim.sim.durations import duration_of
from sfl_sim.sim.event_clock import EventClock, rare_garbage_collection
from sfl_sim.sim.orders import InTurn
from sfl_sim.sim.prices import Prices
from sfl_sim.sim.station import first_come
from sfl_sim.sim.trace import FlowTrace, Fork, NotPlannable, PlannedOperation, trace
from sfl_sim.store.columns import OP_DTYPE


class Plan:
    """Operations of a flow, the same in every system: its stages, and its rows without round and times.

    Args:
        flow: is driven to its end.
        prices: decide which operations take time; their rates do not matter.

    Raises NotPlannable if the flow needs an event loop.
    """

    def __init__(self, flow: Flow, prices: Prices) -> None:
        self.stages = stages(trace(flow, prices))
        self.rows = np.concatenate([np.empty(0, OP_DTYPE), *(stage.rows for stage in self.stages)])


class TimedPlan:
    """A plan with the durations of an event clock's system.

    Args:
        in_round: False if every client counts as present.

    Raises NotPlannable if a duration there is no number of seconds.
    """

    def __init__(self, plan: Plan, events: EventClock, in_round: bool = True) -> None:
        self.plan = plan
        self.events = events
        self.prices = events.prices if in_round else events.prices.of_all_present
        seconds = partial(duration_of, prices=self.prices, resources=events.resources)
        self._timed = [TimedStage(stage, stage.durations(seconds), events.workers) for stage in plan.stages]

    def turns(self, round: int) -> tuple[Turns, ...]:
        """Give the sequence in which each stage's clients are served in a round: the only difference between rounds.

        Raises NotPlannable if the turns are not those of the jobs: an event loop would get stuck, and can say where.
        """
        return tuple(self._turns(stage, round) for stage in self.plan.stages)

    def _turns(self, stage: Stage, round: int) -> Turns:
        if stage.announced is None:
            return None
        policy, left = self.events.policy(stage.announced, round)
        if policy is first_come:
            return None
        if type(policy) is not InTurn:  # not a subclass, which may do anything
            return Asked(policy, left)
        served = []
        for client in islice(policy.turns, sum(left.values())):
            if not left.get(client):
                raise NotPlannable(f"a turn of client {client}, which has no job")
            left[client] -= 1
            served.append(client)
        if any(left.values()):
            raise NotPlannable("there are fewer turns than jobs")
        return tuple(served)

    def run(self, start_s: float, round: int, turns: Sequence[Turns]) -> tuple[NDArray[np.void], float]:
        """Give the rows of a round that begins at `start_s` (`OP_DTYPE`), in order of their end, and the round's end.

        Raises NotPlannable if jobs are never served, or something never ends.
        """
        self.events.resources.prices = self.prices
        now_s, found = start_s, [np.empty((3, 0))]
        for stage, served in zip(self._timed, turns, strict=True):
            with rare_garbage_collection():
                times_s = np.stack(stage.times(now_s, served))
            found.append(times_s)
            now_s = float(times_s[-1].max(initial=now_s))
        if now_s == inf:
            raise NotPlannable("something never ends")
        times_s = np.concatenate(found, axis=1)
        order = np.argsort(times_s[-1])
        rows = self.plan.rows.take(order)  # 14 times as fast as by an index
        rows["round"] = round
        rows["requested_s"], rows["started_s"], rows["ended_s"] = times_s[:, order]
        return rows, now_s


def stages(found: FlowTrace) -> list[Stage]:
    """Split a round into consecutive stages. Raises NotPlannable if that is not possible."""
    plan: list[Stage] = []
    announced: Expect | None = None
    for item in found:
        if isinstance(item, Expect):
            if announced:
                raise NotPlannable("jobs are announced for two states")
            announced = item
            continue
        branches = item.branches if isinstance(item, Fork) else [[item]]
        chains = [[one for one in branch if isinstance(one, PlannedOperation | Wait | Occur)] for branch in branches]
        if sum(map(len, chains)) < sum(map(len, branches)):
            raise NotPlannable("a branch forks or announces jobs")
        plan.append(Stage(chains, announced))
        announced = None
    if announced:
        raise NotPlannable("jobs are announced that do not come")
    return plan
