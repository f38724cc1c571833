"""Read a run folder into pandas frames; what all readers of stored folders share."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario import yaml_text
from sfl_sim.scenario.load import parse
from sfl_sim.store.reading import read_table
from sfl_sim.store.schema import tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

TABLES = tables("run")
SUMMARY_NUMBERS = TABLES["summary"].shown
LEFT_OUT = {"breakdown_s", "executor", "threads", "peak_graphs", "key"}
"""Columns of the summary that neither pages nor exports have."""
FILES = ["manifest.json", "scenario.yaml", *(table.file for table in TABLES.values() if table.is_required)]


@dataclass(frozen=True)
class Tables:
    """Tables in memory, all with the columns `variant` and `seed`; unknown numbers are NaN."""

    summary: pd.DataFrame
    rounds: pd.DataFrame
    labels: pd.DataFrame
    confusion: pd.DataFrame
    clients: pd.DataFrame
    layers: pd.DataFrame
    representations: pd.DataFrame


IN_MEMORY = [field.name for field in fields(Tables)]


@dataclass(frozen=True)
class Run(Tables):
    """Stored run."""

    folder: Path
    scenario: dict[str, Any]
    scenario_text: str
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """The scenario's name."""
        return str(self.scenario.get("name", self.folder.name))

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """What repricing has found of each variant and seed; empty if this is no repriced run."""
        return list(self.manifest.get("repriced") or [])

    @cached_property
    def doubtful(self) -> set[str]:
        """The variants of a repriced run of which a seed would have to be trained again."""
        return {verdict["variant"] for verdict in self.verdicts if verdict["reason"] is not None}

    @cached_property
    def settings(self) -> dict[str, dict[str, Any]]:
        """Settings of each variant, by dotted key, with the defaults of this version.

        The seed is the first. Of a scenario that this version does not understand, what it says of all variants.
        """
        known = settings_by_variant(self.scenario)
        return {name: known.get(name) or flat(self.scenario) for name in self.summary["variant"].unique()}

    def rows(self, table: str, columns: Sequence[str] | None = None, **where: object) -> pd.DataFrame:
        """Read rows of a table that may be left on disk; see `read_table`."""
        return read_table(self.folder, TABLES[table], columns, **where)


def settings_by_variant(scenario: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Resolve a scenario: the settings of each variant, with its first seed; none if this version cannot read it."""
    try:
        variants = parse(scenario).variants
    except ScenarioError:
        variants = ()
    first = {variant.name: variant for variant in reversed(variants)}
    return {name: flat(first[name].scenario.model_dump()) for name in dict.fromkeys(v.name for v in variants)}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key; an empty section is a value."""
    pairs: dict[str, Any] = {}
    for key, value in values.items():
        pairs |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return pairs


@contextmanager
def reading(folder: Path, files: Sequence[str], lacking: str) -> Iterator[None]:
    """Read stored `files`, which must be there.

    Raises:
        ScenarioError: the folder is `lacking` in files, or one of them cannot be read.
    """
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ScenarioError(f"{folder} {lacking}: without {', '.join(missing)}")
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ScenarioError(f"{folder} cannot be read: {' '.join(str(error).split())}") from error


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def load(folder: Path) -> Run:
    """Read the run in `folder`, leaving large tables on disk.

    Raises:
        ScenarioError: a file is missing or unreadable, or no round has ended yet.
    """
    with reading(folder, FILES, "is not a complete run folder"):
        scenario_text = (folder / "scenario.yaml").read_text(encoding="utf-8")
        scenario = dict(yaml_text.read_value(scenario_text))
        frames = {name: read_table(folder, TABLES[name], _columns(name, scenario)) for name in IN_MEMORY}
        frames["summary"] = frames["summary"].astype(dict.fromkeys(SUMMARY_NUMBERS, float))
        manifest = read_json(folder / "manifest.json")
        run = Run(**frames, folder=folder, scenario=scenario, scenario_text=scenario_text, manifest=manifest)
    if run.rounds.empty:
        raise ScenarioError(f"{folder} has nothing to report: no round has ended")
    return run


def _columns(table: str, scenario: dict[str, Any]) -> list[str]:
    """List the columns of a table that are read, of rounds the user's own metrics among them."""
    own = scenario.get("report", {}).get("metrics", {}) if table == "rounds" else ()
    return [name for name in (*TABLES[table].columns, *own) if name not in LEFT_OUT]
