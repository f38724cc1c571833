"""Read what `sfl-sim whatif` left in a folder: what was varied, and what a round takes at each point."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.metrics.choices import survival
from sfl_sim.report import style
from sfl_sim.report.display import capitalised
from sfl_sim.report.load import ABOUT, Stored, read_tables, reading
from sfl_sim.scenario.concerns import decided
from sfl_sim.scenario.fields import Decided
from sfl_sim.store.columns import PARTS
from sfl_sim.store.files import contents
from sfl_sim.store.reading import are_numbers, as_stored
from sfl_sim.store.schema import tables as tables_of

CUT = "model.cut"
TITLES = {
    CUT: "cut",
    "clients.network.scale": "bandwidth ×",
    "clients.compute.scale": "device speed ×",
    "clients.count": "clients",
    "clients.network.latency_s": "latency in s",
    "clients.network.uplink_bps": "uplink in bit/s",
    "clients.network.downlink_bps": "downlink in bit/s",
    "server.speedup": "server/client compute ratio",
    "server.macs_per_s": "server's rate in MAC/s",
    "server.workers": "workers",
    "server.order": "order",
    "method.name": "method",
    "train.batch_size": "batch size",
}
"""Names of keys that are often varied; the others are called by their keys."""
OF_A_TIER = {
    "count": "{} servers",
    "workers": "workers of {}",
    "speedup": "{}/client compute ratio",
    "average_every": "rounds between averages of {}",
}
"""Names of the keys of a tier of servers, with the place of its name."""
PARTS_S = [f"{part}_s" for part in PARTS]
CLIENT_PARTS = ["device_s", "uplink_s", "queue_s", "server_s", "downlink_s"]
TABLES = tables_of("whatif")


@dataclass(frozen=True)
class ShownAxis:
    """A setting that was varied; of all tables, column `key` holds indices into its values.

    Attributes:
        values: from the least to the greatest if all are numbers, else as the user gave them.
        names: what to print for them, escaped.
        base: index of the scenario's own value; None if that is not among them.
        shown: index of the value at which the other axes are drawn: the scenario's own, or else the user's middle one.
    """

    key: str
    values: list[Any]
    names: list[Markup]
    base: int | None
    shown: int

    @property
    def title(self) -> Markup:
        """Name of the setting, escaped."""
        section, _, key = self.key.partition(".")
        tier, _, last = key.partition(".")
        if section == "servers" and last in OF_A_TIER:
            return escape(OF_A_TIER[last].format(tier))
        return escape(TITLES.get(self.key, self.key))

    @property
    def noun(self) -> Markup:
        """The title without its unit or sign, as it stands in a sentence."""
        return self.title.removesuffix(" ×").partition(" in ")[0]

    @property
    def is_cut(self) -> bool:
        """True if it is the layer after which the model is cut."""
        return self.key == CUT

    @property
    def is_numeric(self) -> bool:
        """True if its values lie on an axis of numbers; cuts are known by the names of their layers."""
        return not self.is_cut and are_numbers(self.values)

    @property
    def is_chosen(self) -> bool:
        """True if a user decides it: only then one of its values is the best."""
        return decided(self.key) is Decided.BY_THE_USER

    def own_is_bold(self) -> list[Markup]:
        """The names, the scenario's own in bold."""
        return [bold(name) if i == self.base else name for i, name in enumerate(self.names)]

    def said(self, index: int) -> Markup:
        """A value in a sentence: bandwidth ×4."""
        if self.is_cut:
            return bold(self.names[index])
        return self.title + ("" if self.title.endswith("×") else " ") + self.names[index]


def bold(name: Markup) -> Markup:
    """A name in bold."""
    return Markup("<b>{}</b>").format(name)


@dataclass(frozen=True)
class WhatIfFolder(Stored):
    """Content of the folder of a what-if. `series` in all tables are the labels of `series`.

    Attributes:
        axes: what was varied, in the order of the user.
        points: one row per point and seed, with `PARTS_S` that add up to `round_s`.
        clients: one row per point, seed and client.
        overlay: one row per point and seed that was trained; no rows if no run was asked.
        draws: one row per point and drawn system; no rows if none was drawn.
        layers: no rows if unknown.
    """

    kind = "whatif"
    axes: list[ShownAxis]
    series: list[style.Named]
    points: pd.DataFrame
    clients: pd.DataFrame
    overlay: pd.DataFrame
    draws: pd.DataFrame
    layers: pd.DataFrame

    @cached_property
    def along(self) -> ShownAxis:
        """The axis that figures have: the cut, or else the first that a user decides, or else the first."""
        return min(self.axes, key=lambda axis: (not axis.is_cut, not axis.is_chosen))

    @cached_property
    def chosen(self) -> list[ShownAxis]:
        """The axes that a user decides, the one of the figures first; none where the world decides all of them."""
        return [axis for axis in [self.along, *self.others] if axis.is_chosen]

    @property
    def compares(self) -> bool:
        """True if there is something to choose from: what a user decides, or several series."""
        return bool(self.chosen) or len(self.series) > 1

    @cached_property
    def others(self) -> list[ShownAxis]:
        """The other axes, those that the world decides first."""
        return sorted((axis for axis in self.axes if axis is not self.along), key=lambda axis: axis.is_chosen)

    @property
    def across(self) -> ShownAxis | None:
        """The first of the others, of which all values are drawn; what more there are, at one value each."""
        return self.others[0] if self.others else None

    @cached_property
    def drawn(self) -> list[style.Named]:
        """The series that have figures of their own: the first ones that have points in the scenario's own system."""
        return [one for one in self.series if len(self.times(one))][: style.MAX_DETAILED]

    @property
    def n_seeds(self) -> int:
        """Number of seeds."""
        return int(self.points["seed"].nunique())

    @cached_property
    def middle(self) -> pd.DataFrame:
        """One row per point: medians over seeds; `parts` are in proportion to their means and add up to `round_s`."""
        by_point = self.points.groupby(["series", *(axis.key for axis in self.axes)], sort=False)
        numbers = ["round_s", "bytes_up", "bytes_down", "client_memory_bytes", "client_joule"]
        middle = by_point[numbers].median()
        means = by_point[PARTS_S].mean()
        middle[PARTS_S] = means.mul(middle["round_s"] / means.sum(axis="columns"), axis="index")
        return middle.assign(spread_s=by_point["round_s"].std()).reset_index()

    @cached_property
    def survival(self) -> pd.DataFrame:
        """One row per point: its `survival`, and its `round_s` in the scenario's own system (median over seeds)."""
        at = ["series", *(axis.key for axis in self.axes)]
        return survival(self.draws, at).merge(self.middle[[*at, "round_s"]], on=at)

    def in_own_world(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table where all that the world decides is the scenario's own."""
        for axis in self.axes:
            rows = rows if axis.is_chosen else rows[rows[axis.key] == axis.shown]
        return rows

    def here(self, rows: pd.DataFrame, series: style.Named | None = None, across: int | None = None) -> pd.DataFrame:
        """The rows of a table in the scenario's own system, or at another value of `across`."""
        chosen = pd.Series(True, index=rows.index)
        for axis in self.others:
            elsewhere = axis is self.across and across is not None
            chosen &= rows[axis.key] == (across if elsewhere else axis.shown)
        return rows[chosen & ((rows["series"] == series.label) if series else True)]

    def times(self, series: style.Named, across: int | None = None) -> pd.Series:
        """Median seconds of a round by the index on `along`."""
        rows = self.here(self.middle, series, across).set_index(self.along.key)["round_s"]
        return rows.dropna().sort_index()

    def best(self, series: style.Named, across: int | None = None) -> int:
        """The index on `along` of the least median."""
        times_s = self.times(series, across)
        return int(times_s.index[int(times_s.argmin())])

    def heading(self, series: style.Named, text: Markup) -> Markup:
        """Give the heading of a figure, which with several series says whose it is."""
        return series.html + ": " + text if len(self.series) > 1 else capitalised(text)

    @property
    def over_seeds(self) -> str:
        """The note that numbers are medians over seeds, for captions; empty if there is one seed."""
        return " (medians over seeds)" if self.n_seeds > 1 else ""


def where_drawn(axes: list[ShownAxis]) -> Markup:
    """Give a sentence on the values of other axes at which a figure is drawn; empty if there are none."""
    if not axes:
        return Markup("")
    where = Markup(", ").join(axis.said(axis.shown) for axis in axes)
    return " All of it at " + where + ("." if any(axis.base is None for axis in axes) else ", the scenario’s own.")


def load_whatif(folder: Path) -> WhatIfFolder:
    """Read the folder. Raises ScenarioError if a file is missing, unreadable or changed, or no point was evaluated."""
    with reading(folder, "whatif") as common:
        about = contents(folder / ABOUT["whatif"])
        tables = read_tables(folder, "whatif", TABLES, [axis["key"] for axis in about["axes"]])
        for name in tables.keys() - {"layers"}:
            tables[name]["series"] = tables[name]["series"].astype(str).map(escape)
        tables["clients"]["group"] = tables["clients"]["group"].astype(str).map(escape)
        tables["points"] = tables["points"].astype({"client_memory_bytes": float, "client_joule": float})
        known = set(tables["points"]["series"])
        series = [
            style.Named(name, **style.look(i))
            for i, name in enumerate(name for name in map(escape, about["series"]) if name in known)
        ]
        return WhatIfFolder(**common, axes=[_axis(axis, tables) for axis in about["axes"]], series=series, **tables)


def _axis(stored: dict[str, Any], tables: dict[str, pd.DataFrame]) -> ShownAxis:
    """The axis, its numbers in ascending order; in all tables, indices take the place of the values."""
    key, values, base = stored["key"], stored["values"], stored["base"]
    order = sorted(range(len(values)), key=values.__getitem__) if are_numbers(values) else list(range(len(values)))
    rank = np.argsort(order)
    ranks = dict(zip(as_stored(values), rank, strict=True))
    for name, table in tables.items():
        if TABLES[name].further:
            table[key] = table[key].map(ranks).astype(int)
    # The name of a cut has its number before it, since scenarios and tables know it by both.
    names = [
        f"{value} {name}" if key == CUT and str(value) != name else name
        for value, name in zip(values, stored["names"], strict=True)
    ]
    return ShownAxis(
        key,
        values=[values[i] for i in order],
        names=[escape(names[i]) for i in order],
        base=None if base is None else int(rank[base]),
        shown=int(rank[len(values) // 2 if base is None else base]),
    )
