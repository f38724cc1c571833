"""Compute time of steps: in proportion to their MACs, or by kind of layer, with overheads for calls and moved data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sfl_sim.ops import KINDS, Work
from sfl_sim.system.profiles import FloatArray, find, read_row

KEY = "clients.compute.cost"
WORK_COLUMNS = [*(f"{kind}_macs" for kind in KINDS), "calls", "pointwise_macs", "grouped_macs", "moved",
                "pointwise_backward_macs", "weights", "updated", "padded"]  # fmt: skip
"""Columns with the amounts of a `Work` in tables of what was measured, besides `macs`; the last two may be missing."""
MACS = "macs"
FINER_COLUMNS = (
    "pointwise_efficiency", "grouped_efficiency", "moved_macs", "weight_macs", "padded_macs", "update_macs",
    "pointwise_backward", "reference_pointwise_macs", "reference_grouped_macs", "reference_moved", "reference_weights",
    "reference_padded",
)  # fmt: skip
"""Columns that a cost profile may leave out."""


class Processor(Protocol):
    """Processor of a node."""

    def seconds(self, work: Work) -> float:
        """Return how long the node computes."""


def amounts(work: Work) -> dict[str, float]:
    """Give the amounts of a work by column: `macs`, and `WORK_COLUMNS`."""
    each = [*work.by_kind, work.n_ops, *work.finer, work.weights, work.updated, work.padded]
    return {"macs": work.macs, **dict(zip(WORK_COLUMNS, each, strict=True))}


def work_of_amounts(found: Mapping[Any, float]) -> Work:
    """Make the work that has these amounts."""
    conv, depthwise, dense, attention, n_ops, pointwise, grouped, moved, backward, weights = (
        found[column] for column in WORK_COLUMNS[:-2]
    )
    by_kind, finer = (conv, depthwise, dense, attention), (pointwise, grouped, moved, backward)
    return Work(sum(by_kind), by_kind, n_ops, finer, weights, *(found.get(column, 0.0) for column in WORK_COLUMNS[-2:]))


@dataclass(frozen=True, slots=True)
class PlainProcessor:
    """Processor that takes equally long for every MAC."""

    macs_per_s: float

    def seconds(self, work: Work) -> float:
        """Divide the MACs by the rate."""
        return work.macs / self.macs_per_s


@dataclass(frozen=True, slots=True)
class FittedProcessor:
    """Processor that takes a time for a MAC of each kind, and a time for each call of a layer.

    Attributes:
        conv_s, depthwise_s, dense_s, attention_s: seconds of a MAC of each kind.
        op_s: seconds of a call.
        weight_s: seconds of an element of weights that a call reads.
        update_s: seconds of an element that an optimiser's step reads or writes.
        padded_s: seconds of a MAC of channels that fill up a vector.
        finer_s: further seconds of each of `FINER`, such as those of a MAC of a 1x1 convolution beyond another's.
    """

    conv_s: float
    depthwise_s: float
    dense_s: float
    attention_s: float
    op_s: float
    finer_s: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    weight_s: float = 0.0
    update_s: float = 0.0
    padded_s: float = 0.0

    def seconds(self, work: Work) -> float:
        """Sum the seconds of all MACs, of all calls and of what is moved."""
        conv, depthwise, dense, attention = work.by_kind
        pointwise, grouped, moved, backward = work.finer
        pointwise_s, grouped_s, moved_s, backward_s = self.finer_s
        return (
            conv * self.conv_s
            + depthwise * self.depthwise_s
            + dense * self.dense_s
            + attention * self.attention_s
            + work.n_ops * self.op_s
            + (pointwise * pointwise_s + grouped * grouped_s + moved * moved_s + backward * backward_s)
            + work.weights * self.weight_s
            + work.updated * self.update_s
            + work.padded * self.padded_s
        )


@dataclass(frozen=True, slots=True)
class CalledProcessor:
    """Processor that takes `call_s` seconds more for work that calls layers, however large its batch is."""

    computing: Processor
    call_s: float

    def seconds(self, work: Work) -> float:
        """Add the time of one call, unless the work has no layers, as an average of models."""
        return self.computing.seconds(work) + (self.call_s if work.n_ops else 0.0)


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


def read_cost(profile: str | Path | None, key: str = KEY) -> Cost:
    """Read a cost profile; without one, or with `macs`, every MAC takes equally long.

    With a profile (profiles/README.md) work takes

        seconds = (sum_k macs_k / efficiency_k + moved * moved_macs + weights * weight_macs + updated * update_macs
                   + padded * padded_macs + n_ops * overhead_macs) / macs_per_s,

    scaled so that one sample of the profile's reference network costs its MACs. A device whose MAC/s were measured with
    that network therefore takes for it the time that was measured. A backward pass counts as two forward passes, but
    1x1 convolutions take `pointwise_backward` forward passes for it.

    Raises ScenarioError if there is no such profile, or it cannot be used.
    """
    if profile is None or str(profile) == MACS:
        return Cost(MACS, None, PlainProcessor)
    efficiencies = [f"{kind}_efficiency" for kind in KINDS]
    reference = [*(f"reference_{kind}_macs" for kind in KINDS), "reference_ops"]
    table = read_row(find("costs", profile, key), [*efficiencies, "overhead_macs", *reference], key)
    given = [column for column in FINER_COLUMNS if column in table.columns]
    for column in [*efficiencies, *(column for column in given if column.endswith("_efficiency"))]:
        table.require(column, table.numbers(column) > 0, "a number above 0")
    for column in ("overhead_macs", *reference, *given):
        table.require(column, table.numbers(column) >= 0, "a number, 0 or above")
    work = np.concatenate([table.numbers(column) for column in reference])
    reference_macs = float(work[:-1].sum())
    table.require(reference[0], np.array([reference_macs > 0]), "MACs above 0, of this or another kind")
    costs = np.concatenate([*(1 / table.numbers(column) for column in efficiencies), table.numbers("overhead_macs")])
    finer = {column: float(table.numbers(column)[0]) for column in given}
    finer_costs, finer_work = _finer(finer, float(costs[0]))
    weight, padded = finer.get("weight_macs", 0.0), finer.get("padded_macs", 0.0)
    others = weight * finer.get("reference_weights", 0.0) + padded * finer.get("reference_padded", 0.0)
    scale = reference_macs / (costs @ work + finer_costs @ finer_work + others)
    costs *= scale
    finer_costs *= scale

    def processor(macs_per_s: float) -> FittedProcessor:
        pointwise, grouped, moved, backward = (finer_costs / macs_per_s).tolist()
        conv, depthwise, dense, attention, op = (costs / macs_per_s).tolist()
        return FittedProcessor(
            conv_s=conv,
            depthwise_s=depthwise,
            dense_s=dense,
            attention_s=attention,
            op_s=op,
            finer_s=(pointwise, grouped, moved, backward),
            weight_s=scale * weight / macs_per_s,
            update_s=scale * finer.get("update_macs", 0.0) / macs_per_s,
            padded_s=scale * padded / macs_per_s,
        )

    return Cost(str(profile), reference_macs, processor)


def _finer(given: Mapping[str, float], conv: float) -> tuple[FloatArray, FloatArray]:
    """Give the costs of `FINER` beyond those of `KINDS`, and their amounts in the reference network.

    Without its column, a 1x1 or grouped convolution costs what others do, moved elements cost nothing, and a backward
    pass costs two forward passes.
    """
    pointwise = 1 / given.get("pointwise_efficiency", 1 / conv)
    grouped = 1 / given.get("grouped_efficiency", 1 / conv)
    backward = given.get("pointwise_backward", 2.0)
    costs = [pointwise - conv, grouped - conv, given.get("moved_macs", 0.0), pointwise * (backward / 2 - 1)]
    work = [given.get(f"reference_{column}", 0.0) for column in ("pointwise_macs", "grouped_macs", "moved")]
    return np.array(costs), np.array([*work, 0.0])  # the reference is a forward pass
