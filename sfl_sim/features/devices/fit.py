"""Calibration of devices: rates and training factors from measured latencies, as a profile that a scenario can name."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from sfl_sim.errors import ScenarioError, in_one_line
from sfl_sim.models.part import sample_work, spared_work, work_of
from sfl_sim.models.price import Layer, price_of
from sfl_sim.ops import FINER, KINDS, Work
from sfl_sim.store.files import write_file
from sfl_sim.system.cost import (
    WORK_COLUMNS,
    FittedProcessor,
    PlainProcessor,
    Processor,
    amounts,
    read_cost,
    work_of_amounts,
)
from sfl_sim.system.profiles import FloatArray, ProfileTable, read_table

KEY = "devices fit"
REFERENCE_MACS = 300_774_272
"""MACs of one image through MobileNet-V2, the network to which rates of device profiles refer."""
ABOVE_ZERO = "a number above 0"


UNKNOWN = "?"
"""Time that is to be filled in."""


@dataclass(frozen=True)
class FittedCosts:
    """Costs fitted to measurements, in MACs of the cost profile's compute; 0 where these do not tell one apart.

    Attributes:
        calls: of a call of a layer.
        moved: of an element of activations that is read or written.
        weights: of an element of weights that a call reads.
    """

    calls: float = 0.0
    moved: float = 0.0
    weights: float = 0.0

    def macs(self, calls: Any, moved: Any, weights: Any) -> Any:
        """Price amounts: numbers, or a column of each."""
        return self.calls * calls + self.moved * moved + self.weights * weights


@dataclass(frozen=True)
class Calibration:
    """Devices, and costs, that were fitted to measurements.

    Attributes:
        cost: the cost profile from which it began.
        own: costs of calls, moved data and weights in place of the profile's; None if no others predict better.
        devices: one row per device: device, macs_per_s, training_factor (NaN if unknown).
        rows: one row per measurement: device, network, group (what is left out together: a network, or of a single
            network a part), kind (`forward` or `step`), measured_ms, fitted_ms, and unseen_ms, the prediction without
            the rows of its group (NaN if the device has no others of its kind).
    """

    cost: str
    own: FittedCosts | None
    devices: pd.DataFrame
    rows: pd.DataFrame

    def costs(self) -> dict[str, float]:
        """Give the costs of one's own, by what costs, in MACs at the rates of `devices`; nothing without any."""
        if self.own is None:
            return {}
        scale = REFERENCE_MACS / _reference_cost(self.cost, self.own)
        costs = {"a call": self.own.calls, "a moved element": self.own.moved, "a weight": self.own.weights}
        return {what: scale * macs for what, macs in costs.items()}

    def error(self, kind: str, column: str) -> FloatArray:
        """Return the relative errors of the predictions in `column` for measurements of a kind, as far as known."""
        rows = self.rows[self.rows["kind"] == kind]
        return np.asarray((rows[column] / rows["measured_ms"] - 1).dropna())


def calibrate_devices(measured: Path, cost: str) -> Calibration:
    """Fit rates and training factors of devices, and costs of calls, moved data and weights, to measured times.

    A device's rate is the median of those with which each of its forward passes would take what was measured; its
    training factor is the median ratio of its measured training steps to the steps that this rate gives. A device
    without forward passes takes the median factor of the others, or 1, and gets its rate from its training steps. Costs
    of calls, moved data and weights are common to all devices, and are taken over where they predict left-out rows
    better than the profile's.

    Args:
        measured: CSV file with the columns device; network (of torchvision) or macs, which are taken to cost what the
            reference network's do, or the columns of `devices measure`; forward_ms or step_ms; and if wanted batch (1)
            and side (224), the side of its square images. Cells may be empty.
        cost: cost profile, or `macs`.

    Raises ScenarioError with file, line and column, if a measurement cannot be used.
    """
    table = read_table(measured, ["device"], KEY)
    table.require("device", np.array([bool(name) for name in table.columns["device"]]), "a name")
    batches, sides, sizes = _numbers(table, "batch", 1), _numbers(table, "side", 0), _numbers(table, "macs", np.nan)
    has_work = [_has_work(table, row) for row in range(len(table.lines))]
    amounts = {name: _amounts(table, name) for name in WORK_COLUMNS if name in table.columns} if any(has_work) else {}
    runtimes = [_cell(table, "runtime", row) for row in range(len(table.lines))]
    for row, name in enumerate(runtimes):
        if name != runtimes[0]:  # a call or a kind of layer costs what it costs in one of them
            raise _problem(table, row, "rows of several runtimes: fit each apart", name, runtimes[0])
    measurements = []
    times = {kind: _numbers(table, f"{kind}_ms", np.nan) for kind in ("forward", "step")}
    for row in range(len(table.lines)):
        name = _cell(table, "network", row)
        part = " ".join(filter(None, (_cell(table, "part", row), _cell(table, "cut", row))))
        if not has_work[row] and bool(name) == bool(np.isfinite(sizes[row])):
            raise _problem(table, row, "needs either a network or macs", name or "neither", "one of the two")
        priced = None if has_work[row] else _layer(table, row, name, int(sides[row])) if name else Work.of(sizes[row])
        for kind, passes in (("forward", 1), ("step", 3)):
            if np.isfinite(ms := times[kind][row]):
                own = {column: float(numbers[row]) for column, numbers in amounts.items()}
                work = work_of_amounts(own) if priced is None else _work(priced, int(batches[row]), passes)
                if work.macs == 0:  # of a part that only moves data, which says nothing on a rate
                    continue
                about = (table.columns["device"][row], name or f"{sizes[row]:g} MACs", part, kind, ms)
                measurements.append((*about, work, isinstance(priced, Work)))
    if not measurements:
        problem = "has no measurement"
        raise ScenarioError(problem, key=KEY, file=str(measured), allowed="a number below forward_ms or step_ms")
    rows = pd.DataFrame(measurements, columns=["device", "network", "part", "kind", "measured_ms", "work", "is_plain"])
    several = rows["network"].nunique() > 1
    rows["group"] = rows["network"] if several else rows["part"].where(rows["part"] != "", rows["network"])
    return _calibrated(rows, cost)


SIZES = {"calls": 1e5, "moved": 10.0, "weights": 1.0}
"""Sizes of costs, in MACs, from which a fit begins."""
TERMS = [terms for n in range(len(SIZES) + 1) for terms in combinations(SIZES, n)]
"""Sets of costs that are fitted apart from compute."""
MIN_GROUPS = 4
"""Networks, or parts of one, from which on costs of one's own are fitted."""
BETTER = 0.98
"""Error of left-out rows, over that with the profile's costs, below which costs of one's own are taken over."""
ROBUST = 0.3
"""Error in ln(ms) above which a row counts by its error's size and not by its square."""
NOTHING = 0.01
"""Share of a row's time below which a cost counts as none."""


def _calibrated(rows: pd.DataFrame, cost: str) -> Calibration:
    """Choose between the profile's costs and those that the rows tell, by the errors of groups that are left out."""
    priced, plain = read_cost(cost).processor(1.0), PlainProcessor(1.0)
    prices = [
        (plain if is_plain else priced).seconds(work)
        for work, is_plain in zip(rows["work"], rows["is_plain"], strict=True)
    ]
    works = rows["work"]
    rows = rows.assign(
        macs=prices,
        compute=[_compute(priced).seconds(work) for work in works],
        calls=[work.n_ops for work in works],
        moved=[work.finer[FINER.index("moved")] for work in works],
        weights=[work.weights for work in works],
    )
    unseen: dict[tuple[str, ...] | None, pd.Series] = {None: _unseen(rows, None)}
    if rows["group"].nunique() >= MIN_GROUPS and not rows["is_plain"].any():
        unseen |= {terms: _unseen(rows, terms) for terms in TERMS}
    size = {terms: _size(rows, predicted) for terms, predicted in unseen.items()}
    best = min(size, key=lambda terms: (round(size[terms], 3), len(terms or ())))
    best = best if size[best] < BETTER * size[None] else None
    own, devices = _fit(rows, best)
    rows["fitted_ms"] = _predicted(rows, own, devices)
    rows["unseen_ms"] = unseen[best]
    if own:  # rates are those at which the reference network takes its MACs, whatever they cost
        devices["macs_per_s"] *= REFERENCE_MACS / _reference_cost(cost, own)
    kept = ["device", "network", "group", "kind", "measured_ms", "fitted_ms", "unseen_ms"]
    return Calibration(cost, own, devices.rename_axis("device").reset_index(), rows[kept])


def _size(rows: pd.DataFrame, predicted: pd.Series) -> float:
    """Give the mean error over groups, each with that of its rows, in ln(ms); infinite if nothing was predicted."""
    error = pd.Series(np.abs(np.log((predicted / rows["measured_ms"]).to_numpy(float))), rows.index)
    mean = float(error.groupby(rows["group"]).mean().mean())
    return np.inf if np.isnan(mean) else mean


def _unseen(rows: pd.DataFrame, terms: Sequence[str] | None) -> pd.Series:
    """Predict each group in ms from a fit to the others; NaN for a device that has no others of its kind."""
    predicted = pd.Series(np.nan, rows.index)
    for group in rows["group"].unique():
        is_out = rows["group"] == group
        rest = rows[~is_out]
        if len(rest):
            own, devices = _fit(rest, terms)
            known = pd.MultiIndex.from_frame(rest[["device", "kind"]])
            left = rows[is_out]
            left = left[pd.MultiIndex.from_frame(left[["device", "kind"]]).isin(known)]
            if len(left):
                predicted[left.index] = _predicted(left, own, devices)
    return predicted


def _predicted(rows: pd.DataFrame, own: FittedCosts | None, devices: pd.DataFrame) -> pd.Series:
    slower = rows["device"].map(devices["training_factor"]).where(rows["kind"] == "step", 1.0)
    return 1000 * _macs(rows, own) * slower / rows["device"].map(devices["macs_per_s"])


def _macs(rows: pd.DataFrame, own: FittedCosts | None) -> pd.Series:
    """Price rows in MACs: as the cost profile does, or with costs of one's own."""
    return rows["macs"] if own is None else rows["compute"] + own.macs(rows["calls"], rows["moved"], rows["weights"])


def _fit(rows: pd.DataFrame, terms: Sequence[str] | None) -> tuple[FittedCosts | None, pd.DataFrame]:
    """Fit the costs in `terms`, if these are not the profile's, by robust least squares of ln(ms); then every device.

    Each device has a speed of its own in forward passes and in steps. A cost that makes up next to nothing of every
    row is 0.
    """
    if terms is None:
        return None, _devices(rows, rows["macs"])
    from scipy.optimize import least_squares  # takes a while to import

    amounts = rows[[*terms]].to_numpy(float) * [SIZES[term] for term in terms]
    compute, log_ms = rows["compute"].to_numpy(float), np.log(rows["measured_ms"].to_numpy(float))
    alike = list(rows.groupby(["device", "kind"]).indices.values())

    def errors(log_costs: FloatArray) -> FloatArray:
        error: FloatArray = np.log(compute + amounts @ np.exp(log_costs)) - log_ms
        for same in alike:
            error[same] -= np.median(error[same])
        return error

    own = FittedCosts()
    if terms:
        found = least_squares(errors, np.zeros(len(terms)), bounds=(-12, 12), loss="soft_l1", f_scale=ROBUST)
        parts = amounts * np.exp(found.x)
        counts = (parts.T / (rows["compute"].to_numpy() + parts.sum(axis=1))).max(axis=1) > NOTHING
        costs = {
            term: SIZES[term] * float(np.exp(x))
            for term, x, is_counted in zip(terms, found.x, counts, strict=True)
            if is_counted
        }
        own = FittedCosts(**costs)
    return own, _devices(rows, _macs(rows, own))


def _devices(rows: pd.DataFrame, macs: pd.Series) -> pd.DataFrame:
    """Give each device its rate and its training factor, from what each of its measurements costs in MACs."""
    rows = rows.assign(rate=1000 * macs / rows["measured_ms"])
    forward, step = rows[rows["kind"] == "forward"], rows[rows["kind"] == "step"]
    devices = pd.DataFrame({"macs_per_s": forward.groupby("device")["rate"].median()})
    factors = devices["macs_per_s"].reindex(step["device"]).to_numpy(float) / step["rate"]
    devices = devices.reindex(rows["device"].unique())
    devices["training_factor"] = factors.groupby(step["device"]).median()
    usual = devices["training_factor"].median()
    guess = 1.0 if np.isnan(usual) else usual
    devices.loc[devices["macs_per_s"].isna(), "training_factor"] = guess
    devices["macs_per_s"] = devices["macs_per_s"].fillna(guess * step.groupby("device")["rate"].median())
    devices["training_factor"] = devices["training_factor"].fillna(usual)
    return devices


def _compute(processor: Processor) -> Processor:
    """Return what takes the time of a processor's MACs alone, without calls and without moved data."""
    if not isinstance(processor, FittedProcessor):
        return processor
    pointwise, grouped, _, backward = processor.finer_s
    return replace(processor, op_s=0.0, weight_s=0.0, finer_s=(pointwise, grouped, 0.0, backward))


def write_profile(found: Calibration, out: Path, measured: Path) -> str:
    """Write the devices as a profile for `clients.compute.profile`; gives the cost profile that belongs to it.

    With costs of its own that is a second file, beside it.

    Raises ScenarioError if `out` is the file of the measurements.
    """
    if out.resolve() == measured.resolve():
        raise ScenarioError("would replace the measurements", key="--out", found=str(out), allowed="another file")
    cost = found.cost
    reference_macs = float(read_cost(found.cost).reference_macs or REFERENCE_MACS)
    if found.own:
        cost = str(out.with_name(f"{out.stem}_cost.csv"))
        write_file(Path(cost), _own_profile(found.cost, found.own, in_one_line(measured.name)).encode())
        reference_macs = REFERENCE_MACS
    text = io.StringIO()
    text.write("# what: devices with rates and training factors of one's own\n")
    text.write(f"# source: {in_one_line(measured.name)}\n")
    text.write("# unit: ms_per_frame in ms for one image; reference_macs in MACs for it\n")
    named = in_one_line(Path(cost).name)
    text.write(f"# derived: by sfl-sim devices fit with cost {named}, which a scenario should name, too\n")
    table = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)  # a name may begin with #, as notes do
    table.writerow(["device", "ms_per_frame", "reference_macs", "training_factor"])
    for device, rate, factor in found.devices.itertuples(index=False):
        frame_ms = 1000 * reference_macs / rate
        told = 1.0 if np.isnan(factor) else float(f"{factor:.4g}")
        table.writerow([device, float(f"{frame_ms:.6g}"), round(reference_macs), told])
    write_file(out, text.getvalue().encode())
    return cost


def _reference_cost(cost: str, own: FittedCosts) -> float:
    """Price one image in the network to which rates refer, in MACs of the compute of `cost`."""
    work = sample_work([_image_layer("mobilenet_v2", 224)])
    others = own.macs(work.n_ops, work.finer[FINER.index("moved")], work.weights)
    return _compute(read_cost(cost).processor(1.0)).seconds(work) + float(others)


def _own_profile(cost: str, own: FittedCosts, source: str) -> str:
    """Write a cost profile with costs of calls, moved data and weights in place of those of `cost`."""
    reference = sample_work([_image_layer("mobilenet_v2", 224)])
    compute = _compute(read_cost(cost).processor(1.0))
    each = [Work(1.0, (float(i == 0), float(i == 1), float(i == 2), float(i == 3)), 0.0) for i in range(len(KINDS))]
    seconds = [compute.seconds(work) for work in each]
    conv = Work(1.0, (1.0, 0.0, 0.0, 0.0), 0.0)
    pointwise, grouped, backward = (
        compute.seconds(conv._replace(finer=finer)) for finer in ((1, 0, 0, 0), (0, 1, 0, 0), (1, 0, 0, 1))
    )
    pointwise_macs, grouped_macs, moved, _ = reference.finer
    row = {
        **{f"{kind}_efficiency": 1 / each_s for kind, each_s in zip(KINDS, seconds, strict=True)},
        "pointwise_efficiency": 1 / pointwise, "grouped_efficiency": 1 / grouped,
        "pointwise_backward": 2 * backward / pointwise, "moved_macs": own.moved, "weight_macs": own.weights,
        "overhead_macs": own.calls,
        **{f"reference_{kind}_macs": macs for kind, macs in zip(KINDS, reference.by_kind, strict=True)},
        "reference_pointwise_macs": pointwise_macs, "reference_grouped_macs": grouped_macs,
        "reference_moved": moved, "reference_weights": reference.weights, "reference_ops": reference.n_ops,
    }  # fmt: skip
    nothing = Work.of(0)
    if update := compute.seconds(nothing._replace(updated=1)):
        row["update_macs"] = update
    if padded := compute.seconds(nothing._replace(padded=1)):
        row |= {"padded_macs": padded, "reference_padded": reference.padded}
    header = (
        "# what: cost of a MAC by kind of layer, of elements moved and of weights read, and of a call\n"
        f"# source: {source}\n"
        "# unit: as profiles/README.md says of costs/phones\n"
        f"# derived: by sfl-sim devices fit; efficiencies as in {cost}\n"
    )
    return header + ",".join(row) + "\n" + ",".join(f"{value:.12g}" for value in row.values()) + "\n"


def _has_work(table: ProfileTable, row: int) -> bool:
    """Return True if the row has the columns of `sfl-sim devices measure`, which say what it computes."""
    return all(column in table.columns and table.columns[column][row] for column in WORK_COLUMNS[:-2])


def _amounts(table: ProfileTable, column: str) -> FloatArray:
    """Read a column of amounts, 0 and above, in which cells may be empty: they count as 0."""
    filled = replace(table, columns={**table.columns, column: [cell or "0" for cell in table.columns[column]]})
    numbers = filled.numbers(column)
    filled.require(column, numbers >= 0, "a number, 0 or above")
    return numbers


def _cell(table: ProfileTable, column: str, row: int) -> str:
    return table.columns[column][row] if column in table.columns else ""


def _numbers(table: ProfileTable, column: str, default: float) -> FloatArray:
    """Read a column of numbers above 0, in which cells may be empty or `UNKNOWN`: they count as `default`."""
    cells = ["" if cell == UNKNOWN else cell for cell in table.columns.get(column, [""] * len(table.lines))]
    filled = replace(table, columns={**table.columns, column: [cell or "1" for cell in cells]})
    numbers = filled.numbers(column)
    filled.require(column, numbers > 0, ABOVE_ZERO)
    if column in ("batch", "side"):
        filled.require(column, numbers == np.round(numbers), "a whole number above 0")
    return np.where([bool(cell) for cell in cells], numbers, default)


def work_cells(work: Work) -> dict[str, str]:
    """Give the cells of `WORK_COLUMNS`: the work of all of a row's mini-batch."""
    found = amounts(work)
    return {column: f"{found[column]:.12g}" for column in WORK_COLUMNS}


def _work(priced: Layer | Work, samples: int, passes: int) -> Work:
    """Return the work of a mini-batch, as `Part.work`, of a whole network or of what one sample's pass takes."""
    if isinstance(priced, Work):
        return work_of(priced, samples, passes)
    return work_of(sample_work([priced]), samples, passes, spared_work([priced], gradient=False))


def _layer(table: ProfileTable, row: int, name: str, side: int) -> Layer:
    """Return a network of torchvision, priced with one image as one layer."""
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise _problem(table, row, "column 'network' cannot be used", name, known)
    try:
        return _image_layer(name, side or (299 if name == "inception_v3" else 224))
    except (RuntimeError, AssertionError) as error:
        raise _problem(table, row, f"{name} does not take images of this side", side, "another side") from error


@cache
def _image_layer(name: str, side: int) -> Layer:
    from torchvision.models import get_model

    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    network: nn.Module = get_model(name, **options).to("meta")
    layer, _ = price_of(network, torch.zeros(1, 3, side, side, device="meta"))
    return layer


def _problem(table: ProfileTable, row: int, text: str, found: object, allowed: str | list[str]) -> ScenarioError:
    return ScenarioError(text, key=KEY, file=str(table.path), line=table.lines[row], found=found, allowed=allowed)
