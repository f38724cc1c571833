"""The clock: runs flows by events or, where that gives the same timeline to the last bit, by arrays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

from sfl_sim.ops import Flow
from sfl_sim.sim.event_clock import EventClock, rare_garbage_collection
from sfl_sim.sim.plan import Plan, TimedPlan
from sfl_sim.sim.trace import NotPlannable

log = logging.getLogger(__name__)

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
        found = self._plans[like]
        if isinstance(found, str):
            raise NotPlannable(found)
        return found
