"""Read what the variants of a run give away: figures of attacks on what crosses the cut, and pictures of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.pareto import non_dominated
from sfl_sim.report import style
from sfl_sim.report.frames import merge
from sfl_sim.report.load import TABLES, flat, load_unchanged
from sfl_sim.report.results import time_compared
from sfl_sim.scenario import grid
from sfl_sim.store.reading import file_of

if TYPE_CHECKING:
    from pathlib import Path

    from sfl_sim.report.frames import Frames, ShownVariant

CUT = "model.cut"
MEASURES = {"ssim": "SSIM", "token_accuracy": "Tokens read", "psnr": "PSNR (dB)"}
"""What tells how well samples are drawn, the most telling first; the more, the more leaks."""
FIGURES = {
    "inversion ssim": "ssim", "inversion token_accuracy": "token_accuracy", "inversion psnr": "psnr",
    "dependence dcor2_unbiased": "dcor2", "dependence dcor": "dcor", "clusters accuracy": "clusters",
    "nearest accuracy": "nearest", "norm auc": "norm", "commonest label accuracy": "commonest",
}  # fmt: skip
"""Column of each figure by attack and metric."""
BY_CHANCE = " by chance"
"""Ending of the column beside it: what is found where nothing leaks."""


@dataclass(frozen=True)
class PrivacyResults:
    """What the variants of a run give away.

    Attributes:
        frames: the run.
        aim: the accuracy to which `time_s` leads; None if it is the time of a round.
        figures: one row per variant and seed: the summary, the depth of the cut, and after the last round the columns
            of `FIGURES`, of a variant with several cuts where most leaks, each with what is found by chance.
        table: the rows of leakage.parquet on all clients together in the last round, with the variants' labels.
        pictures: reconstructions.parquet, likewise.
        series: name and look of what variants have in common that differ in their cut alone, by variant.
    """

    frames: Frames
    aim: float | None
    figures: pd.DataFrame
    table: pd.DataFrame
    pictures: pd.DataFrame
    series: dict[str, style.Named]

    @cached_property
    def measure(self) -> str:
        """The column of `MEASURES` that is known; empty without inversion."""
        return next((column for column in MEASURES if self.figures[column].notna().any()), "")

    @cached_property
    def middle(self) -> pd.DataFrame:
        """One row per variant: medians over seeds, and `best`: whether the variant is on the Pareto front."""
        numbers = ["cut", "time_s", "accuracy", "performance_gap", *MEASURES, "clusters", "dcor2"]
        middle = self.figures.groupby("variant")[numbers].median().loc[[v.label for v in self.frames.variants]]
        if not self.measure:
            return middle.assign(best=False)
        costs = middle["time_s"], 1 - middle["accuracy"], middle[self.measure]
        known = np.isfinite(middle["time_s"]) & middle[self.measure].notna()
        return middle.assign(best=non_dominated(*costs) & known)

    def of(self, series: style.Named) -> pd.DataFrame:
        """The medians of the variants of a series with one cut each, from the shallowest to the deepest."""
        labels = [label for label, own in self.series.items() if own == series]
        return self.middle.loc[labels].dropna(subset="cut").sort_values("cut")

    def name(self, variant: ShownVariant) -> Markup:
        """The variant's name beside the mark of its series."""
        series = self.series[variant.label]
        return style.Named(variant.label, series.colour, series.dash).html

    @cached_property
    def all_series(self) -> list[style.Named]:
        """The series, in the order of their first variants."""
        return list(dict.fromkeys(self.series.values()))

    @cached_property
    def layers(self) -> dict[int, str]:
        """The names of the layers, by their number."""
        layers = self.frames.layers.drop_duplicates("layer")
        return dict(zip(layers["layer"].astype(int), layers["name"].astype(str), strict=True))

    def known_without(self, attack: str, measure: str) -> float:
        """Give what is drawn without any network before the cut; NaN if that was not tried."""
        rows = self.table.query("cut == 0 and attack == @attack and metric == @measure")
        return float(rows["value"].median())


def load_results(folder: Path) -> PrivacyResults:
    """Read what the variants of the run in `folder` give away. Raises ScenarioError if nobody has measured it."""
    frames = merge([load_unchanged(folder)])
    if file_of(folder, TABLES["leakage"]) is None:
        raise ScenarioError(
            "has no leakage.parquet: report.leakage asks for it, in a run that trains",
            key="SCENARIO",
            found=str(folder),
        )
    labels = {variant.name: variant.label for variant in frames.variants}
    table, pictures = (
        rows.assign(variant=rows["variant"].map(labels))
        for rows in (frames.runs[0].rows(name, list(TABLES[name].columns)) for name in ("leakage", "reconstructions"))
    )
    if table.empty:
        raise ScenarioError(f"{folder} has nothing to report: no attack has given a number")
    is_last = table["round"] == table.groupby(["variant", "seed"])["round"].transform("max")
    last = table[is_last & (table["client"] == -1)]
    attacked = last[last["cut"] > 0]
    attacked = attacked.assign(column=(attacked["attack"] + " " + attacked["metric"]).map(FIGURES))
    found, chance = (
        attacked.pivot_table(what, ["variant", "seed"], "column", "max").reindex(columns=list(FIGURES.values()))
        for what in ("value", "chance")
    )
    found = found.join(chance.add_suffix(BY_CHANCE))
    cuts = attacked.groupby(["variant", "seed"])["cut"].agg(lambda own: own.iloc[0] if own.nunique() == 1 else np.nan)
    aim, time_s = time_compared(frames)
    summary = frames.summary.assign(time_s=time_s)
    summary = summary.merge(found.assign(cut=cuts), how="left", left_on=["variant", "seed"], right_index=True)
    summary = summary.assign(round_bytes=(summary["bytes_up"] + summary["bytes_down"]) / summary["rounds"])
    return PrivacyResults(frames, aim, summary, last, pictures, _series(frames))


def _series(frames: Frames) -> dict[str, style.Named]:
    """Give variants that differ in their cut alone one name and look."""
    scenario = frames.runs[0].scenario
    every, method = list(grid.points(scenario.get("grid") or {})), flat(scenario).get("method.name", "")
    without = grid.names_without(every, method, lambda key: key == CUT)
    common = dict(zip(grid.names(every, method), without, strict=True))
    names = {variant.label: common.get(variant.name, variant.name) for variant in frames.variants}
    looks = {name: style.Named(escape(name), **style.look(i)) for i, name in enumerate(dict.fromkeys(names.values()))}
    return {label: looks[name] for label, name in names.items()}
