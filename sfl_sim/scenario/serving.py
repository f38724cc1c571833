"""Section of a scenario about the use of the trained model: arrivals of requests, early exits, and the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import Count, NonNegative, OnlyWith, Positive, Probability, Section, Unless

BelowOne = Annotated[float, Field(ge=0, lt=1)]
AboveZeroBelowOne = Annotated[float, Field(gt=0, lt=1)]
ArrivalRates = Annotated[list[NonNegative], Field(min_length=1)]


class Poisson(Section):
    """Poisson arrivals: requests come independently of one another."""

    kind: Literal["poisson"] = "poisson"
    """Kind of arrivals."""
    rate_per_s: Positive | ArrivalRates
    """Requests per second of a client: one rate for all clients, or a list of one for each, 0 for some if need be."""


class TraceArrivals(Section):
    """Arrivals given by a file."""

    kind: Literal["trace"] = "trace"
    """Kind of arrivals."""
    file: Annotated[str, Field(min_length=1)]
    """CSV file with the columns time_s and client, a row for each request."""


def _usually_poisson(value: object) -> object:
    return {"kind": "poisson", **value} if isinstance(value, Mapping) else value


ArrivalsSection = Annotated[Poisson | TraceArrivals, Field(discriminator="kind"), BeforeValidator(_usually_poisson)]


class FixedThreshold(Section):
    """A constant entropy threshold."""

    kind: Literal["fixed"] = "fixed"
    """Rule by which clients find their entropy threshold."""
    entropy: NonNegative | Annotated[list[NonNegative], Field(min_length=1)]
    """Threshold in nats: one for all clients, or a list of one for each. 0 offloads every request."""


class Oracle(Section):
    """Threshold of best accuracy on each client's own test set, labels included: an upper bound."""

    kind: Literal["oracle"] = "oracle"
    """Rule by which clients find their entropy threshold."""


class OffloadRate(Section):
    """Threshold that each client adjusts until it offloads a given share of its requests; no labels needed."""

    kind: Literal["offload_rate"] = "offload_rate"
    """Rule by which clients find their entropy threshold."""
    target: AboveZeroBelowOne
    """Share of the requests that a client offloads."""


class LatencyBudget(Section):
    """Threshold that each client adjusts until 95 % of its answers come in time; no labels needed."""

    kind: Literal["latency_budget"] = "latency_budget"
    """Rule by which clients find their entropy threshold."""
    target_s: Positive
    """Seconds within which an answer is in time."""


def _has_kind(example: str) -> BeforeValidator:
    def check(value: object) -> object:
        if isinstance(value, Mapping) and "kind" not in value:
            raise ScenarioError(f"is missing; the whole is written as in {example}", key="kind")
        return value

    return BeforeValidator(check)


Threshold = Annotated[
    FixedThreshold | Oracle | OffloadRate | LatencyBudget,
    Field(discriminator="kind"),
    _has_kind("{kind: offload_rate, target: 0.3}"),
]


class Exponential(Section):
    """Exponential service times, with the computed time as their mean: one queueing theory knows best."""

    kind: Literal["exponential"] = "exponential"
    """Distribution of service times."""


class Lognormal(Section):
    """Lognormal service times, with the computed time as their mean."""

    kind: Literal["lognormal"] = "lognormal"
    """Distribution of service times."""
    cv: Annotated[float, Field(gt=0, le=10)]
    """Coefficient of variation: standard deviation over mean."""


class MeasuredService(Section):
    """Service times of your own server: each call takes one of them, drawn at random, in place of the computed time."""

    kind: Literal["measured"] = "measured"
    """Distribution of service times."""
    file: Annotated[str, Field(min_length=1)]
    """CSV file with the column service_s: seconds of one request at one worker, a row for each that was measured."""


Service = Annotated[
    Exponential | Lognormal | MeasuredService, Field(discriminator="kind"), _has_kind("{kind: lognormal, cv: 0.5}")
]


class Batching(Section):
    """Requests that the server answers together."""

    max_size: Count = 1
    """Maximum of requests in a batch."""
    max_wait_s: Annotated[NonNegative, Unless("max_size", 1)] = 0.0
    """Maximum of seconds for which a free server waits for a batch to fill, from the arrival of its first request."""


class Serving(Section):
    """Requests to the trained model, and the serving of them: `sfl-sim serve`."""

    arrivals: ArrivalsSection = Poisson(rate_per_s=1.0)
    """Arrivals of requests at the clients."""
    requests: Count | None = None
    """Total number of requests, counted from the beginning of a trace; null means 100 for each client, 10,000 at least,
    or the whole trace."""
    warm_up: BelowOne = 0.1
    """Share of the requests, from the first on, that is left out of statistics."""
    threshold: Threshold = Oracle()
    """Entropy of a device's own answer from which on a request is offloaded to the server."""
    exit_probability: Annotated[
        Probability | Annotated[list[Probability], Field(min_length=1)] | None,
        OnlyWith("threshold.kind", "fixed", "oracle"),
    ] = None
    """Probability that the device answers by itself in timing-only runs, where entropies are unknown, unless the
    threshold's rule decides; one number for all clients, or a list of one for each."""
    rho: NonNegative | None = None
    """Number of requests of labels that a client has not seen, per request of those that it has seen: as in data.test
    (rho_ood), or less; null means as there."""
    batch: Batching = Batching()
    """Batches of requests at the server."""
    service: Service | None = None
    """Random times of the server's calls: a section; null means the computed times."""

    @model_validator(mode="after")
    def _measures_what_it_serves(self) -> Serving:
        if isinstance(self.service, MeasuredService) and self.batch.max_size > 1:
            problem = "holds times of single requests, which say nothing about a batch"
            raise ScenarioError(problem, key="service", found="measured", allowed="batch.max_size: 1")
        return self
