"""The clock: runs flows by events or, where that gives the same timeline to the last bit, by arrays.

Arrays need a plan: operations that are recorded once and timed again and again. A round has one if its clients meet
only at the server: then it is a sequence of stages.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from itertools import islice
from math import inf
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sfl_sim.ops import SERVER, Expect, Flow, Occur, Wait
from sfl_sim.sim.array_clock import BranchEntries, Stage, TimedStage, Turns
from sfl_sim.sim.event_clock import EventClock, rare_garbage_collection
from sfl_sim.sim.orders import InTurn
from sfl_sim.sim.prices import Prices
from sfl_sim.sim.station import first_come
from sfl_sim.sim.trace import FlowTrace, Fork, NotPlannable, PlannedOperation, duration_of, trace
from sfl_sim.store.columns import OP_DTYPE

log = logging.getLogger(__name__)


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
        workers = events.queues[SERVER].workers
        self._timed = [TimedStage(stage, stage.durations(seconds), workers) for stage in plan.stages]

    def turns(self, round: int) -> tuple[Turns, ...]:
        """Return, for each stage, the sequence of its clients' jobs in a round: the only difference between rounds.

        Raises NotPlannable if the turns depend on times; or are not those of the jobs: an event loop would get stuck,
        and can say where.
        """
        return tuple(self._turns(stage, round) for stage in self.plan.stages)

    def _turns(self, stage: Stage, round: int) -> Turns:
        if stage.announced is None:
            return None
        policy, left = self.events.policy(stage.announced, round)
        if policy is first_come:
            return None
        if type(policy) is not InTurn:  # not a subclass, which may do anything
            raise NotPlannable("the order decides at each job who is next")
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
        """Return the rows (`OP_DTYPE`) of a round that begins at `start_s`, in order of their end, and the round's end.

        Raises NotPlannable if jobs are never served, or something never ends.
        """
        self.events.resources.prices = self.prices
        now_s, times_of_stages = start_s, [np.empty((3, 0))]
        for stage, served in zip(self._timed, turns, strict=True):
            with rare_garbage_collection():
                times_s = np.stack(stage.times(now_s, served))
            times_of_stages.append(times_s)
            now_s = float(times_s[-1].max(initial=now_s))
        if now_s == inf:
            raise NotPlannable("something never ends")
        times_s = np.concatenate(times_of_stages, axis=1)
        order = np.argsort(times_s[-1])
        rows = self.plan.rows.take(order)  # 14 times as fast as by an index
        rows["round"] = round
        rows["requested_s"], rows["started_s"], rows["ended_s"] = times_s[:, order]
        return rows, now_s


def stages(traced: FlowTrace) -> list[Stage]:
    """Split a round into consecutive stages. Raises NotPlannable if that is not possible."""
    plan: list[Stage] = []
    announced: Expect | None = None
    for item in traced:
        if isinstance(item, Expect):
            if announced:
                raise NotPlannable("jobs are announced for two states")
            announced = item
            continue
        branches = item.branches if isinstance(item, Fork) else [[item]]
        if not {type(step) for branch in branches for step in branch} <= {PlannedOperation, Wait, Occur}:
            raise NotPlannable("a branch forks or announces jobs")
        plan.append(Stage(cast("list[BranchEntries]", branches), announced))
        announced = None
    if announced:
        raise NotPlannable("jobs are announced that do not come")
    return plan


Plans = dict[Hashable, Plan | str]
"""Plans of flows, or the reason why a flow needs the event clock, by the key that equal flows share."""


class Clock:
    """Runs flows in one simulated system.

    The event clock runs any flow. Flows that are known to issue the same operations every time, and to ask for nothing
    that training produces, are written down once and timed by arrays. Left to the event clock are clients that are
    lost, deadlines, links that clients share, messages between clients, branches within branches, and clients or states
    that belong to several branches.

    Args:
        events: the event clock, which keeps time and records of both.
        plans: keeps all flows that were written down, for every clock that shares it; None: this clock keeps the latest
            alone.

    Attributes:
        refused: the reason why only the event clock is used from now on; None as long as plans work.
    """

    def __init__(self, events: EventClock, plans: Plans | None = None) -> None:
        self.events = events
        self.refused: str | None = None
        self._plans: Plans = {} if plans is None else plans
        self._keeps_all = plans is not None
        self._timed: dict[Hashable, TimedPlan] = {}

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start of the run."""
        return self.events.now_s

    @cached_property
    def is_steady(self) -> bool:
        """True if no duration depends on when its operation begins."""
        return self.events.prices.steady

    def run(self, flow: Callable[[], Flow], round: int, *, like: Hashable = None, in_round: bool = True) -> Any:
        """Run `flow()` as round number `round` until it returns, and give what it returns: None if timed by arrays.

        Args:
            like: equal for flows that issue the same operations; None: by events.
            in_round: see `EventClock.run`, also for errors.
        """
        if like is not None and self.refused is None:
            try:
                plan = self.plan(flow, like, in_round)
                self.events.skip(*plan.run(self.now_s, round, plan.turns(round)))
                return None
            except NotPlannable as reason:
                self.refuse(str(reason))
                self._timed.clear()
        return self.events.run(flow(), round, in_round=in_round)

    def refuse(self, reason: str) -> None:
        """Use the event clock alone from now on, and say why if nothing has been said yet."""
        if self.refused is None:
            self.refused = reason
            log.debug("the event loop is used: %s", reason)

    def plan(self, flow: Callable[[], Flow], like: Hashable, in_round: bool = True) -> TimedPlan:
        """Give the plan of `flow()`, and of every flow that is `like` it, with the durations of this system.

        Raises NotPlannable if the flow needs the event clock.
        """
        if like not in self._timed:
            if self.events.prices.fleet.topology is not None:
                raise NotPlannable("clients share links")
            if self.events.prices.fleet.tiers:
                raise NotPlannable("there are several servers")
            if self.events.dropouts.are_ever_possible:
                raise NotPlannable("clients may be lost")
            if not self._keeps_all:
                self._plans.clear()
                self._timed.clear()
            with rare_garbage_collection():
                self._timed[like] = TimedPlan(self._written(flow, like), self.events, in_round)
        return self._timed[like]

    def _written(self, flow: Callable[[], Flow], like: Hashable) -> Plan:
        if like not in self._plans:
            try:
                self._plans[like] = Plan(flow(), self.events.prices)
            except NotPlannable as reason:
                self._plans[like] = str(reason)
        plan = self._plans[like]
        if isinstance(plan, str):
            raise NotPlannable(plan)
        return plan
