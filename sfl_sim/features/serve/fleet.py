"""Served fleet: the trained models of a variant with one seed answer requests, each of which becomes a row."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sfl_sim.build.clock import server_workers
from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.round_tables import device_groups
from sfl_sim.errors import ScenarioError
from sfl_sim.features.serve.requests import EarlyExit, Thresholds, draw_rows
from sfl_sim.metrics import exit_metrics
from sfl_sim.metrics.serving import request_rows, summary
from sfl_sim.ops import Flow
from sfl_sim.rng import stream
from sfl_sim.scenario.data import RhoOod
from sfl_sim.scenario.sections import Scenario
from sfl_sim.scenario.serving import (
    Exponential,
    FixedThreshold,
    LatencyBudget,
    Lognormal,
    MeasuredService,
    OffloadRate,
    Oracle,
    Serving,
    TraceArrivals,
)
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.orders import ORDERS
from sfl_sim.sim.prices import Prices
from sfl_sim.sim.serving_station import ServingStation
from sfl_sim.system.conditions import mean_one
from sfl_sim.system.profiles import per_client, read_table
from sfl_sim.training.executors import Timing

Ints = NDArray[np.int64]

REQUESTS, REQUESTS_OF_EACH = 10_000, 100
"""Default number of requests: a minimum in all, and an average for each client."""
RATES_PER_S = (1e-6, 1e9)
"""Bounds of a fleet's rate, between which the clock can distinguish requests."""
STEP = 0.05
"""Step by which a request moves an adaptive threshold, as a share of the maximum threshold."""
IN_TIME = 0.95
"""Share of the answers that `latency_budget` wants in time."""
AIMS = {"fixed": "entropy", "offload_rate": "target", "latency_budget": "target_s"}
"""Parameter of each kind of threshold that is shown in tables."""
NEWS = 100
"""Number of progress reports of a serving."""
LATEST_S = 1e10
"""Latest time in a trace: three hundred years, up to which a clock of 64-bit floats resolves microseconds."""

NotifyRequests = Callable[[int, int], None]
"""Callback with the number of requests so far, and in all."""


class Arrivals(NamedTuple):
    """Requests in the order of their arrival.

    Attributes:
        times_s: (R,) float64, seconds since the start, not decreasing.
        clients: (R,) int64, the client of each request.
    """

    times_s: NDArray[np.float64]
    clients: NDArray[np.int64]


def poisson(rates_per_s: ArrayLike, n_requests: int, rng: np.random.Generator) -> Arrivals:
    """Draw the first `n_requests` of independent Poisson processes, one for each client, with the rates (N,).

    They are drawn as one process with the sum of the rates, whose events go to clients in proportion to their rates.
    """
    rates = np.asarray(rates_per_s, dtype=np.float64)
    times_s = np.cumsum(rng.exponential(1 / rates.sum(), n_requests))
    return Arrivals(times_s, rng.choice(len(rates), n_requests, p=rates / rates.sum()))


def read_trace(path: str | Path, n_clients: int, key: str) -> Arrivals:
    """Read requests from a CSV file with the columns `time_s` and `client` (0, 1, ...), in any order.

    Raises ScenarioError with file and line, and the scenario `key` that names the file.
    """
    table = read_table(Path(path), ["time_s", "client"], key)
    times_s, clients = table.numbers("time_s"), table.numbers("client")
    table.require("time_s", (times_s >= 0) & (times_s <= LATEST_S), f"seconds, 0 to {LATEST_S:g}")
    table.require("client", np.isin(clients, np.arange(n_clients)), f"0 to {n_clients - 1}")
    order = np.argsort(times_s, kind="stable")
    return Arrivals(times_s[order], clients[order].astype(np.int64))


class ServedFleet:
    """The clients of a scenario, with the parts that its method deploys to them and to the server, for the clock alone.

    Args:
        scenario: without grid; what its section `serving` says is given to each `serve`.

    Raises ScenarioError if the scenario cannot be used, or its method cannot be served.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        if scenario.servers:
            raise ScenarioError("have no part in serving yet: requests are answered by one server", key="servers")
        experiment = Experiment(scenario, device=None)
        self.fleet = replace(experiment.fleet, processors=experiment.fleet.deployed)
        self.n_labels = experiment.dataset.n_labels
        self.n_clients = len(self.fleet.macs_per_s)
        self.deployed = [experiment.method.deployed(c) for c in range(self.n_clients)]
        self.workers = server_workers(scenario)
        self.table = self._table(experiment.clients()["cut"])

    def check(self, serving: Serving, timing_only: bool) -> None:
        """Check that the serving fits this fleet, before any training; otherwise raises ScenarioError."""
        self._arrivals(serving)
        self._drawn_s(serving)
        if timing_only:
            self._thresholds(serving, None)
        elif isinstance(serving.threshold, FixedThreshold):
            self._per_client(serving.threshold.entropy, "serving.threshold.entropy")
        recorded = self.scenario.data.test
        if serving.rho is not None and not (isinstance(recorded, RhoOod) and serving.rho <= recorded.rho):
            raise ScenarioError(
                "needs answers to as many samples of unseen labels, which data.test: {kind: rho_ood, rho: ...} records",
                key="serving.rho",
                found=serving.rho,
                allowed=f"at most {recorded.rho}" if isinstance(recorded, RhoOod) else None,
            )

    def serve(
        self, serving: Serving, answers: pd.DataFrame | None, notify: NotifyRequests
    ) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Serve the requests; gives a row for each, and the summary.

        Args:
            serving: when they come and how they are answered.
            answers: what this fleet's models answer to each sample of each client's test set; None for a timing-only
                serving, which knows how probably they exit.
            notify: see `NotifyRequests`.
        """
        arrivals, rate_per_s = self._arrivals(serving)
        if answers is not None and serving.rho is not None:
            answers = exit_metrics.at_rho(answers, serving.rho)
        about = self._about(arrivals.clients, answers)
        requests = EarlyExit(self.deployed, about["entropy"].to_numpy(float), self._thresholds(serving, answers))
        clock = self._clock(serving)
        clock.serve(_flows(arrivals, requests, notify))
        rows = request_rows(clock.take_rows()).assign(
            sample=about["sample"],
            correct=about["server_correct"].where(requests.offloaded, about["device_correct"]).astype("boolean"),
            threshold=np.nan if answers is None else requests.in_force,
        )
        return rows, self._summary(serving, rows, rate_per_s, timing_only=answers is None)

    def _about(self, clients: Ints, answers: pd.DataFrame | None) -> pd.DataFrame:
        """Draw for each request a row of its client's answers; without answers, an entropy."""
        if answers is not None:
            rows = draw_rows(answers["client"].to_numpy(), clients, stream(self.scenario.seed, "requested samples"))
            return answers.iloc[rows].reset_index(drop=True)
        entropy = stream(self.scenario.seed, "exits").random(len(clients)) + self._without_choice[clients]
        return pd.DataFrame({"entropy": entropy, "sample": -1, "device_correct": pd.NA, "server_correct": pd.NA})

    def _summary(self, serving: Serving, rows: pd.DataFrame, rate_per_s: float, timing_only: bool) -> dict[str, Any]:
        rule, recorded = serving.threshold, self.scenario.data.test
        value = getattr(rule, AIMS.get(rule.kind, ""), None)
        by_chance = timing_only and isinstance(rule, FixedThreshold | Oracle)
        workers = int(self.workers) if serving.batch.max_size == 1 and math.isfinite(self.workers) else None
        return {
            "method": self.scenario.method.name,
            "requests": len(rows),
            "rate_per_s": rate_per_s,
            "warm_up": serving.warm_up,
            "capacity_per_s": self._capacity_per_s(rows.loc[rows["offloaded"], "client"], serving),
            "threshold": "probability" if by_chance else rule.kind,
            "threshold_value": value if isinstance(value, float) and not by_chance else None,
            "n_labels": self.n_labels,
            "rho": recorded.rho if serving.rho is None and isinstance(recorded, RhoOod) else serving.rho,
            **summary(rows, self.table, serving.warm_up, workers),
        }

    def _capacity_per_s(self, offloaded: pd.Series, serving: Serving) -> float | None:
        """Give the server's maximum rate at this mix of requests, in full batches; None if it has nothing to do."""
        if offloaded.empty or math.isinf(self.workers):
            return None
        if isinstance(serving.service, MeasuredService):
            return float(self.workers / _measured_s(serving.service.file).mean())
        batch = serving.batch.max_size
        batches = [each.server_work.of_batch(batch) for each in self.deployed]
        service_s = np.array([self.fleet.server.seconds(each) / batch for each in batches])
        return float(self.workers / service_s[offloaded].mean())

    def _arrivals(self, serving: Serving) -> tuple[Arrivals, float]:
        """Draw the requests; gives them and the fleet's rate per second."""
        how, n_requests = serving.arrivals, serving.requests or max(REQUESTS, REQUESTS_OF_EACH * self.n_clients)
        if isinstance(how, TraceArrivals):
            times_s, clients = read_trace(Path(how.file), self.n_clients, "serving.arrivals.file")
            if (serving.requests or 0) > len(times_s):
                raise ScenarioError("is more than the trace has", key="serving.requests", found=serving.requests,
                                    allowed=f"up to {len(times_s)}")  # fmt: skip
            arrivals = Arrivals(times_s[: serving.requests], clients[: serving.requests])
            if len(np.unique(arrivals.times_s)) < 2:
                problem = "needs requests at two instants, which tell their rate"
                raise ScenarioError(problem, key="serving.arrivals.file", found=how.file)
            rate_per_s = (len(arrivals.times_s) - 1) / float(np.ptp(arrivals.times_s))
            return arrivals, _possible(rate_per_s, "serving.arrivals.file")
        rates_per_s = self._per_client(how.rate_per_s, "serving.arrivals.rate_per_s")
        rate_per_s = _possible(sum(rates_per_s), "serving.arrivals.rate_per_s")
        return poisson(rates_per_s, n_requests, stream(self.scenario.seed, "arrivals")), rate_per_s

    def _thresholds(self, serving: Serving, answers: pd.DataFrame | None) -> Thresholds:
        """Return the thresholds by which clients offload; without answers they are probabilities of an exit."""
        rule = serving.threshold
        highest = 1.0 if answers is None else math.log(self.n_labels)
        learned = partial(Thresholds, [highest / 2] * self.n_clients, STEP * highest, highest=highest)
        if isinstance(rule, OffloadRate):
            return learned(share=rule.target)
        if isinstance(rule, LatencyBudget):
            return learned(share=1 - IN_TIME, budget_s=rule.target_s)
        if answers is None:
            return Thresholds(self._exit_probability(serving))
        if isinstance(rule, Oracle):
            best = exit_metrics.oracle(answers, exit_metrics.thresholds(self.n_labels)).droplevel(["variant", "seed"])
            return Thresholds(best.reindex(range(self.n_clients)).tolist())
        return Thresholds(self._per_client(rule.entropy, "serving.threshold.entropy"))

    def _exit_probability(self, serving: Serving) -> list[float]:
        if serving.exit_probability is None:
            if np.isfinite(self._without_choice).any():
                raise ScenarioError(
                    "is missing: without training it is unknown how often the devices answer by themselves",
                    key="serving.exit_probability",
                    allowed="0 to 1",
                )
            return [0.0] * self.n_clients
        return self._per_client(serving.exit_probability, "serving.exit_probability")

    @property
    def _without_choice(self) -> NDArray[np.float64]:
        """Thresholds (N,): infinity for clients without a head, which offload all; minus infinity with all layers."""
        return np.array([0.0 if each.head else math.inf if each.back else -math.inf for each in self.deployed])

    def _per_client(self, value: float | list[float], key: str) -> list[float]:
        found: list[float] = per_client(value, self.n_clients, key, zero_allowed=True).tolist()
        return found

    def _drawn_s(self, serving: Serving) -> Callable[[float], float] | None:
        """Return what draws the seconds of each call of the server; None if they are the computed ones."""
        rng = stream(self.scenario.seed, "service times")
        match serving.service:
            case Exponential():
                return rng.exponential
            case Lognormal(cv=cv):
                return lambda mean_s: mean_s * mean_one(rng, cv)
            case MeasuredService(file=file):
                measured_s = _measured_s(file)
                return lambda _: float(rng.choice(measured_s))
        return None

    def _clock(self, serving: Serving) -> EventClock:
        station = partial(
            ServingStation, batch_s=Prices(self.fleet).batch_s, max_batch=serving.batch.max_size,
            max_wait_s=serving.batch.max_wait_s, drawn_s=self._drawn_s(serving),
        )  # fmt: skip
        in_use = replace(self.fleet, presence=None)  # which says when phones are there to train
        seed = self.scenario.seed
        return EventClock(in_use, Timing(), Queueing(ORDERS["fcfs"], self.workers), station=station, seed=seed)

    def _table(self, cuts: pd.Series) -> pd.DataFrame:
        """Make the rows of fleet.parquet: devices, links, and the sizes of the model's parts."""
        fleet, deployed = self.fleet, self.deployed
        front_parameters = [sum(part.part.n_parameters for part in each.front) for each in deployed]
        return pd.DataFrame(
            {
                "client": range(self.n_clients),
                "device": fleet.devices,
                "cut": cuts,
                "macs_per_s": fleet.macs_per_s,
                "uplink_bps": fleet.uplinks.mean_bps,
                "downlink_bps": fleet.downlinks.mean_bps,
                "front_parameters": front_parameters,
                "device_parameters": [each.device_parameters for each in deployed],
                "server_parameters": [each.server_parameters for each in deployed],
                "feature_channels": [each.feature_shape[0] for each in deployed],
                "feature_numel": [math.prod(each.feature_shape) for each in deployed],
                "group": device_groups(fleet),
            }
        )


def _measured_s(file: str) -> NDArray[np.float64]:
    """Read the measured service times of single requests. Raises ScenarioError if the file has none."""
    table = read_table(Path(file), ["service_s"], "serving.service.file")
    measured_s = table.numbers("service_s")
    table.require("service_s", measured_s > 0, "a number above 0")
    return measured_s


def _possible(rate_per_s: float, key: str) -> float:
    """Return the rate of the whole fleet's requests. Raises ScenarioError if it is beyond RATES_PER_S."""
    low, high = RATES_PER_S
    if not low <= rate_per_s <= high:
        problem = "the requests per second of all clients are out of range"
        raise ScenarioError(problem, key=key, found=rate_per_s, allowed=f"{low:g} to {high:g}")
    return rate_per_s


def _flows(arrivals: Arrivals, requests: EarlyExit, notify: NotifyRequests) -> Iterator[tuple[float, Flow]]:
    """Generate every request with its arrival, made when the clock asks for it."""
    n = len(arrivals.clients)
    for number, (at_s, client) in enumerate(zip(arrivals.times_s.tolist(), arrivals.clients.tolist(), strict=True)):
        if number % max(1, n // NEWS) == 0:
            notify(number, n)
        yield at_s, requests.request(number, client)
    notify(n, n)
