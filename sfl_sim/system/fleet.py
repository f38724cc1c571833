"""Fleet of a run: the clients' devices and links, their presence and power, and the server's rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from sfl_sim.system.profiles import per_client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def build_fleet(
    n_clients: int,
    seed: int,
    compute: Mapping[str, Any],
    network: Mapping[str, Any],
    speedup: float | None,
    power: Mapping[str, Any] | None = None,
    availability: Mapping[str, Any] | None = None,
    server_macs_per_s: float | None = None,
    call_s: float = 0.0,
) -> Fleet:
    """Draw the fleet of a run.

    Args:
        n_clients, seed: number of clients, and seed of the run.
        compute: options of `draw_devices`; and `cost`, the profile of `read_cost`, `sample_s`, and `jitter` and
            `throttling`, the options of `make_conditions`.
        network: options of `draw_links`; and `shared`, the options of `build_topology`.
        speedup: gamma of SMoFi's Eq. (13), T_srv = work * s_mean / gamma: the server takes 1/gamma of the seconds that
            a client takes on average, by its rate and without its training factor. The mean is one of seconds, not
            of rates, so slow clients weigh most. None with `server_macs_per_s`.
        power: options of `read_power`.
        availability: options of `draw_presence`.
        server_macs_per_s: rate of the server, whatever the devices are; None with `speedup`.
        call_s: see `CalledProcessor`.

    Raises:
        ScenarioError: an option cannot be used.
    """
    options = dict(compute)
    cost = read_cost(options.pop("cost", None))
    sample_s = options.pop("sample_s", 0.0)
    conditions = make_conditions(options.pop("jitter", 0.0), options.pop("throttling", None))
    rng = stream(seed, "devices")
    devices, macs_per_s, training_factor = draw_devices(n_clients, rng, **options, reference_macs=cost.reference_macs)
    links = dict(network)
    shared = links.pop("shared", None)
    uplinks, downlinks, latency_s = draw_links(n_clients, stream(seed, "links"), macs_per_s=macs_per_s, **links)
    rates, training_macs_per_s = macs_per_s.tolist(), macs_per_s / training_factor
    if server_macs_per_s is None:
        (gamma,) = per_client(speedup or 0.0, 1, "server.speedup")
        server_macs_per_s = float(gamma / np.mean(1 / macs_per_s))
    server = cost.processor(server_macs_per_s)
    topology = None
    if shared is not None:
        from sfl_sim.system.topology import build_topology  # with it comes networkx

        topology = build_topology(n_clients, stream(seed, "access points"), **shared)
    return Fleet(
        devices,
        rates,
        LazySequence(n_clients, lambda client: cost.processor(float(training_macs_per_s[client]))),
        LazySequence(n_clients, lambda client: cost.processor(rates[client])),
        training_factor.tolist(),
        uplinks,
        downlinks,
        latency_s.tolist(),
        CalledProcessor(server, call_s) if call_s else server,
        server_macs_per_s,
        cost.name,
        None if power is None else read_power(n_clients, **power),
        sample_s=sample_s,
        conditions=conditions,
        presence=None if availability is None else draw_presence(n_clients, stream(seed, "presence"), **availability),
        topology=topology,
    )
