"""Read a folder of served requests: what each variant is called and coloured, and what was measured of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.metrics.serving import PARTS
from sfl_sim.report import style
from sfl_sim.report.display import NBSP
from sfl_sim.report.load import Stored, read_tables, reading

ONLINE = ("offload_rate", "latency_budget")
"""Thresholds that move while requests come."""
MAX_DETAILED = 8
"""Largest number of variants whose requests are drawn."""


@dataclass(frozen=True)
class Series(style.Named):
    """Variants that differ in nothing but the rate of requests, as they are called and coloured all over the page.

    Attributes:
        label: unique on the page and escaped.
        family: what was trained and the share of unseen labels it is asked for; members differ in their thresholds.
        threshold: the kind of rule.
    """

    family: Markup
    threshold: str


@dataclass(frozen=True)
class ServedFolder(Stored):
    """Content of one folder.

    Attributes:
        trials: the rows of serving.json, with the parts of the latency as `<part>_s` and `tail_<part>_s`; `variant` is
            as stored, `series` the label of its series, and `falls_behind` 0 or 1, NaN where that is not known.
        groups: a row per variant, seed and group of clients.
    """

    kind = "serving"
    trials: pd.DataFrame
    groups: pd.DataFrame
    series: list[Series]

    @property
    def interrupted(self) -> bool:
        """True if requests of some trials are missing."""
        return bool(self.manifest.get("status", "complete") != "complete")

    @cached_property
    def knows_accuracy(self) -> bool:
        """True if requests were answered by trained models."""
        return bool(self.trials["accuracy"].notna().any())

    @cached_property
    def is_sweep(self) -> bool:
        """True if a series was asked at several rates."""
        return bool((self.trials.groupby("series")["rate_per_s"].nunique() > 1).any())

    @cached_property
    def rate_per_s(self) -> float | None:
        """Rate at which details are shown: the highest that all series have and at which none falls behind.

        If one always does, or that is unknown of all, the lowest that all have; None if they have no rate in common.
        """
        rates = self.trials.groupby("rate_per_s").agg({"series": "nunique", "falls_behind": "max"})
        common = rates[rates["series"] == len(self.series)]
        if common.empty:
            return None
        kept_up = common.index[common["falls_behind"] == 0]
        return float(kept_up.max() if len(kept_up) else common.index.min())

    @property
    def shown_rate(self) -> str:
        """Rate at which details are shown, in words."""
        return "each one's lowest rate" if self.rate_per_s is None else rate(self.rate_per_s)

    @cached_property
    def swept(self) -> list[tuple[Series, pd.DataFrame]]:
        """The series that were asked at several rates, with all their trials."""
        found = [(series, self.trials[self.trials["series"] == series.label]) for series in self.series]
        return [(series, trials) for series, trials in found if trials["rate_per_s"].nunique() > 1]

    @property
    def drawn(self) -> str:
        """Note in captions on which of the requests are drawn."""
        drawn, series = len(self.detailed), len(self.series)
        return self.shown_rate + (f"; {drawn} of {series} variants" if drawn < series else "")

    @cached_property
    def at_rate(self) -> pd.DataFrame:
        """The trials at that rate, one variant for each series; without a common rate, each at its lowest."""
        lowest = self.trials.groupby("series")["rate_per_s"].transform("min")
        shown = self.trials[self.trials["rate_per_s"] == (lowest if self.rate_per_s is None else self.rate_per_s)]
        return shown[shown["variant"] == shown.groupby("series")["variant"].transform("first")]

    @cached_property
    def detailed(self) -> list[tuple[Series, pd.DataFrame]]:
        """The series whose requests are drawn, with their trials at that rate: of too many, rules before thresholds."""
        chosen = self.series
        if len(chosen) > MAX_DETAILED:
            chosen = [series for series in chosen if series.threshold != "fixed"] or chosen
        return [(one, self.at_rate[self.at_rate["series"] == one.label]) for one in chosen[:MAX_DETAILED]]

    def requests(self, trials: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
        """The requests of one variant that count, of all its seeds."""
        found = self.rows("requests", ["seed", "request", *columns], variant=trials["variant"].iloc[0])
        first = (trials["warm_up"] * trials["requests"]).astype(int).set_axis(trials["seed"])
        return found[found["request"] >= found["seed"].map(first)]


def rate(per_s: float) -> str:
    """A rate of requests."""
    return f"{per_s:,.4g}{NBSP}requests/s"


def load_serving(folder: Path) -> ServedFolder:
    """Read what `sfl-sim serve` left in `folder`, leaving the requests on disk.

    Raises ScenarioError if a file is missing, unreadable or changed, or nothing has been served.
    """
    with reading(folder, "serving") as common:
        trials = read_tables(folder, "serving", ["trials"])["trials"]
        rows = [
            {"variant": trial["variant"], "seed": trial["seed"], "group": name, **figures}
            for trial in trials.to_dict("records")
            for name, figures in trial["groups"].items()
        ]
        for parts, prefix in (("parts_s", ""), ("tail_parts_s", "tail_")):
            trials[[f"{prefix}{part}_s" for part in PARTS]] = pd.DataFrame(trials.pop(parts).tolist())[list(PARTS)]
        trials = trials.drop(columns="groups").astype({"falls_behind": float})
        trials["series"] = trials["series"].map(escape)
        groups = pd.DataFrame(rows).astype({"accuracy": float})
        return ServedFolder(**common, trials=trials, groups=groups, series=_series(trials))


def _series(trials: pd.DataFrame) -> list[Series]:
    """Colours tell what was trained, and dashes the thresholds, solid first for rules that are no fixed number.

    If all were trained alike, colours tell the thresholds.
    """
    known = trials.drop_duplicates("series")
    known = known.assign(family=known["trained"].fillna(known["method"]).map(escape))
    if trials["rho"].nunique() > 1:
        known["family"] += known["rho"].map(", ρ = {:g}".format)
    ranked = known.sort_values("threshold", key=lambda kinds: kinds == "fixed", kind="stable")
    colour = pd.factorize(known["family"])[0]
    dash = ranked.groupby("family").cumcount()[known.index].to_numpy()
    if known["family"].nunique() == 1:
        dash, colour = np.divmod(np.arange(len(known)), len(style.VARIANT_COLOURS))
    return [
        Series(
            label=Markup(trial["series"]),
            family=Markup(trial["family"]),
            threshold=trial["threshold"],
            colour=style.VARIANT_COLOURS[colour[i] % len(style.VARIANT_COLOURS)],
            dash=style.DASHES[dash[i] % len(style.DASHES)],
        )
        for i, trial in enumerate(known.to_dict("records"))
    ]
