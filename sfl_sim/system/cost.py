"""How long a node computes for a step: in proportion to its MACs, or by kind of layer and with an overhead per call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import KINDS, Work
from sfl_sim.system.profiles import find, read_table

if TYPE_CHECKING:
    from pathlib import Path

KEY = "clients.compute.cost"


class Processor(Protocol):
    """What computes in a node."""

    def seconds(self, work: Work) -> float:
        """How long it takes."""


@dataclass(frozen=True, slots=True)
class PlainProcessor:
    """Takes equally long for every MAC."""

    macs_per_s: float

    def seconds(self, work: Work) -> float:
        """MACs over MAC/s."""
        return work.macs / self.macs_per_s


@dataclass(frozen=True, slots=True)
class FittedProcessor:
    """Takes so many seconds for a MAC of each kind, and for a call of a layer."""

    conv_s: float
    depthwise_s: float
    dense_s: float
    attention_s: float
    op_s: float

    def seconds(self, work: Work) -> float:
        """Seconds of all MACs and all calls."""
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
    """How time follows from work, for every node of a fleet.

    Attributes:
        name: `macs`, or the cost profile.
        reference_macs: of the network at which MAC/s must be measured; None if any will do.
        processor: makes the processor of a node with these MAC/s.
    """

    name: str
    reference_macs: float | None
    processor: Callable[[float], Processor]


def read_cost(profile: str | Path | None) -> Cost:
    """The cost of MACs alone, or that of a cost profile:

        seconds = sum_k macs_k / (efficiency_k * macs_per_s) + n_ops * overhead_macs / macs_per_s

    scaled so that one sample of the profile's reference network costs its MACs. A device whose MAC/s were measured with
    that network still takes, for it, the time that was measured.

    Raises:
        ScenarioError: there is no such profile, or it cannot be used.
    """
    if profile is None:
        return Cost("macs", None, PlainProcessor)
    efficiencies = [f"{kind}_efficiency" for kind in KINDS]
    reference = [*(f"reference_{kind}_macs" for kind in KINDS), "reference_ops"]
    path = find("costs", profile, KEY)
    table = read_table(path, [*efficiencies, "overhead_macs", *reference], KEY)
    if len(table.lines) > 1:
        raise ScenarioError("a second row", key=KEY, file=str(path), line=table.lines[1], allowed="one row")
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
