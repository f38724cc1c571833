"""Draws of a what-if: its points timed again in systems drawn from the stated errors of prices and profiles.

What is drawn from which source: docs/howto/what-survives.md.
"""

import json
from collections.abc import Callable, Collection, Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sfl_sim.build.setup import fleet_of
from sfl_sim.features.whatif.tables import identity
from sfl_sim.rng import stream
from sfl_sim.scenario.concerns import concern_of, decided, values_except
from sfl_sim.scenario.fields import Concern, Decided
from sfl_sim.scenario.load import Variant, changed
from sfl_sim.scenario.sections import Scenario
from sfl_sim.scenario.vary import Axis, Point
from sfl_sim.studies.points import ImpossiblePoint, TimedPoint, evaluate
from sfl_sim.system.cost import MACS
from sfl_sim.system.network import sampled_factor
from sfl_sim.system.profiles import available, find

OPTION = "--uncertainty"
PHONES = "ai_benchmark"
FASTER = {"ncnn": (1.9, 3.8), "tflite": (0.5, 2.7), "pytorch_mobile": (0.25, 1.7)}
"""How many times as fast as `PHONES` says phones run MobileNet-V2 in a runtime, from a single core to as many as are
best (research/results/fidelity.md, "Absolute seconds")."""
FASTER_SOMEWHERE = (0.5, 4.0)
"""The same where the runtime is unknown."""
SPREAD = log(2.1 / 1.4) / 1.349
"""Standard deviation of the logarithm of that factor between phones, from its quartiles on one thread."""
TRAINS = (0.7, 40.0)
"""How many times as long as simulated training took on phones: from the fastest of single layers in
measurements/training to the slowest of whole tasks (research/results/fidelity.md)."""
TRAINS_SPREAD = log(3.6) / 1.69
"""Standard deviation of its logarithm between phones: three of them differed 3.6 times in one task."""
TESTS = {"mobiperf": 49}
"""Number of measurements behind a profile of links that has few."""


class DrawnSystem(NamedTuple):
    """Factors of one drawn system on the scenario's own; 1 for what is not drawn.

    Attributes:
        speed: on the rates of all devices, each of which has a further factor.
        network_error: on the devices' time for this network.
        training_factor: on the devices' time of training, each of which has a further factor.
        server_error: on the server's time.
        links: on the rates of all links.
        trace: how links vary, as the scenario says it; None if they do not.
    """

    speed: float
    network_error: float
    training_factor: float
    server_error: float
    links: float
    trace: str | list[str] | None


def draws_table(
    found: Sequence[TimedPoint], axes: Sequence[Axis], n: int, jobs: int, count: Callable[[int, int], None]
) -> pd.DataFrame:
    """Time all points in `n` drawn systems: one row per point and draw, with the factors that were drawn.

    With several seeds, the draws take turns with them. Points compete (`contest`) if they differ in nothing that the
    world decides: in the section `clients` and how fast the server is, apart from axes that a user decides.

    Args:
        found: answers to the points in the scenario's own system.
        jobs: see `evaluate`.
        count: is told how many of how many points are done.
    """
    traced = len({str(one.point.variant.scenario.clients.network.trace) for one in found}) > 1
    errors = _Errors(scaled=any(_scale(one) != 1 for one in found), traced=traced)
    seeds = list(dict.fromkeys(one.point.variant.scenario.seed for one in found))
    chosen = {axis.key for axis in axes if decided(axis.key) is Decided.BY_THE_USER}
    worlds = [_world(one.point.variant.scenario, chosen) for one in found]
    contests = {world: number for number, world in enumerate(dict.fromkeys(worlds))}
    points, about = [], {}
    for one, world in zip(found, worlds, strict=True):
        scenario, places = one.point.variant.scenario, one.point.variant.places
        known = np.array(fleet_of(scenario, len(one.clients)).training_factor)
        for number in range(seeds.index(scenario.seed), n, len(seeds)):
            as_told = bool((known != 1).any())
            drawn = errors.draw(scenario, number, as_told)
            layer = _layer(scenario, drawn, known * errors.of_devices(scenario, number, as_told, len(known)))
            variant = Variant(one.point.variant.name, changed(scenario, layer, places), places)
            points.append(Point(one.point.series, (*one.point.indices, number), variant))
            told = {"draw": number, "contest": contests[world], **drawn._asdict()}
            about[points[-1].key] = {**identity(one.point, axes), **told}
    for done, answer in enumerate(evaluate(points, jobs), start=1):
        if isinstance(answer, ImpossiblePoint):
            raise answer.error
        about[answer.point.key]["round_s"] = answer.figures["round_s"]
        count(done, len(points))
    return pd.DataFrame(list(about.values()))


def _scale(one: TimedPoint) -> float:
    return one.point.variant.scenario.clients.compute.scale


def _world(scenario: Scenario, chosen: Collection[str]) -> str:
    values = values_except(scenario, chosen).items()
    return json.dumps(
        {key: value for key, value in values if key.startswith("clients.") or concern_of(key) is Concern.SYSTEM},
        sort_keys=True,
    )


def _layer(scenario: Scenario, drawn: DrawnSystem, own: np.ndarray) -> dict[str, Any]:
    """Give the keys of the drawn system; `own` (N,) are the clients' training factors beside those drawn for all."""
    compute, network, server = scenario.clients.compute, scenario.clients.network, scenario.server
    rate = "speedup" if server.macs_per_s is None else "macs_per_s"
    return {
        "clients.compute.scale": compute.scale * drawn.speed,
        "clients.compute.training_factor": (own * drawn.network_error * drawn.training_factor).tolist(),
        "clients.network.scale": network.scale * drawn.links,
        "clients.network.trace": drawn.trace,
        f"server.{rate}": getattr(server, rate) / drawn.server_error,
    }


class _Errors:
    """The stated errors, and draws from them: each from a stream of its own.

    Args:
        scaled: whether the user sets or varies the devices' common scale, in place of its draw.
        traced: whether the user varies how links vary.
    """

    def __init__(self, scaled: bool, traced: bool) -> None:
        self._scaled = scaled
        self._traced = traced
        table = find("measurements", "errors", OPTION)
        errors = pd.read_csv(table, comment="#")
        self._networks = {key: np.log(rows["factor"]) for key, rows in errors.groupby(["cost", "node"])}

    def draw(self, scenario: Scenario, number: int, trains_as_told: bool) -> DrawnSystem:
        """Draw system `number`, alike for all points but for errors of other networks."""
        compute, network, seed = scenario.clients.compute, scenario.clients.network, scenario.seed
        speed, trains = 1.0, 1.0
        if compute.profile == PHONES and not self._scaled:
            faster = FASTER.get(str(compute.cost), FASTER_SOMEWHERE)
            speed = float(np.exp(stream(seed, "error of all rates", number).uniform(*np.log(faster))))
        if compute.training_factor is None and not trains_as_told:
            trains = float(np.exp(stream(seed, "error of training", number).uniform(*np.log(TRAINS))))
        rides, trace = available("network/traces"), network.trace
        if trace in rides and not self._traced:
            trace = str(stream(seed, "error of the trace", number).choice(rides))
        links = 1.0
        if network.profile in TESTS:
            rng = stream(seed, "error of the links", number)
            links = sampled_factor(str(network.profile), TESTS[str(network.profile)], rng)
        return DrawnSystem(
            speed=speed,
            network_error=self._of_network(scenario, compute.cost, "clients", number),
            training_factor=trains,
            server_error=self._of_network(scenario, scenario.server.cost or compute.cost, "server", number),
            links=links,
            trace=trace,
        )

    def of_devices(self, scenario: Scenario, number: int, trains_as_told: bool, n: int) -> np.ndarray:
        """Draw the factor (N,) on the time of each client's device, beyond that of all."""
        compute, own = scenario.clients.compute, np.zeros(n)
        if compute.profile == PHONES:
            own += stream(scenario.seed, "errors of single phones", number).normal(0, SPREAD, n)
        if compute.training_factor is None and not trains_as_told:
            own += stream(scenario.seed, "errors of training on single phones", number).normal(0, TRAINS_SPREAD, n)
        return np.exp(own)

    def _of_network(self, scenario: Scenario, profile: str | None, node: str, number: int) -> float:
        """Draw the error of this network at a node from those that were measured; 1 with a cost profile of one's own.

        Of n networks, another one lies below the k-th smallest with probability k / (n + 1).
        """
        cost, model = profile or MACS, scenario.model
        if (cost, node) not in self._networks:
            return 1.0
        rng = stream(scenario.seed, f"error of {model.factory or model.path or model.name} at {node}", number)
        return float(np.exp(np.quantile(self._networks[cost, node], rng.uniform(), method="weibull")))
