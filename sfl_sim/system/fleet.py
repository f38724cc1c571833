"""Fleet of a run: the clients' devices and links, their presence and power, and the server's rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import SERVER, ServerNode, role_of
from sfl_sim.rng import stream
from sfl_sim.scenario import sections
from sfl_sim.scenario.optional_sections import Availability, Overhead
from sfl_sim.scenario.sections import Clients, Server
from sfl_sim.system.availability import draw_presence
from sfl_sim.system.conditions import Conditions, make_conditions
from sfl_sim.system.cost import CalledProcessor, Processor, read_cost
from sfl_sim.system.devices import draw_devices
from sfl_sim.system.links import LazySequence, Links
from sfl_sim.system.network import draw_links
from sfl_sim.system.power import Power, read_power
from sfl_sim.system.presence import Presence
from sfl_sim.system.profiles import FloatArray, read_table

if TYPE_CHECKING:
    from sfl_sim.system.topology import Topology  # imports networkx


@dataclass(frozen=True, slots=True)
class Fleet:
    """Properties of the nodes that do not change during a run. Every sequence has one entry per client.

    Attributes:
        devices: names of the devices.
        macs_per_s: rates of the devices; with a cost profile, at its reference network.
        processors: processors of the devices, which price work of training in seconds.
        deployed: the same for work of a trained model in use.
        training_factor: how many times as long a device trains as its rate says.
        uplinks, downlinks: rates of the links over time.
        latency_s: latency of every message.
        server: processor of the server.
        server_macs_per_s: rate of the server, like those of the devices.
        cost: relation of time to work: `macs`, or the name of the cost profile.
        power: powers of the clients; None if unknown.
        sample_s: seconds that a device takes for every training sample in addition to the work.
        conditions: jitter and throttling of the devices; None without both.
        presence: when each client is present; None if always.
        topology: links that the clients share; None if there are none.
        overhead: what messages carry beyond their own bytes; None for nothing.
        tiers: servers between clients and the main server, by name, from the clients up.
    """

    devices: list[str]
    macs_per_s: list[float]
    processors: Sequence[Processor]
    deployed: Sequence[Processor]
    training_factor: list[float]
    uplinks: Links
    downlinks: Links
    latency_s: list[float]
    server: Processor
    server_macs_per_s: float
    cost: str
    power: Power | None = None
    sample_s: float = 0.0
    conditions: Conditions | None = None
    presence: Sequence[Presence] | None = None
    topology: Topology | None = None
    overhead: Overhead | None = None
    tiers: Mapping[str, ServerTier] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerTier:
    """Servers of one tier.

    Attributes:
        name: role of its servers, which are numbered from 1.
        servers: rates of the servers and of their links to the tier above: a fleet in which they are the clients.
        above: the server of the tier above to which each of them is linked.
        reach_s: (C, servers) seconds between clients and servers beyond the clients' own latency; None: none.
    """

    name: str
    servers: Fleet
    above: Sequence[ServerNode]
    reach_s: FloatArray | None = None

    @property
    def nodes(self) -> list[ServerNode]:
        """Its servers."""
        return [ServerNode(self.name, number) for number in range(1, len(self.above) + 1)]


def build_fleet(
    n_clients: int,
    seed: int,
    clients: Clients,
    server: Server,
    servers: Mapping[str, sections.TierSection] | None = None,
) -> Fleet:
    """Draw the fleet of a run.

    A server's `speedup` is gamma of SMoFi's Eq. (13), T_srv = work * s_mean / gamma: the server takes 1/gamma of the
    seconds that a client takes on average, by its rate and without its training factor. The mean is one of seconds,
    not of rates, so slow clients weigh most.

    Args:
        n_clients, seed: number of clients, and seed of the run.
        clients, server, servers: the scenario's sections.

    Raises ScenarioError if a profile, a file or a number cannot be used.
    """
    compute, network = clients.compute, clients.network
    cost = read_cost(compute.cost)
    devices, macs_per_s, training_factor = draw_devices(
        n_clients, stream(seed, "devices"), compute, cost.reference_macs
    )
    uplinks, downlinks, latency_s = draw_links(n_clients, stream(seed, "links"), network, macs_per_s)
    rates, training_macs_per_s = macs_per_s.tolist(), macs_per_s / training_factor
    server_macs_per_s, processor = _of_server(server, macs_per_s, compute.cost, "server")
    topology = None
    if network.shared is not None:
        from sfl_sim.system.topology import build_topology  # with it comes networkx

        topology = build_topology(n_clients, stream(seed, "access points"), network.shared, _names(servers or {}))
    fleet = Fleet(
        devices=devices,
        macs_per_s=rates,
        processors=LazySequence(n_clients, lambda client: cost.processor(float(training_macs_per_s[client]))),
        deployed=LazySequence(n_clients, lambda client: cost.processor(rates[client])),
        training_factor=training_factor.tolist(),
        uplinks=uplinks,
        downlinks=downlinks,
        latency_s=latency_s.tolist(),
        server=processor,
        server_macs_per_s=server_macs_per_s,
        cost=cost.name,
        power=None if clients.power is None else read_power(n_clients, clients.power),
        sample_s=compute.sample_s,
        conditions=make_conditions(compute),
        presence=draw_presence(n_clients, stream(seed, "presence"), clients.availability),
        topology=topology,
        overhead=network.overhead,
    )
    if not servers:
        return fleet
    above, tiers = _parents(servers), {}
    for (name, tier), names in zip(servers.items(), _names(servers), strict=True):
        of_tier = _of_tier(fleet, name, tier, above[name], seed, macs_per_s, compute.cost)
        key = f"servers.{name}.reach_s"
        reach_s = None if tier.reach_s is None else _read_reach_s(tier.reach_s, n_clients, names, key)
        tiers[name] = ServerTier(name, of_tier, above[name], reach_s)
    return replace(fleet, tiers=tiers)


def _of_server(
    station: sections.StationSection, macs_per_s: FloatArray, cost: str | None, key: str
) -> tuple[float, Processor]:
    """Give the rate of a server, and its processor, for clients with these rates (C,) and their cost profile."""
    rate = station.macs_per_s
    if rate is None:
        assert station.speedup is not None, "a section has a rate or a speedup"
        rate = float(station.speedup / np.mean(1 / macs_per_s))
    prices = read_cost(cost) if station.cost is None else read_cost(station.cost, f"{key}.cost")
    processor = prices.processor(rate)
    return rate, CalledProcessor(processor, station.call_s) if station.call_s else processor


def _of_tier(
    fleet: Fleet,
    name: str,
    tier: sections.TierSection,
    above: Sequence[ServerNode],
    seed: int,
    macs_per_s: FloatArray,
    cost: str | None,
) -> Fleet:
    """Make the fleet of a tier's servers, in which they are the clients of the tier above."""
    n, backbone, outages = tier.count, tier.backbone, tier.outages
    rate, processor = _of_server(tier, macs_per_s, cost, f"servers.{name}")
    unlimited = Links(np.full(n, np.inf), None, np.zeros(n))
    uplinks, downlinks, latency_s = unlimited, unlimited, np.zeros(n)
    topology = fleet.topology if fleet.topology and fleet.topology.covers_all else None
    presence = None
    if backbone is not None:
        if backbone.compute_correlation:
            problem = "has no effect: the servers of a tier compute alike"
            key = f"servers.{name}.backbone.compute_correlation"
            raise ScenarioError(problem, key=key, found=backbone.compute_correlation)
        with _keys_of("clients.network", f"servers.{name}.backbone"):
            uplinks, downlinks, latency_s = draw_links(n, stream(seed, f"links of {name}"), backbone)
            if backbone.shared is not None:
                from sfl_sim.system.topology import build_topology

                if backbone.shared.file is not None or topology is not None:
                    problem = "has its place in clients.network.shared.file, a graph of all links"
                    raise ScenarioError(problem, key="clients.network.shared")
                rng, over = stream(seed, f"access points of {name}"), [sorted({str(node) for node in above})]
                topology = build_topology(n, rng, backbone.shared, over, name)
    if outages is not None:
        with _keys_of("clients.availability", f"servers.{name}.outages"):
            there = Availability(profile=outages.profile, begins_at_h=outages.begins_at_h)
            presence = draw_presence(n, stream(seed, f"presence of {name}"), there)
    return Fleet(
        devices=[name] * n,
        macs_per_s=[rate] * n,
        processors=[processor] * n,
        deployed=[processor] * n,
        training_factor=[1.0] * n,
        uplinks=uplinks,
        downlinks=downlinks,
        latency_s=latency_s.tolist(),
        server=fleet.server,
        server_macs_per_s=fleet.server_macs_per_s,
        cost=fleet.cost,
        presence=presence,
        topology=topology,
        overhead=fleet.overhead if backbone is None else backbone.overhead,
    )


def _parents(tiers: Mapping[str, sections.TierSection]) -> dict[str, list[ServerNode]]:
    """Give, for every server of each tier, the server above: evenly many below each, in the order of their numbers."""
    names, above_of = [*tiers], {}
    for name, above in zip(names, [*names[1:], None], strict=True):
        count = tiers[name].count
        n_above = tiers[above].count if above else 1
        above_of[name] = [ServerNode(above, 1 + k * n_above // count) if above else SERVER for k in range(count)]
    return above_of


def _read_reach_s(file: str, n_clients: int, names: Sequence[str], key: str) -> FloatArray:
    """Read seconds between clients and servers: (clients, servers). Raises ScenarioError for an unusable file."""
    table = read_table(Path(file), names, key)
    table.require_no_others(names, [other for other in table.columns if role_of(other) != role_of(names[0])])
    if len(table.lines) != n_clients:
        raise ScenarioError("needs a row for each client", key=key, found=len(table.lines), allowed=[n_clients])
    columns = []
    for name in names:
        seconds = table.numbers(name)
        table.require(name, seconds >= 0, "a number of 0 or above")
        columns.append(seconds)
    return np.stack(columns, axis=1)[table.by_client()]


def _names(servers: Mapping[str, sections.TierSection]) -> list[list[str]]:
    """List the names of the servers of each tier."""
    return [[f"{name}{number}" for number in range(1, tier.count + 1)] for name, tier in servers.items()]


@contextmanager
def _keys_of(like: str, key: str) -> Iterator[None]:
    """Let errors about keys below `like` name the same ones below `key`."""
    try:
        yield
    except ScenarioError as error:
        error.key = (error.key or key).replace(like, key, 1)
        raise
