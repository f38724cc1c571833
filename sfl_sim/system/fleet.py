"""Fleet of a run: the clients' devices and links, their presence and power, and the server's rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.rng import stream
from sfl_sim.system.availability import draw_presence
from sfl_sim.system.conditions import Conditions, make_conditions
from sfl_sim.system.cost import CalledProcessor, Processor, read_cost
from sfl_sim.system.devices import draw_devices
from sfl_sim.system.links import LazySequence, Links
from sfl_sim.system.network import draw_links
from sfl_sim.system.power import Power, read_power
from sfl_sim.system.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sfl_sim.scenario.optional_sections import Overhead
    from sfl_sim.scenario.sections import Clients, Server
    from sfl_sim.system.topology import Topology


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


def build_fleet(n_clients: int, seed: int, clients: Clients, server: Server) -> Fleet:
    """Draw the fleet of a run.

    A server's `speedup` is gamma of SMoFi's Eq. (13), T_srv = work * s_mean / gamma: the server takes 1/gamma of the
    seconds that a client takes on average, by its rate and without its training factor. The mean is one of seconds,
    not of rates, so slow clients weigh most.

    Args:
        n_clients, seed: number of clients, and seed of the run.
        clients, server: the scenario's sections.

    Raises:
        ScenarioError: a profile, a file or a number cannot be used.
    """
    compute, network = clients.compute, clients.network
    cost = read_cost(compute.cost)
    devices, macs_per_s, training_factor = draw_devices(
        n_clients, stream(seed, "devices"), compute, cost.reference_macs
    )
    uplinks, downlinks, latency_s = draw_links(n_clients, stream(seed, "links"), network, macs_per_s)
    rates, training_macs_per_s = macs_per_s.tolist(), macs_per_s / training_factor
    server_macs_per_s = server.macs_per_s
    if server_macs_per_s is None:
        assert server.speedup is not None, "a section has a rate or a speedup"
        server_macs_per_s = float(server.speedup / np.mean(1 / macs_per_s))
    processor = (cost if server.cost is None else read_cost(server.cost, "server.cost")).processor(server_macs_per_s)
    topology = None
    if network.shared is not None:
        from sfl_sim.system.topology import build_topology  # with it comes networkx

        topology = build_topology(n_clients, stream(seed, "access points"), network.shared)
    return Fleet(
        devices=devices,
        macs_per_s=rates,
        processors=LazySequence(n_clients, lambda client: cost.processor(float(training_macs_per_s[client]))),
        deployed=LazySequence(n_clients, lambda client: cost.processor(rates[client])),
        training_factor=training_factor.tolist(),
        uplinks=uplinks,
        downlinks=downlinks,
        latency_s=latency_s.tolist(),
        server=CalledProcessor(processor, server.call_s) if server.call_s else processor,
        server_macs_per_s=server_macs_per_s,
        cost=cost.name,
        power=None if clients.power is None else read_power(n_clients, clients.power),
        sample_s=compute.sample_s,
        conditions=make_conditions(compute),
        presence=draw_presence(n_clients, stream(seed, "presence"), clients.availability),
        topology=topology,
        overhead=network.overhead,
    )
