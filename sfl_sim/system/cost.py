"""Compute time of steps: in proportion to their MACs, or by kind of layer and with an overhead per call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sfl_sim.ops import KINDS, Work
from sfl_sim.system.profiles import find, read_row

if TYPE_CHECKING:
    from pathlib import Path

KEY = "clients.compute.cost"


class Processor(Protocol):
    """Processor of a node."""

    def seconds(self, work: Work) -> float:
        """Return how long the node computes."""


@dataclass(frozen=True, slots=True)
class PlainProcessor:
    """Processor that takes equally long for every MAC."""

    macs_per_s: float

    def seconds(self, work: Work) -> float:
        """Divide the MACs by the rate."""
        return work.macs / self.macs_per_s


@dataclass(frozen=True, slots=True)
class FittedProcessor:
    """Processor that takes a time for a MAC of each kind, and a time for each call of a layer."""

    conv_s: float
    depthwise_s: float
    dense_s: float
    attention_s: float
    op_s: float

    def seconds(self, work: Work) -> float:
        """Sum the seconds of all MACs and all calls."""
        conv, depthwise, dense, attention = work.by_kind
        return (
            conv * self.conv_s
            + depthwise * self.depthwise_s
            + dense * self.dense_s
            + attention * self.attention_s
            + work.n_ops * self.op_s
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """Relation of time to work, for every node of a fleet.

    Attributes:
        name: `macs`, or the cost profile.
        reference_macs: MACs of the network with which rates must have been measured; None for any network.
        processor: makes the processor of a node with a rate in MAC/s.
    """

    name: str
    reference_macs: float | None
    processor: Callable[[float], Processor]


def read_cost(profile: str | Path | None) -> Cost:
    """Read a cost profile; without one, every MAC takes equally long.

    With a profile (profiles/README.md) work takes

        seconds = sum_k macs_k / (efficiency_k * macs_per_s) + n_ops * overhead_macs / macs_per_s,

    scaled so that one sample of the profile's reference network costs its MACs. A device whose MAC/s were measured with
    that network therefore takes for it the time that was measured.

    Raises:
        ScenarioError: there is no such profile, or it cannot be used.
    """
    if profile is None:
        return Cost("macs", None, PlainProcessor)
    efficiencies = [f"{kind}_efficiency" for kind in KINDS]
    reference = [*(f"reference_{kind}_macs" for kind in KINDS), "reference_ops"]
    table = read_row(find("costs", profile, KEY), [*efficiencies, "overhead_macs", *reference], KEY)
    for column in efficiencies:
        table.require(column, table.numbers(column) > 0, "a number above 0")
    for column in ("overhead_macs", *reference):
        table.require(column, table.numbers(column) >= 0, "a number, 0 or above")
    work = np.concatenate([table.numbers(column) for column in reference])
    reference_macs = float(work[:-1].sum())
    table.require(reference[0], np.array([reference_macs > 0]), "MACs above 0, of this or another kind")
    costs = np.concatenate([*(1 / table.numbers(column) for column in efficiencies), table.numbers("overhead_macs")])
    costs *= reference_macs / (costs @ work)
    return Cost(str(profile), reference_macs, lambda macs_per_s: FittedProcessor(*(costs / macs_per_s).tolist()))
