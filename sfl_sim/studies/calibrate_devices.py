"""Calibration of devices: rates and training factors from measured latencies, as a profile that a scenario can name."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from sfl_sim.errors import ScenarioError, in_one_line
from sfl_sim.models.part import sample_work, work_of
from sfl_sim.models.price import price_of
from sfl_sim.ops import Work
from sfl_sim.store.files import write_file
from sfl_sim.system.cost import PlainProcessor, read_cost
from sfl_sim.system.profiles import FloatArray, Table, read_table

KEY = "calibrate-devices"
REFERENCE_MACS = 300_774_272
"""MACs of one image through MobileNet-V2, the network to which rates of device profiles refer."""
ABOVE_ZERO = "a number above 0"


@dataclass(frozen=True)
class Calibration:
    """What was found.

    Attributes:
        cost: the cost profile with which it was found.
        devices: one row per device: device, macs_per_s, training_factor (NaN if unknown).
        rows: one row per measurement: device, network, kind (`forward` or `step`), measured_ms, fitted_ms, and
            unseen_ms, the prediction without this measurement (NaN if the device has no other of its kind).
    """

    cost: str
    devices: pd.DataFrame
    rows: pd.DataFrame

    def error(self, kind: str, column: str) -> FloatArray:
        """Return the relative errors of the predictions in `column` for measurements of a kind, as far as known."""
        rows = self.rows[self.rows["kind"] == kind]
        return np.asarray((rows[column] / rows["measured_ms"] - 1).dropna())


def calibrate_devices(measured: Path, cost: str) -> Calibration:
    """Fit the rates and training factors of devices to measured latencies.

    A device's rate is the median of those with which each of its forward passes would take what was measured; its
    training factor is the median ratio of its measured training steps to the steps that this rate gives. A device
    without forward passes takes the median factor of the others, or 1, and gets its rate from its training steps.

    Args:
        measured: CSV file with the columns device; network (of torchvision) or macs, which are taken to cost what the
            reference network's do; forward_ms or step_ms; and if wanted batch (1) and side (224), the side of its
            square images. Cells may be empty.
        cost: cost profile, or `macs`.

    Raises:
        ScenarioError: with file, line and column, if a measurement cannot be used.
    """
    table = read_table(measured, ["device"], KEY)
    table.require("device", np.array([bool(name) for name in table.columns["device"]]), "a name")
    priced, plain = read_cost(cost).processor(1.0), PlainProcessor(1.0)
    batches, sides = _numbers(table, "batch", 1), _numbers(table, "side", 0)
    sizes, samples = _numbers(table, "macs", np.nan), []
    for row in range(len(table.lines)):
        name = _cell(table, "network", row)
        if bool(name) == bool(np.isfinite(sizes[row])):
            raise _problem(table, row, "needs either a network or macs", name or "neither", "one of the two")
        samples.append(Work.of(sizes[row]) if not name else _work(table, row, name, int(sides[row])))
    found = []
    for kind, passes in (("forward", 1), ("step", 3)):
        ms = _numbers(table, f"{kind}_ms", np.nan)
        for row in np.flatnonzero(np.isfinite(ms)).tolist():
            work, name = work_of(samples[row], int(batches[row]), passes), _cell(table, "network", row)
            macs = (priced if name else plain).seconds(work)
            found.append((table.columns["device"][row], name or f"{sizes[row]:g} MACs", kind, ms[row], macs))
    if not found:
        raise ScenarioError(
            "has no measurement", key=KEY, file=str(measured), allowed="a number below forward_ms or step_ms"
        )
    rows = pd.DataFrame(found, columns=["device", "network", "kind", "measured_ms", "reference_macs"])
    return _fit(rows, cost)


def _fit(rows: pd.DataFrame, cost: str) -> Calibration:
    """Fit every device; `rows` holds what each measurement costs in MACs of the reference network."""
    rows = rows.assign(rate=1000 * rows["reference_macs"] / rows["measured_ms"])
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
    slower = rows["device"].map(devices["training_factor"]).where(rows["kind"] == "step", 1.0)
    cost_ms = 1000 * rows["reference_macs"]
    rows["fitted_ms"] = cost_ms * slower / rows["device"].map(devices["macs_per_s"])
    rows["unseen_ms"] = cost_ms / rows.groupby(["device", "kind"])["rate"].transform(_median_of_others)
    return Calibration(cost, devices.rename_axis("device").reset_index(), rows.drop(columns=["rate", "reference_macs"]))


def _median_of_others(rates: pd.Series) -> pd.Series:
    return pd.Series([rates.drop(row).median() for row in rates.index], rates.index)


def write_profile(found: Calibration, out: Path, measured: Path) -> None:
    """Write the devices as a profile for `clients.compute.profile`.

    Raises:
        ScenarioError: `out` is the file of the measurements.
    """
    if out.resolve() == measured.resolve():
        raise ScenarioError("would replace the measurements", key="--out", found=str(out), allowed="another file")
    reference_macs = read_cost(found.cost).reference_macs or REFERENCE_MACS
    text = io.StringIO()
    text.write("# what: devices with rates and training factors of one's own\n")
    text.write(f"# source: {in_one_line(measured.name)}\n")
    text.write("# unit: ms_per_frame in ms for one image; reference_macs in MACs for it\n")
    text.write(f"# derived: by sfl-sim calibrate-devices with cost {found.cost}, which a scenario should name, too\n")
    table = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)  # a name may begin with #, as notes do
    table.writerow(["device", "ms_per_frame", "reference_macs", "training_factor"])
    for device, rate, factor in found.devices.itertuples(index=False):
        frame_ms = 1000 * reference_macs / rate
        told = 1.0 if np.isnan(factor) else float(f"{factor:.4g}")
        table.writerow([device, float(f"{frame_ms:.6g}"), round(reference_macs), told])
    write_file(out, text.getvalue().encode())


def _cell(table: Table, column: str, row: int) -> str:
    return table.columns[column][row] if column in table.columns else ""


def _numbers(table: Table, column: str, default: float) -> FloatArray:
    """Read a column of numbers above 0, in which cells may be empty: they count as `default`."""
    cells = table.columns.get(column, [""] * len(table.lines))
    filled = replace(table, columns={**table.columns, column: [cell or "1" for cell in cells]})
    numbers = filled.numbers(column)
    filled.require(column, numbers > 0, ABOVE_ZERO)
    if column in ("batch", "side"):
        filled.require(column, numbers == np.round(numbers), "a whole number above 0")
    return np.where([bool(cell) for cell in cells], numbers, default)


def _work(table: Table, row: int, name: str, side: int) -> Work:
    """Return the work of one image through a network of torchvision."""
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise _problem(table, row, "column 'network' cannot be used", name, known)
    try:
        return _image_work(name, side or (299 if name == "inception_v3" else 224))
    except (RuntimeError, AssertionError) as error:
        raise _problem(table, row, f"{name} does not take images of this side", side, "another side") from error


@cache
def _image_work(name: str, side: int) -> Work:
    from torchvision.models import get_model

    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    network: nn.Module = get_model(name, **options).to("meta")
    layer, _ = price_of(network, torch.zeros(1, 3, side, side, device="meta"))
    return sample_work([layer])


def _problem(table: Table, row: int, text: str, found: object, allowed: str | list[str]) -> ScenarioError:
    return ScenarioError(text, key=KEY, file=str(table.path), line=table.lines[row], found=found, allowed=allowed)
