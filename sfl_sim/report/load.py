"""Read a run folder into pandas frames; what all readers of stored folders share."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario import yaml_text
from sfl_sim.scenario.load import parse
from sfl_sim.store.columns import (
    ATTENDANCE_COLUMNS,
    BREAKDOWN,
    CLIENT_COLUMNS,
    CONFUSION_COLUMNS,
    LABEL_COLUMNS,
    LAYER_COLUMNS,
    LOSS_COLUMNS,
    PRESENCE_COLUMNS,
    REPLAY_COLUMNS,
    ROUND_COLUMNS,
    STALENESS_COLUMNS,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

EXIT_NUMBERS = ["hybrid_accuracy", "device_accuracy", "server_accuracy", "offload_probability"]
SUMMARY_NUMBERS = [
    "rounds", "simulated_s", "accuracy", "client_accuracy", "performance_gap", "accuracy_spread", "backward_transfer",
    "best_accuracy", "perplexity", *EXIT_NUMBERS, "rho", "target_accuracy", "rounds_to_accuracy", "time_to_accuracy_s",
    "bytes_to_accuracy", "bytes_up", "bytes_down", "joule", "server_model_bytes",
]  # fmt: skip
SUMMARY_COLUMNS = [
    "name", "method", "method_options", "seed", *SUMMARY_NUMBERS, "stopped", "reference", "timeline_digest",
    "weights_digest",
]  # fmt: skip
KEY = ["variant", "seed"]
TABLES = {
    "rounds.parquet": [
        *KEY,
        *ROUND_COLUMNS,
        "performance_gap",
        "hybrid_accuracy",
        *(f"{part}_s" for part in BREAKDOWN),
        *REPLAY_COLUMNS,
        *ATTENDANCE_COLUMNS,
        *STALENESS_COLUMNS,
        "skipped",
        "perplexity",
    ],
    "labels.parquet": [*KEY, *LABEL_COLUMNS, "label_name"],
    "confusion.parquet": [*KEY, *CONFUSION_COLUMNS],
    "clients.parquet": [*KEY, *CLIENT_COLUMNS],
    "layers.parquet": [*KEY, *LAYER_COLUMNS],
    "representations.parquet": [*KEY, "client", "sample", "label", "x", "y", "silhouette"],
}
SOMETIMES = [
    "accuracy", "client_accuracy", "loss", "performance_gap", "hybrid_accuracy", "joule", "skipped", "perplexity",
    *REPLAY_COLUMNS, *ATTENDANCE_COLUMNS, *STALENESS_COLUMNS,
]  # fmt: skip
"""Numbers that some runs do not have: null throughout there."""
NEWER = dict.fromkeys([
    "client_accuracy", "label_samples", "trace_phase_s", "cut", "cost", "layers.parquet", "confusion.parquet",
    "representations.parquet", "joule", "server_model_bytes", "best_accuracy", "reference", "method_options",
    "stopped", "accuracy_spread", *EXIT_NUMBERS, "rho", *REPLAY_COLUMNS, *ATTENDANCE_COLUMNS, *STALENESS_COLUMNS,
    "skipped", "perplexity",
]) | {"assistants_s": 0.0, "training_factor": 1.0}  # fmt: skip
"""Columns and tables that older or other runs lack, with their values there: unknown (None), or known all the same."""
FILES = ["summary.json", "manifest.json", "scenario.yaml", "ops.parquet", *(set(TABLES) - set(NEWER))]


@dataclass(frozen=True)
class Run:
    """Stored run. Every frame has the columns `variant` and `seed`; unknown numbers are NaN."""

    folder: Path
    scenario: dict[str, Any]
    scenario_text: str
    manifest: dict[str, Any]
    summary: pd.DataFrame
    rounds: pd.DataFrame
    labels: pd.DataFrame
    confusion: pd.DataFrame
    clients: pd.DataFrame
    layers: pd.DataFrame
    representations: pd.DataFrame

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

    def ops(self, columns: Sequence[str], variant: str, **where: object) -> pd.DataFrame:
        """The rows of a variant in the large table in which each column named in `where` has the value given there.

        Only row groups that may hold the variant are read; pyarrow's filters read all, since names are a dictionary.
        """
        wanted = {"variant": variant, **where}
        with pq.ParquetFile(self.folder / "ops.parquet") as file:
            place = file.schema_arrow.get_field_index("variant")
            about = [file.metadata.row_group(group).column(place) for group in range(file.num_row_groups)]
            groups = [group for group, column in enumerate(about) if _may_hold(column.statistics, variant)]
            rows = file.read_row_groups(groups, columns=[*dict.fromkeys([*columns, *wanted])])
        for column, value in wanted.items():
            rows = rows.filter(pc.equal(rows[column], value))
        found: pd.DataFrame = rows.select(list(columns)).to_pandas()
        return found

    def answers(self, variant: str) -> pd.DataFrame:
        """Read the answers of the models of `variant` to the clients' own test sets; no rows if none were recorded."""
        path = self.folder / "answers.parquet"
        return pd.read_parquet(path, filters=[("variant", "==", variant)]) if path.exists() else pd.DataFrame()

    def retimed(self, variant: str, seed: int) -> pd.DataFrame:
        """Read times of a round with other systems: columns round, change, before_s, after_s; no rows if unknown."""
        return self._of("retimed", ["round", "change", "before_s", "after_s"], variant, seed)

    def losses(self, variant: str, seed: int) -> pd.DataFrame:
        """Read the operations that were lost; no rows if none could be."""
        return self._of("losses", LOSS_COLUMNS, variant, seed)

    def stays(self, variant: str, seed: int) -> pd.DataFrame:
        """Read from when until when clients were there; no rows if they always were."""
        return self._of("presence", PRESENCE_COLUMNS, variant, seed)

    def _of(self, table: str, columns: Sequence[str], variant: str, seed: int) -> pd.DataFrame:
        path = self.folder / f"{table}.parquet"
        if not path.exists():
            return pd.DataFrame(columns=list(columns))
        return pd.read_parquet(path, filters=[("variant", "==", variant), ("seed", "==", seed)])


def _may_hold(statistics: pq.Statistics | None, value: str) -> bool:
    """Return False if a column with these statistics surely lacks the value."""
    return statistics is None or not statistics.has_min_max or statistics.min <= value <= statistics.max


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


def read_table(path: Path) -> pd.DataFrame:
    """Read a stored table; no rows and no columns without the file."""
    return pd.read_parquet(path) if path.is_file() else pd.DataFrame()


def load(folder: Path) -> Run:
    """Read the run in `folder`, leaving operations and answers on disk.

    Raises:
        ScenarioError: a file is missing or unreadable, or no round has ended yet.
    """
    with reading(folder, FILES, "is not a complete run folder"):
        scenario_text = (folder / "scenario.yaml").read_text(encoding="utf-8")
        scenario = dict(yaml_text.read_value(scenario_text))
        metrics = dict.fromkeys(scenario.get("report", {}).get("metrics", {}))  # the user's own
        tables = TABLES | {"rounds.parquet": [*TABLES["rounds.parquet"], *metrics]}
        run = Run(
            folder,
            scenario,
            scenario_text,
            read_json(folder / "manifest.json"),
            _summary(read_json(folder / "summary.json")),
            *(_table(folder / name, columns, NEWER | metrics) for name, columns in tables.items()),
        )
    if run.rounds.empty:
        raise ScenarioError(f"{folder} has nothing to report: no round has ended")
    return run


def _table(path: Path, columns: list[str], newer: Mapping[str, Any]) -> pd.DataFrame:
    if path.name in newer and not path.exists():
        return pd.DataFrame(columns=columns)
    if pq.read_metadata(path).num_rows == 0:  # without rows, the store knows no columns either
        return pd.DataFrame(columns=columns)
    stored = pq.read_schema(path).names
    lacking = {column: known for column, known in newer.items() if column in columns and column not in stored}
    frame = pd.read_parquet(path, columns=[column for column in columns if column not in lacking]).assign(**lacking)
    return frame.astype({column: float for column in SOMETIMES if column in frame})


def _summary(stored: dict[str, Any]) -> pd.DataFrame:
    frame = pd.DataFrame([NEWER | variant for variant in stored["variants"]])
    frame = frame[SUMMARY_COLUMNS].rename(columns={"name": "variant"})
    return frame.astype(dict.fromkeys(SUMMARY_NUMBERS, float))
