"""Advice on where to cut a model: a table for the terminal, and what to paste."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Group
from rich.text import Text

from sfl_sim.report.display import duration, percent
from sfl_sim.report.table import Cell, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

BOUND = "Lower bound: of any cuts per client, in any order of service, with links at their best rate."


def advice_in_terminal(choices: pd.DataFrame, cuts: pd.DataFrame, clients: pd.DataFrame) -> Group:
    """One row per variant, and what there is to say of it; the tables are those of an `Advice`."""
    several = len(choices) > 1
    about = "" if choices["bound_s"].isna().all() else BOUND
    titles = [*(["Variant"] if several else []), "Best cut", "Round", "As it is now", "Next best", "Lower bound"]
    rows, notes = [], []
    for row in choices.to_dict("records"):
        series = row["series"]
        names = cuts[cuts["series"] == series].set_index("cut")["name"]
        chosen = clients.loc[clients["series"] == series, "cut"].value_counts().sort_index()
        cells = [_best(chosen, names), duration(row["round_s"]), _own(row), _next(row, names), _bound(row)]
        rows.append(list(map(Cell, [series, *cells] if several else cells)))
        said = " ".join([f"Searched: {row['how']}.", *row["notes"]])
        notes.append(Text(f"{series}: {said}" if several else said))
    return Group(Table(titles, rows, note=about, words=titles).in_terminal(), *notes)


def settings(choices: pd.DataFrame) -> list[str]:
    """An option for each variant that puts the advice into its scenario, to be pasted behind `sfl-sim SCENARIO`."""
    lines = [f"--set {shlex.quote(setting)}" for setting in choices["setting"]]
    return [f"{line}  # {name}" for line, name in zip(lines, choices["series"], strict=True)] if lines[1:] else lines


def _best(chosen: pd.Series[int], names: pd.Series[str]) -> str:
    """The cut, or each cut and how many clients have it."""
    if len(chosen) == 1:
        return f"{chosen.index[0]} {names[chosen.index[0]]}"
    return ", ".join(f"{cut} × {n}" for cut, n in chosen.items())


def _own(row: Mapping[Any, Any]) -> str:
    return f"{duration(row['own_round_s'])} ({row['own_round_s'] / row['round_s']:.2f} ×)"


def _next(row: Mapping[Any, Any], names: pd.Series[str]) -> str:
    cut = row["next_cut"]
    return "–" if pd.isna(cut) else f"{cut} {names[cut]}: {duration(row['next_round_s'])}"


def _bound(row: Mapping[Any, Any]) -> str:
    return "–" if pd.isna(row["bound_s"]) else f"{duration(row['bound_s'])} (gap {percent(row['gap'])})"
