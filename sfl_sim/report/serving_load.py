"""Read a folder of served requests: what each variant is called and coloured, and what was measured of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.serving import PARTS
from sfl_sim.report import style
from sfl_sim.report.display import NBSP
from sfl_sim.report.load import read_json, reading
from sfl_sim.store.reading import read_table
from sfl_sim.store.schema import tables

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TABLES = tables("serving")
FILES = [TABLES["trials"].file, TABLES["requests"].file]
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
class Served:
    """Content of one folder.

    Attributes:
        name: the scenario's.
        trials: the rows of serving.json, with the parts of the latency as `<part>_s` and `tail_<part>_s`; `variant` is
            as stored, `series` the label of its series, and `falls_behind` 0 or 1, NaN where that is not known.
        groups: a row per variant, seed and group of clients.
        interrupted: whether requests of some trials are missing.
        scenario_text: empty if it was not stored.
    """

    folder: Path
    name: str
    trials: pd.DataFrame
    groups: pd.DataFrame
    series: list[Series]
    interrupted: bool
    manifest: dict[str, Any]
    scenario_text: str

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
        found = read_table(
            self.folder, TABLES["requests"], ["seed", "request", *columns], variant=trials["variant"].iloc[0]
        )
        first = (trials["warm_up"] * trials["requests"]).astype(int).set_axis(trials["seed"])
        return found[found["request"] >= found["seed"].map(first)]

    def answers(self) -> pd.DataFrame | None:
        """The table of answers, where models were trained and it was kept."""
        answers = read_table(self.folder, TABLES["answers"])
        return answers if len(answers) else None


def rate(per_s: float) -> str:
    """A rate of requests."""
    return f"{per_s:,.4g}{NBSP}requests/s"


def load_serving(folder: Path) -> Served:
    """Read what `sfl-sim serve` left in `folder`, leaving the requests on disk.

    Raises:
        ScenarioError: a file is missing or unreadable, or nothing has been served.
    """
    with reading(folder, FILES, "holds no served requests"):
        manifest, scenario = folder / "manifest.json", folder / "scenario.yaml"
        about = read_json(manifest) if manifest.is_file() else {"status": "complete"}
        text = scenario.read_text(encoding="utf-8") if scenario.is_file() else ""
        trials = read_table(folder, TABLES["trials"], [*TABLES["trials"].columns])
        if trials.empty:
            raise ScenarioError(f"{folder} has nothing to report: no request was served")
        trials = trials.astype({"falls_behind": float})
        groups = _groups(trials)
        for parts, prefix in (("parts_s", ""), ("tail_parts_s", "tail_")):
            trials[[f"{prefix}{part}_s" for part in PARTS]] = pd.DataFrame(trials.pop(parts).tolist())[list(PARTS)]
        trials["series"] = trials["series"].map(escape)
        interrupted = about["status"] != "complete"
        name = str(read_json(folder / "serving.json")["scenario"])
        return Served(folder, name, trials, groups, _series(trials), interrupted, about, text)


def _groups(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per variant, seed and group, from the nested summaries, which it takes out of `trials`."""
    rows: list[dict[str, Any]] = []
    for variant, seed, groups in zip(trials["variant"], trials["seed"], trials.pop("groups"), strict=True):
        rows += [{"variant": variant, "seed": seed, "group": name, **its} for name, its in groups.items()]
    return pd.DataFrame(rows).astype({"accuracy": float})


def _series(trials: pd.DataFrame) -> list[Series]:
    """Colours tell what was trained, and dashes the thresholds, solid first for rules that are no fixed number.

    If all were trained alike, colours tell the thresholds.
    """
    known = trials.drop_duplicates("series")
    several_rhos = trials["rho"].nunique() > 1
    known = known.assign(family=[_family(trial, several_rhos) for trial in known.to_dict("records")])
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


def _family(trial: dict[Any, Any], several_rhos: bool) -> Markup:
    trained = escape(trial["trained"] or trial["method"])
    return trained + f", ρ = {trial['rho']:g}" if several_rhos else trained
