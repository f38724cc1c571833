"""Read stored folders: what all kinds have in common, and runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario import yaml_text
from sfl_sim.scenario.concerns import leaves
from sfl_sim.scenario.given import METRICS
from sfl_sim.scenario.load import parse
from sfl_sim.store.earlier import no_run
from sfl_sim.store.files import contents, read_regular
from sfl_sim.store.folder import check_unchanged
from sfl_sim.store.reading import read_table
from sfl_sim.store.schema import FolderKind, tables

TABLES = tables("run")
SUMMARY_NUMBERS = TABLES["summary"].shown
SETTINGS = "scenario.yaml", "manifest.json"
"""Files of every folder: what was asked, and how and where it was computed."""
LEFT_OUT = ["breakdown_s", "executor", "threads", "peak_graphs", "key"]
"""Columns of the summary that neither pages nor exports have."""
ABOUT: dict[FolderKind, str] = {"run": "summary.json", "serving": "serving.json", "whatif": "whatif.json"}
"""The file by which a folder's kind is known."""
ENTRIES: dict[FolderKind, str] = {"run": "rounds", "serving": "trials", "whatif": "points"}
"""The table without whose rows there is nothing to report."""
BENCHMARK, OWN_LINKS = "benchmark.csv", "as trained"
BENCHMARK_BEFORE, PILOTS_OF_BENCHMARK = "benchmark_before.csv", "pilots.csv"
"""The table of a benchmark's folder, and its name of the links of the training, which no other links can have."""


@dataclass(frozen=True)
class Stored:
    """A stored folder of any kind; what is not read of its tables stays on the disk."""

    kind: ClassVar[FolderKind]
    folder: Path
    scenario: dict[str, Any]
    scenario_text: str
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """The scenario's name."""
        return str(self.scenario.get("name", self.folder.name))

    @cached_property
    def about(self) -> dict[str, Any]:
        """Content of the file in `ABOUT`."""
        return dict(contents(self.folder / ABOUT[self.kind]))

    @cached_property
    def settings(self) -> dict[str, dict[str, Any]]:
        """Settings of each variant, by dotted key, with the defaults of this version; none if it cannot read them."""
        return settings_by_variant(self.scenario)

    @property
    def as_set(self) -> str:
        """What was set, as YAML without defaults; empty if this version cannot read the scenario."""
        try:
            return yaml_text.write(parse(self.scenario).base.model_dump(exclude_defaults=True))
        except ScenarioError:
            return ""

    def rows(self, table: str, columns: Sequence[str] | None = None, **where: object) -> pd.DataFrame:
        """Read rows of a table; see `read_table`."""
        return read_table(self.folder, tables(self.kind)[table], columns, **where)


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
class Run(Tables, Stored):
    """Stored run."""

    kind = "run"

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """What repricing has found of each variant and seed; empty if this is no repriced run."""
        return list(self.manifest.get("repriced") or [])

    @property
    def is_live(self) -> bool:
        """Whether its times were measured: its operations ran on real processes (`sfl-sim live`)."""
        return (self.folder / tables("run")["steps"].file).exists()

    @cached_property
    def doubtful(self) -> set[str]:
        """The variants of a repriced run of which a seed would have to be trained again."""
        return {verdict["variant"] for verdict in self.verdicts if verdict["reason"] is not None}

    @cached_property
    def settings(self) -> dict[str, dict[str, Any]]:
        """As of any folder; of a scenario that this version cannot read, what it says of all variants."""
        known = settings_by_variant(self.scenario)
        return {name: known.get(name) or flat(self.scenario) for name in self.summary["variant"].unique()}


def settings_by_variant(scenario: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Resolve a scenario: the settings of each variant, with its first seed; none if this version cannot read it."""
    try:
        variants = parse(scenario).variants
    except ScenarioError:
        variants = ()
    first = {variant.name: variant for variant in reversed(variants)}
    return {name: flat(first[name].scenario.model_dump()) for name in dict.fromkeys(v.name for v in variants)}


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings by dotted key; an empty section is a value."""
    return dict(leaves(values))


@contextmanager
def reading(folder: Path, kind: FolderKind) -> Iterator[dict[str, Any]]:
    """Read a stored folder; gives what `Stored` holds of it.

    Raises ScenarioError if a file is missing or cannot be read; but for a run, also if one has been changed.
    """
    required = [table.file for table in tables(kind).values() if table.is_required]
    if missing := [
        name for name in dict.fromkeys([*SETTINGS, ABOUT[kind], *required]) if not (folder / name).is_file()
    ]:
        if not folder.is_dir():
            raise no_run(folder, "RUN", f"there is no such folder of a {kind}")
        raise ScenarioError(f"{folder} is not a complete {kind} folder: without {', '.join(missing)}")
    if kind != "run":
        check_unchanged(folder, "folder")
    try:
        scenario, manifest = (folder / name for name in SETTINGS)
        text = read_regular(scenario).decode()
        yield {"folder": folder, "scenario_text": text, "scenario": dict(yaml_text.read_value(text)),
               "manifest": contents(manifest)}  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ScenarioError(f"{folder} cannot be read: {' '.join(str(error).split())}") from error


def read_tables(folder: Path, kind: FolderKind, names: Iterable[str], further: Iterable[str] = ()) -> dict[str, Any]:
    """Read whole tables into frames by name, with `further` columns where the scenario decides on their names.

    Raises ValueError if there is nothing to report.
    """
    described = {name: tables(kind)[name] for name in names}
    frames = {
        name: read_table(folder, table, [*dict.fromkeys([*table.columns, *(further if table.further else ())])])
        for name, table in described.items()
    }
    if frames[ENTRIES[kind]].empty:
        raise ValueError(f"it has no {ENTRIES[kind]}, so that there is nothing to report")
    return frames


def _own_metrics(found: pd.Series) -> pd.DataFrame:
    """Make a column for each of a user's own metrics, named by its key in the scenario."""
    rows = [
        {f"{METRICS}{name}": value for name, value in own.items()} if isinstance(own, dict) else {} for own in found
    ]
    return pd.DataFrame(rows, index=found.index, dtype=float)


def load_unchanged(folder: Path) -> Run:
    """Read a run as `load` does, for what no page shows. Raises ScenarioError also if a file of it has been changed."""
    check_unchanged(folder, "run")
    return load(folder)


def load(folder: Path) -> Run:
    """Read the run in `folder`, leaving large tables on disk. Its page warns of files that have been changed.

    Raises ScenarioError if a file is missing or unreadable, or no round has ended yet.
    """
    with reading(folder, "run") as common:
        frames = read_tables(folder, "run", IN_MEMORY, common["scenario"].get("report", {}).get("metrics", {}))
        summary = frames["summary"].drop(columns=LEFT_OUT).astype(dict.fromkeys(SUMMARY_NUMBERS, float))
        frames["summary"] = summary.drop(columns="metrics").join(_own_metrics(summary["metrics"]))
        return Run(**frames, **common)
