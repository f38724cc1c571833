"""Tiers of servers: which server serves which client, and how each serves jobs, from the scenario."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from numbers import Integral

import numpy as np

from sfl_sim.build.registry import named
from sfl_sim.errors import ScenarioError, calling_theirs
from sfl_sim.knowledge import Known, knows
from sfl_sim.methods.tiers import ServedTier, Tiers
from sfl_sim.models.network import Network
from sfl_sim.ops import ServerNode
from sfl_sim.rng import stream
from sfl_sim.scenario import sections
from sfl_sim.scenario.sections import Scenario
from sfl_sim.system.fleet import Fleet

Numbers = Sequence[int]
"""Number of the server of each client, from 1."""


def build_tiers(scenario: Scenario, fleet: Fleet, net: Network, cuts: Sequence[int]) -> Tiers:
    """Build what a method knows of the servers between clients, with these `cuts`, and the main server."""
    if not scenario.servers:
        return Tiers()
    above, tiers = max(cuts, default=0), list[ServedTier]()
    for name, section in scenario.servers.items():
        key = f"servers.{name}"
        down = section.outages.clients if section.outages else "wait"
        of_the_first = {
            "clients": section.clients != "even",
            "reach_s": section.reach_s,
            "outages.clients": down != "wait",
        }
        for which in [name for name, is_given in of_the_first.items() if tiers and is_given]:
            raise ScenarioError("is a key of the first tier, which serves the clients", key=f"{key}.{which}")
        cut = section.cut
        if cut is not None:
            cut = above = net.cut_at(cut, f"{key}.cut", above=above)
        of_fleet = fleet.tiers[name]
        tiers.append(ServedTier(of_fleet.nodes, of_fleet.above, cut, section.average_every, down))
    without = [tier.cut is None for tier in tiers]
    if any(without) and not all(without):
        name = [*scenario.servers][without.index(True)]
        raise ScenarioError("is missing, where other tiers have one", key=f"servers.{name}.cut")
    name, first = next(iter(scenario.servers.items()))
    return Tiers(tiers, _homes(scenario, name, first, fleet))


def _homes(
    scenario: Scenario, name: str, section: sections.TierSection, fleet: Fleet
) -> Callable[[int], Sequence[ServerNode]]:
    """Return the function that returns, for a round, the server of each client."""
    key, n, nodes = f"servers.{name}.clients", len(fleet.macs_per_s), fleet.tiers[name].nodes

    def checked(numbers: Numbers) -> list[ServerNode]:
        if len(numbers) != n:
            problem = "a list needs one entry per client"
            raise ScenarioError(problem, key=key, found=len(numbers), allowed=f"{n} entries")
        for number in numbers:
            if not (isinstance(number, Integral) and 1 <= number <= len(nodes)):
                raise ScenarioError("no such server", key=key, found=number, allowed=f"1 to {len(nodes)}")
        return [nodes[number - 1] for number in numbers]

    if isinstance(section.clients, str) and section.clients not in RULES:
        assign = named(section.clients, {}, key)
        if not callable(assign):
            raise ScenarioError("is no function", key=key, found=section.clients)

        @lru_cache(maxsize=2)
        def assigned(round: int) -> list[ServerNode]:
            with calling_theirs(key, section.clients):
                numbers = [*assign(round, n, len(nodes))]
            return checked(numbers)

        return assigned
    if section.reach_s is None and section.clients == "nearest":
        raise ScenarioError(f"needs servers.{name}.reach_s, the latency to each server", key=key)
    numbers = (
        section.clients if isinstance(section.clients, list) else RULES[section.clients](scenario.seed, name, fleet)
    )
    homes = checked(numbers)
    _check_meet(scenario, name, homes, fleet)
    return lambda round: homes


def _check_meet(scenario: Scenario, name: str, homes: Sequence[ServerNode], fleet: Fleet) -> None:
    """Check that nobody waits for ever: a client and a server that are never there at once. Raises ScenarioError."""
    away, section, up = (
        scenario.clients.availability,
        scenario.servers[name].outages,
        fleet.tiers[name].servers.presence,
    )
    if fleet.presence is None or up is None or not (away and section) or (away.lost, section.clients) != ("wait",) * 2:
        return
    for client, (there, home) in enumerate(zip(fleet.presence, homes, strict=True)):
        if there.share and not there.meets(up[home.number - 1]):
            problem = f"client {client} and {home}, its server, are never there at the same time, and wait for ever"
            key = f"servers.{name}.outages.clients"
            raise ScenarioError(problem, key=key, found="wait", allowed=["move", "drop"])


def even(seed: int, name: str, fleet: Fleet) -> Numbers:
    """Deal clients at random, evenly many to each server."""
    n = len(fleet.tiers[name].nodes)
    return [1 + draw % n for draw in stream(seed, f"clients of {name}").permutation(len(fleet.macs_per_s)).tolist()]


@knows(Known.RATES)
def speed(seed: int, name: str, fleet: Fleet) -> Numbers:
    """Deal clients so that the devices of each server compute about as much together: fastest first, to the least."""
    sums, numbers = np.zeros(len(fleet.tiers[name].nodes)), [0] * len(fleet.macs_per_s)
    for client in np.argsort(-np.asarray(fleet.macs_per_s), kind="stable").tolist():
        least = int(sums.argmin())
        sums[least] += fleet.macs_per_s[client]
        numbers[client] = least + 1
    return numbers


@knows(Known.LATENCIES)
def nearest(seed: int, name: str, fleet: Fleet) -> Numbers:
    """Return for every client the server with the least latency; of several, the first."""
    reach_s = fleet.tiers[name].reach_s
    assert reach_s is not None, "a file says how far servers are"
    return [1 + number for number in reach_s.argmin(axis=1).tolist()]


RULES: dict[str, Callable[[int, str, Fleet], Numbers]] = {"even": even, "speed": speed, "nearest": nearest}
"""Rules that say which server serves a client."""
