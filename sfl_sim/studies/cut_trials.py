"""Timing of one variant of a scenario in all its seeds, at any cuts of its clients."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from sfl_sim.build.clock import server_workers
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import changed
from sfl_sim.scenario.sections import Scenario
from sfl_sim.scenario.source_locations import SourceLocations
from sfl_sim.store.places import NOBODY
from sfl_sim.studies.cut_assignment import Bound, Floats, OwnTime, RoundKind, needs
from sfl_sim.studies.walk import Walked, Walker

Cuts = tuple[int, ...]
"""Cut of every client."""


class CutTimes(NamedTuple):
    """Times at some cuts of the clients.

    Attributes:
        round_s: mean duration of a round, median over seeds.
        done_s: (clients,) seconds until each was done, per round, mean over seeds.
        needs: needs of the clients, by seed.
        n_ops: number of operations that were timed.
    """

    round_s: float
    done_s: Floats
    needs: list[Mapping[RoundKind, OwnTime]]
    n_ops: int


class CutTrial:
    """Variant in all its seeds, which can be timed at any cuts.

    Args:
        scenarios: one for each seed.
        step: called after every walk at other cuts than the scenario's own.

    Attributes:
        own_round_s: mean duration of a round with the scenario's own cuts, median over seeds.
        has_tiers: True if there are servers between clients and the main server.
        is_uneven: True if a device's time depends on its start, because clients go away or devices get hot.

    Raises ScenarioError if the scenario cannot be used.
    """

    def __init__(self, scenarios: Sequence[Scenario], step: Callable[[], None]) -> None:
        self._walkers = [Walker(scenario) for scenario in scenarios]
        self._step = step
        self._timed: dict[Cuts, CutTimes] = {}
        self.experiment = self._walkers[0].experiment
        self.network = self.experiment.method.task.network
        self.n_clients = len(self.experiment.shares)
        fleets = [walker.experiment.fleet for walker in self._walkers]
        rates = [np.stack([each.macs_per_s, each.uplinks.mean_bps, each.downlinks.mean_bps]) for each in fleets]
        self.is_one_fleet = all(np.array_equal(each, rates[0]) for each in rates)
        fleet = self.experiment.fleet
        is_throttled = fleet.conditions is not None and fleet.conditions.throttling is not None
        self.is_uneven = fleet.presence is not None or is_throttled
        self.has_tiers = bool(fleet.tiers)
        self.own_round_s = self._time().round_s

    def walk(self, cuts: Cuts) -> CutTimes:
        """Time the rounds with these cuts; results are kept.

        Raises ScenarioError if the method does not allow them.
        """
        if cuts not in self._timed:
            for walker in self._walkers:
                walker.recut(cuts)
            self._timed[cuts] = self._time()
            self._step()
        return self._timed[cuts]

    def round_s_with(self, key: str, value: Any, cuts: Cuts) -> float:
        """Time the rounds with these cuts and a dotted key set anew: their mean duration, median over seeds.

        Raises ScenarioError if the key cannot be set.
        """
        scenarios = [changed(one.experiment.scenario, {key: value}, SourceLocations()) for one in self._walkers]
        return CutTrial(scenarios, self._step).walk(cuts).round_s

    def _time(self) -> CutTimes:
        every = [walker.walk(walker.experiment.scenario) for walker in self._walkers]
        n_rounds = self.experiment.scenario.train.rounds
        return CutTimes(
            median(walked.simulated_s / n_rounds for walked in every),
            np.mean([_done_s(walked) / n_rounds for walked in every], axis=0),
            [needs(walked) for walked in every],
            sum(len(each.ops) for walked in every for each in walked.rounds),
        )

    def refusal(self, cuts: Sequence[int]) -> ScenarioError | None:
        """Return the reason why the method does not allow clients with different cuts of these; None if it does."""
        mixed = [cuts[c % len(cuts)] for c in range(self.n_clients)]
        try:
            self._walkers[0].recut(mixed)
        except ScenarioError as error:
            return error
        return None

    def bounds(self, cuts: Sequence[int]) -> list[Bound]:
        """Make the bounds by seed; each of the cuts must have been walked as the cut of all clients."""
        by_cut = [self._timed[(cut,) * self.n_clients].needs for cut in cuts]
        return [
            Bound(
                of_seed,
                walker.experiment.scenario.train.rounds,
                server_workers(walker.experiment.scenario),
                self.n_clients,
            )
            for walker, of_seed in zip(self._walkers, zip(*by_cut, strict=True), strict=True)
        ]

    def agree(self, bounds: Sequence[Bound], cuts: Sequence[int]) -> bool:
        """Return True if all walks agree with `bounds` on the needs of clients at these cuts."""
        column = {cut: number for number, cut in enumerate(cuts)}
        return all(
            bound.agrees(of_seed, [column[cut] for cut in assigned])
            for assigned, timed in self._timed.items()
            if set(assigned) <= set(cuts)
            for bound, of_seed in zip(bounds, timed.needs, strict=True)
        )


def _done_s(walked: Walked) -> Floats:
    """Sum, over all rounds, the seconds until each client was done, (clients,)."""
    total_s = np.zeros(len(walked.fleet.devices))
    for each in walked.rounds:
        ops, done_s = each.ops[each.ops["client"] != NOBODY], np.zeros(len(total_s))
        np.maximum.at(done_s, ops["client"], ops["ended_s"] - each.started_s)
        total_s += each.n_rounds * done_s
    return total_s
