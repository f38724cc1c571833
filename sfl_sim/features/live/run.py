"""A trial on nodes: a rehearsal, the pace that emulates the scenario's devices and links, and the experiment itself."""

import os
import time
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import pandas as pd
import torch

from sfl_sim.build.setup import Setup, setup_of
from sfl_sim.engine.choices import find_choice
from sfl_sim.engine.experiment import Elsewhere, Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.features.live.agent import MeasuredOperation, Pace
from sfl_sim.features.live.clock import FOR_EVER_S, Empty, LiveOperations
from sfl_sim.features.live.links import address_of
from sfl_sim.features.live.machines import Machines
from sfl_sim.features.live.namespaces import Namespaces
from sfl_sim.ops import SERVER, Node, On, Work, priced
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.prices import Prices
from sfl_sim.store.places import DEVICE
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.presence import Presence
from sfl_sim.training.steps import TrainAlone

CPU = torch.device("cpu")
BUSY = 0.5
"""Share of this machine's cores that emulated nodes may need on average, so that they hardly wait for each other."""
DRIVER_S = 0.6e-3
"""Processor time of the driver for an operation."""
STEPS, RESTS_S = 40, 0.02
"""Steps by which this machine is measured, and pauses between them: a processor that has rested takes longer."""
SHARE = 20
"""How many times as long as the driver's work for its operations a round takes at least."""


@dataclass(frozen=True)
class OfScenario:
    """Makes the training data of a scenario, where it is asked."""

    scenario: Scenario

    def __call__(self) -> Any:
        """Make them."""
        return setup_of(self.scenario, pixels=True).method(CPU).data.images


def check_live(scenario: Scenario, in_namespaces: bool = False) -> None:
    """Check that a scenario can run on nodes; otherwise raises ScenarioError.

    Args:
        in_namespaces: the kernel emulates links.
    """
    clients, own = scenario.clients, "nodes have their own"
    shared = clients.network.shared
    if in_namespaces and shared and shared.file:
        problem = "cannot be emulated: links of a live run are shared at access points and behind them"
        raise ScenarioError(problem, key="clients.network.shared.file", found=shared.file)
    refused: dict[str, tuple[Any, str]] = {
        "clients.availability": (clients.availability, own),
        "clients.overcommit": (clients.overcommit, "late clients of a live run cannot be stopped"),
        "clients.network.shared": (shared and not in_namespaces, f"{own}; --emulate netns has them"),
        "clients.compute.jitter": (clients.compute.jitter, own),
        "clients.compute.throttling": (clients.compute.throttling, own),
        "report.snapshots": (scenario.report.snapshots, "the model is elsewhere within a round"),
        "serving": (scenario.serving, "live runs train"),
        "servers": (scenario.servers, "live runs have one server"),
    }
    for key, (found, why) in refused.items():
        if found:
            raise ScenarioError(f"cannot be part of a live run: {why}", key=key)
    if scenario.train.on_nan == "skip":
        raise ScenarioError("cannot be part of a live run", key="train.on_nan", found="skip", allowed=["stop"])
    if not (precision := scenario.train.precision).startswith("float"):
        raise ScenarioError("cannot be part of a live run", key="train.precision", found=precision)
    if find_choice(clients.choice).asks_training:
        raise ScenarioError("cannot be part of a live run: it looks at the model", key="clients.choice")
    if scenario.wire.up and scenario.wire.up.kind == "delta":
        raise ScenarioError("cannot be part of a live run: the server would have to know what it was sent before",
                            key="wire.up", found="delta")  # fmt: skip


@dataclass
class Live:
    """Trials of one scenario on the nodes of a run.

    Attributes:
        slowdown: seconds of the wall that are one second of the run.
        links: how the scenario's links were emulated; None if they were not.
        paces: how slow nodes seem.
        steps: what nodes have measured.
    """

    machines: Machines
    slowdown: float = 1.0
    links: str | None = None
    paces: dict[Node, Pace] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)

    def experiment(self, scenario: Scenario, device: torch.device | None = CPU) -> Experiment:
        """Make the experiment whose steps the nodes run."""
        n = self.machines.n_clients
        presence = [Presence([(0.0, FOR_EVER_S)], FOR_EVER_S) for _ in range(n)]
        for client in self.machines.lost:
            presence[client] = Presence([], FOR_EVER_S)
        operations, executor = type("Operations", (LiveOperations,), {"steps": self.steps}), Empty()
        clock = {
            "environment": partial(executor.clock, self.machines, self.slowdown),
            "operations": operations,
            "dropouts": Dropouts("drop", presence),
        }
        elsewhere = Elsewhere(executor, presence, clock, self.machines.at_the_driver, self.tables)
        return Experiment(scenario, device, elsewhere=elsewhere)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Give the tables of what was measured, and of the nodes."""
        nodes = [
            {
                "node": str(node), "offset_s": machines.offsets[node].s,
                "offset_bound_s": machines.offsets[node].bound_s,
                "stretched": self.paces[node].factor if node in self.paces else None, "slowdown": self.slowdown,
                "links": self.links, "load": os.getloadavg()[0], "is_same_code": node not in machines.differ,
                "is_lost": node in machines.lost,
            }
            for machines in [self.machines] for node in machines.nodes
        ]  # fmt: skip
        return {"steps": pd.DataFrame(self.steps), "nodes": pd.DataFrame(nodes)}

    def rehearse(self, scenario: Scenario) -> pd.DataFrame:
        """Run a round of all clients that nobody keeps; gives what was measured in it.

        Processes load code in their first steps, and no rate should be told from these.
        """
        walk = self.experiment(scenario).walk
        walk.set_up()
        walk.round(1, [client for client in walk.setup.cyclic if client not in self.machines.lost])
        measured = self.tables()["steps"]
        self.steps.clear()
        return measured

    def emulate(self, scenario: Scenario, measured: pd.DataFrame, namespaces: Namespaces | None = None) -> None:
        """Let nodes and links seem as slow as the scenario's, given what a rehearsal has measured.

        A device is this machine, so many times slower that a training step of the whole network takes as long as the
        scenario says: the same device whatever the method and the cut, with the costs of layers of this machine.

        Args:
            namespaces: of the nodes, whose links the kernel then makes as slow; None: nodes wait as long.

        Raises ScenarioError if links vary.
        """
        setup = setup_of(scenario, pixels=True)
        fleet, prices = setup.fleet, Prices(setup.fleet)
        if fleet.uplinks.patterns or fleet.downlinks.patterns:
            problem = "cannot be emulated: a link of a live run has one rate"
            raise ScenarioError(problem, key="clients.network.trace", allowed="null")
        work, cpu_s = self._whole_step(setup)
        factors = {node: prices.computing_s(node, work, 0) / cpu_s for node in self.machines.nodes}
        trains = measured[measured["macs"] > 0]
        busy = {SERVER} if (trains["node"] == SERVER.role).any() else set[Node]()
        busy |= set(trains.loc[trains["node"] == DEVICE, "client"])
        self.slowdown = slowdown(scenario, measured, min(factors[node] for node in busy) if busy else 1.0)
        self.paces = {
            node: Pace(factor * self.slowdown, {} if namespaces else _links(fleet, node, self.slowdown))
            for node, factor in factors.items()
        }
        self.links = "sleep"
        if namespaces:
            namespaces.shape(self.slowdown)
            self.links = "netns" if namespaces.delays or not any(fleet.latency_s) else "netns without latency"
        self.machines.pace(self.paces)

    def _whole_step(self, setup: Setup) -> tuple[Work, float]:
        """Give the work of a training step of the whole network, and the seconds that a processor here takes for it."""
        client = next(client for client in setup.cyclic if client not in self.machines.lost)
        task = setup.method(CPU).task
        (whole,), batch = task.split(), next(task.data.batches(client, 1))
        step, taken = TrainAlone(task.optimiser(1, client)), list[MeasuredOperation]()
        op = On(client, step, whole, batch)
        for n in range(STEPS):
            self.machines.run(op, step.out(whole, batch), taken.append, lambda client: taken.clear())
            while self.machines.jobs:
                self.machines.step(1.0)
            if len(taken) <= n:
                raise ScenarioError("has gone away while its machine was measured", key="nodes", found=client)
            time.sleep(RESTS_S)
        return priced(step, whole, batch), median(measured.cpu_s for measured in taken[STEPS // 2 :])


def slowdown(scenario: Scenario, measured: pd.DataFrame, factor: float) -> float:
    """Give how many times as long as in the scenario everything has to take, for this machine to be able to seem it.

    No node may be faster than this machine, the processors' time for a round must fit into a part of it, and the
    driver's own work for an operation must be small.

    Args:
        factor: the smallest of those by which the scenario's devices are slower than this machine.
    """
    walk = Experiment(_of_one_round(scenario), None).walk
    walk.set_up()
    round = walk.round(1, walk.setup.cyclic)
    lasts_s = round.ended_s - round.started_s
    busy_s = measured["cpu_s"].sum() / (BUSY * (os.cpu_count() or 1))
    return max(1.0, 1 / factor, busy_s / lasts_s, SHARE * DRIVER_S * len(measured) / lasts_s)


def _of_one_round(scenario: Scenario) -> Scenario:
    return scenario.model_copy(update={"train": scenario.train.model_copy(update={"rounds": 1})})


def _links(fleet: Fleet, node: Node, slowdown: float) -> dict[bytes, tuple[float, float]]:
    """Give rate and latency of a node's links, by the receiver."""
    ups, downs, latencies = fleet.uplinks.mean_bps, fleet.downlinks.mean_bps, fleet.latency_s
    if node == SERVER:
        return {address_of(c): (downs[c] / slowdown, latencies[c] * slowdown) for c in range(len(downs))}
    assert isinstance(node, int)
    to_clients = {
        address_of(c): (min(ups[node], downs[c]) / slowdown, (latencies[node] + latencies[c]) * slowdown)
        for c in range(len(downs))
        if c != node
    }
    return {address_of(SERVER): (ups[node] / slowdown, latencies[node] * slowdown)} | to_clients
