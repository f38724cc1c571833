"""What a scenario may say about the use of what was trained: who asks, what exits early, and how the server serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import Count, NonNegative, Positive, Probability, Section

BelowOne = Annotated[float, Field(ge=0, lt=1)]
AboveZeroBelowOne = Annotated[float, Field(gt=0, lt=1)]
Rates = Annotated[list[NonNegative], Field(min_length=1)]


class Poisson(Section):
    """Requests that come independently of one another."""

    kind: Literal["poisson"] = "poisson"
    """How requests arrive."""
    rate_per_s: Positive | Rates
    """Requests per second of a client: one rate for all clients, or a list of one for each, 0 for some if need be."""


class Bursts(Section):
    """Requests that come several at a time; the bursts come independently of one another."""

    kind: Literal["bursts"] = "bursts"
    """How requests arrive."""
    rate_per_s: Positive | Rates
    """Requests per second of a client, over the long run: one rate for all clients, or a list of one for each, 0 for
    some if need be."""
    size: Count = 10
    """Requests of a burst."""
    spacing_s: NonNegative = 0.0
    """Seconds between two requests of a burst."""


class Trace(Section):
    """Requests that come when a file says."""

    kind: Literal["trace"] = "trace"
    """How requests arrive."""
    file: Annotated[str, Field(min_length=1)]
    """CSV file with the columns time_s and client, a row for each request."""


def _usually_poisson(value: object) -> object:
    return {"kind": "poisson", **value} if isinstance(value, Mapping) else value


Arrivals = Annotated[Poisson | Bursts | Trace, Field(discriminator="kind"), BeforeValidator(_usually_poisson)]


class FixedThreshold(Section):
    """The same entropy for ever."""

    kind: Literal["fixed"] = "fixed"
    """How clients find the entropy from which on they offload."""
    entropy: NonNegative | Annotated[list[NonNegative], Field(min_length=1)]
    """Nats: one for all clients, or a list of one for each. 0 offloads every request."""


class Oracle(Section):
    """Each client's entropy of best accuracy on its own test set, labels included: an upper bound."""

    kind: Literal["oracle"] = "oracle"
    """How clients find the entropy from which on they offload."""


class OffloadRate(Section):
    """Each client moves its entropy until it offloads a given share of its requests; no labels needed."""

    kind: Literal["offload_rate"] = "offload_rate"
    """How clients find the entropy from which on they offload."""
    target: AboveZeroBelowOne
    """Share of the requests that a client offloads."""


class LatencyBudget(Section):
    """Each client moves its entropy until a given share of its answers come in time; no labels needed."""

    kind: Literal["latency_budget"] = "latency_budget"
    """How clients find the entropy from which on they offload."""
    target_s: Positive
    """Seconds within which an answer is in time."""
    share: AboveZeroBelowOne = 0.95
    """Share of the answers that come in time."""


def _has_kind(value: object) -> object:
    if isinstance(value, Mapping) and "kind" not in value:
        raise ScenarioError("is missing; the whole is written as in {kind: offload_rate, target: 0.3}", key="kind")
    return value


Threshold = Annotated[
    FixedThreshold | Oracle | OffloadRate | LatencyBudget, Field(discriminator="kind"), BeforeValidator(_has_kind)
]


class Batching(Section):
    """Requests that the server answers together."""

    max_size: Count = 1
    """Requests of a batch at most."""
    max_wait_s: NonNegative = 0.0
    """Seconds for which a free server waits at most for a batch to fill, from the arrival of its first request."""


class Serving(Section):
    """Requests to what was trained, and how they are answered: `sfl-sim serve`."""

    arrivals: Arrivals = Poisson(rate_per_s=1.0)
    """When requests come, and to which clients."""
    requests: Count | None = None
    """Requests in all, the first so many of a trace; null means 100 for each client, 10,000 at
    least, or the whole trace."""
    warm_up: BelowOne = 0.1
    """Share of the requests, from the first on, that statistics leave out."""
    threshold: Threshold = Oracle()
    """The entropy of a device's own answer from which on a request is offloaded to the server."""
    exit_probability: Probability | Annotated[list[Probability], Field(min_length=1)] | None = None
    """Timing-only, where entropies are unknown: how probably the device answers by itself, unless the threshold's rule
    is to find out; one number for all clients, or a list of one for each."""
    rho: NonNegative | None = None
    """Requests of labels that a client has not seen, for each one of those that it has: as in data.test (rho_ood), or
    less; null means as there."""
    batch: Batching = Batching()
    """How many requests the server answers together."""
    queue: Literal["fcfs", "priority"] = "fcfs"
    """Whom a free server takes first: who came first, or the client with the lowest of the priorities."""
    priorities: Annotated[list[NonNegative], Field(min_length=1)] | None = None
    """With queue: priority, one number for each client; the lower, the sooner it is served."""

    @model_validator(mode="after")
    def _has_priorities(self) -> Serving:
        if self.queue == "priority" and self.priorities is None:
            raise ScenarioError("is missing, and queue is priority", key="priorities")
        return self
