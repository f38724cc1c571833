"""The clock of a scenario, with the queues of its servers, and the executor of what it times."""

import os
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from sfl_sim.build.registry import find_order
from sfl_sim.errors import ScenarioError
from sfl_sim.models.on_nan import OnNan
from sfl_sim.ops import role_of
from sfl_sim.scenario.sections import Clients, Scenario, StationSection, TrainSection
from sfl_sim.sim.clock import Clock, Plans
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.operations import Executor
from sfl_sim.sim.orders import OF_RUNS, check_burst, check_max_wait, usual_burst
from sfl_sim.store import places
from sfl_sim.system.fleet import Fleet
from sfl_sim.training.executors import Eager, Timing

Ints = NDArray[np.int64]


def build_executor(train: TrainSection, device: torch.device | None) -> Eager | Timing:
    """Build the executor; `device` is None in a timing-only run."""
    return Timing() if device is None else Eager(OnNan(train.on_nan == "skip"))


def build_clock(
    scenario: Scenario,
    fleet: Fleet,
    executor: Executor,
    counts: Ints,
    *,
    more_workers: float = 1,
    plans: Plans | None = None,
    **settings: Any,
) -> Clock:
    """Build the clock of a scenario's server and a fleet.

    Args:
        counts: (C, L) number of training samples by client and label.
        more_workers: factor on the workers of all servers.
        plans: see `Clock`.
        settings: others of the `EventClock` than the scenario's.
    """
    server = scenario.server
    queues = {
        node: _queueing(tier, scenario.seed, f"servers.{name}", str(node), more_workers)
        for name, tier in scenario.servers.items()
        for node in fleet.tiers[name].nodes
    }
    events = EventClock(
        fleet,
        executor,
        _queueing(server, scenario.seed, "server", places.SERVER, more_workers),
        labels=counts.argmax(axis=1).tolist(),
        queues=queues,
        seed=scenario.seed,
        include_model_exchange=server.include_model_exchange,
        **{"dropouts": _dropouts(scenario.clients, fleet), **settings},
    )
    return Clock(events, plans)


def _queueing(server: StationSection, seed: int, key: str, node: str, more_workers: float) -> Queueing:
    """Return the settings of a server's queue; `key` is that of its section, `node` its name in records."""
    burst = burst_of(server)
    check_burst(server.order, burst, key)
    check_max_wait(server.order, server.max_wait_s, key)
    return Queueing(
        find_order(server.order, f"{key}.order"),
        more_workers * _number(server.workers),
        burst=burst,
        max_wait_s=float("inf") if server.max_wait_s is None else server.max_wait_s,
        recorded=_recorded_turns(server, seed, f"{key}.recorded", node),
    )


def _recorded_turns(server: StationSection, seed: int, key: str, node: str) -> dict[int, list[int]]:
    """Read, by round, which clients' jobs a run's server has served one after another; none if nobody asks.

    Raises ScenarioError if there is no such run, or several of this seed.
    """
    if server.order not in OF_RUNS:
        return {}
    run = server.recorded
    if run is None:
        raise ScenarioError(f"is needed by order: {server.order}", key=key, allowed="the folder of a run")
    try:
        columns = ["variant", "seed", "round", "node", "client", "started_s", "macs"]
        rows = pd.read_parquet(os.path.expanduser(run), columns=columns)
    except (OSError, ValueError) as error:
        raise ScenarioError("holds no operations of a run", key=key, found=run) from error
    rows = rows[(rows["seed"] == seed) & (rows["node"] == node) & (rows["client"] >= 0) & (rows["macs"] > 0)]
    if rows["variant"].nunique() != 1:
        several = ", ".join(rows["variant"].unique()) or "none"
        problem = f"needs one variant with jobs at the {node} and seed {seed}, has {several}"
        raise ScenarioError(problem, key=key, found=run)
    by_round = rows.sort_values("started_s", kind="stable").groupby("round")["client"]
    return {number: clients.tolist() for number, clients in by_round}  # type: ignore[misc]


def server_workers(scenario: Scenario, name: str = places.SERVER) -> float:
    """Return the number of jobs that a server of the scenario runs at the same time; infinity if unlimited."""
    return _number(scenario.servers.get(role_of(name), scenario.server).workers)


def burst_of(server: StationSection) -> float:
    """Return the number of jobs that a server runs of a client in a row; infinity for all."""
    return usual_burst(server.order) if server.burst is None else _number(server.burst)


def _number(value: float | str) -> float:
    return float("inf") if value in ("all", "unlimited") else float(value)


def _dropouts(clients: Clients, fleet: Fleet) -> Dropouts:
    availability = clients.availability
    n = round_size(clients.participation, len(fleet.macs_per_s))
    wanted = n if clients.overcommit else float("inf")
    if availability is None:
        return Dropouts(wanted=wanted)
    deadline_s = float("inf") if availability.deadline_s is None else availability.deadline_s
    return Dropouts(availability.lost, fleet.presence, deadline_s, wanted)


def round_size(participation: float, n_clients: int) -> int:
    """Return the number of participants of a round: `participation * n_clients`, rounded, but 1 at least."""
    return max(1, int(participation * n_clients + 0.5))
