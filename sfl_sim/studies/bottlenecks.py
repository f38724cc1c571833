"""Bottlenecks: the typical round of a run timed again in systems in which one resource is faster."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from sfl_sim.build.clock import build_clock
from sfl_sim.build.setup import Setup, setup_of
from sfl_sim.engine.walk import Walk
from sfl_sim.metrics.rounds import typical_round
from sfl_sim.ops import Work
from sfl_sim.scenario.load import Study, Variant
from sfl_sim.system.cost import Processor
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.links import LazySequence, Links
from sfl_sim.training.executors import Timing
from sfl_sim.training.hardware import free

MAX_OPERATIONS = 50_000
"""Maximum of operations of a round that is timed again; a larger one would take as long as some runs."""
MAX_VARIANTS = 6
"""Number of variants, the first ones, whose round is timed again."""


@dataclass(frozen=True, slots=True)
class Doubled:
    """A processor that is twice as fast."""

    usual: Processor

    def seconds(self, work: Work) -> float:
        """Give half of the original seconds."""
        return self.usual.seconds(work) / 2


@dataclass(frozen=True, slots=True)
class Change:
    """A faster resource: a change of the fleet, or a factor on the number of the servers' workers."""

    fleet: Callable[[Fleet], Fleet] = lambda fleet: fleet
    workers: int = 1
    of_tiers: bool = False


def _doubled(links: Links) -> Links:
    return Links(2 * links.mean_bps, links.patterns, links.phases_s)


def _faster(fleet: Fleet) -> Fleet:
    slower = fleet.processors
    return replace(fleet, processors=LazySequence(len(slower), lambda client: Doubled(slower[client])))


def _in_tiers(fleet: Fleet, change: Callable[[Fleet], Fleet]) -> Fleet:
    """Change the servers of all tiers, which are the clients of their tier's fleet."""
    return replace(fleet, tiers={name: replace(one, servers=change(one.servers)) for name, one in fleet.tiers.items()})


def _no_latency(fleet: Fleet) -> Fleet:
    topology = fleet.topology and fleet.topology.without_latency
    tiers = {name: replace(one, servers=_no_latency(one.servers), reach_s=None) for name, one in fleet.tiers.items()}
    return replace(fleet, latency_s=[0.0] * len(fleet.latency_s), topology=topology, tiers=tiers)


def _faster_backbone(fleet: Fleet) -> Fleet:
    return replace(fleet, uplinks=_doubled(fleet.uplinks), downlinks=_doubled(fleet.downlinks))


CHANGES = {
    "uplink x2": Change(lambda fleet: replace(fleet, uplinks=_doubled(fleet.uplinks))),
    "downlink x2": Change(lambda fleet: replace(fleet, downlinks=_doubled(fleet.downlinks))),
    "devices x2": Change(_faster),
    "server x2": Change(lambda fleet: _in_tiers(replace(fleet, server=Doubled(fleet.server)), _faster)),
    "workers x2": Change(workers=2),
    "no latency": Change(_no_latency),
    "backbone x2": Change(lambda fleet: _in_tiers(fleet, _faster_backbone), of_tiers=True),
}
"""Changes by name. Methods that adapt their demands to the clients' speeds act as in the unchanged system."""


def speedups(study: Study, closed: Mapping[int, tuple[Mapping[str, Any], pd.DataFrame]]) -> pd.DataFrame:
    """Time the typical round with every change, for the first variants, each with its first seed.

    Only the clock runs, and only this round. There are no rows if the result without change is not the recorded round,
    because that depends on results of training or on earlier rounds.

    Args:
        closed: by number, the summary and the rounds of the trials that have run.

    Returns:
        Rows of speedups.parquet; `change` is a key of `CHANGES`.
    """
    first: dict[str, int] = {}
    for number in sorted(closed, key=lambda number: study.variants[number].scenario.seed):
        first.setdefault(study.variants[number].name, number)
    chosen = typical_round(pd.concat(closed[number][1] for number in sorted(closed)))
    timed = sorted(first.values())[:MAX_VARIANTS]
    return pd.DataFrame(row for number in timed for row in _of_trial(study.variants[number], closed[number][1], chosen))


def _of_trial(variant: Variant, rounds: pd.DataFrame, number: int) -> list[dict[str, Any]]:
    scenario = variant.scenario
    recorded = rounds[rounds["round"] == number]
    started_s, ended_s = recorded["started_s"].item(), recorded["ended_s"].item()
    try:
        setup = setup_of(scenario, pixels=False)
        before_s, n_operations = _round_s(setup, number, started_s)
        if n_operations > MAX_OPERATIONS or not math.isclose(before_s, ended_s - started_s, rel_tol=1e-9):
            return []
        about = {"variant": variant.name, "seed": scenario.seed, "round": number}
        return [
            {
                **about,
                "change": name,
                "before_s": before_s,
                "after_s": _round_s(setup, number, started_s, change)[0],
            }
            for name, change in CHANGES.items()
            if setup.fleet.tiers or not change.of_tiers
        ]
    except Exception:  # a method of a user's own may need what only training gives; no run must fail for a table's sake
        return []


def _round_s(setup: Setup, number: int, started_s: float, change: Change = Change()) -> tuple[float, int]:
    """Time a round that begins at `started_s` in the changed system, with unchanged operations.

    Gives its seconds and its number of operations.
    """
    free(len(setup.shares))
    clock = build_clock(setup.scenario, change.fleet(setup.fleet), Timing(), setup.counts, more_workers=change.workers)
    walk = Walk(setup, setup.method(device=None), clock, first=number, started_s=started_s)
    walked = next(walk.rounds())
    return walked.ended_s - walked.started_s, len(walked.ops)
