"""Files of one trial, a variant with a seed: its tables, its weights, its summary; or why it failed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import save

from sfl_sim.errors import NonFiniteError
from sfl_sim.store.checkpoints import CHECKPOINTS
from sfl_sim.store.columns import OP_COLUMNS, OP_DTYPE
from sfl_sim.store.files import MODEL, kept_name, read_json, remove, seal, write_file, write_json
from sfl_sim.store.schema import tables
from sfl_sim.store.tables import opened

ROWS_PER_GROUP = 100_000
ROWS_PER_FRAME = 500
"""Number of rows of a table kept as mappings, which take ten times the memory of a frame's rows."""
SUMMARY, FAILURE, TRACEBACK = "summary.json", "error.json", "traceback.txt"
"""Files of a trial beside its tables: of one that is closed, and of one that failed."""

_TEXT = pa.dictionary(pa.int32(), pa.string())
_OP_TYPES = {name: OP_DTYPE[name] for name in OP_COLUMNS}
_OP_SCHEMA = pa.schema(
    [
        ("variant", _TEXT),
        ("seed", pa.int64()),
        *((name, _TEXT if kind.kind == "S" else pa.from_numpy_dtype(kind)) for name, kind in _OP_TYPES.items()),
        ("joule", pa.float64()),
    ]
)
_PARTICIPANTS_SCHEMA = pa.schema(
    [("variant", _TEXT), ("seed", pa.int64()), ("round", pa.int32()), ("client", pa.int32()), ("cut", pa.int32())]
)


def clear(folder: Path) -> None:
    """Remove the unfinished files of an earlier run from a trial's folder, except its checkpoints and kept models."""
    for path in folder.glob("*"):
        if path.name != CHECKPOINTS and not path.name.startswith(kept_name()):
            remove(path)


class _Growing:
    """A table that grows by a few rows at a time."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._earlier: list[pa.Table] = []

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows += map(dict, rows)
        if len(self._rows) >= ROWS_PER_FRAME:
            self._earlier.append(self._latest())
            self._rows.clear()

    def frame(self) -> pd.DataFrame:
        """Return all rows so far."""
        if not self._earlier:
            return pd.DataFrame(self._rows)
        rows: pd.DataFrame = pa.concat_tables(
            [*self._earlier, self._latest()], promote_options="permissive"
        ).to_pandas()
        return rows

    def _latest(self) -> pa.Table:
        return pa.Table.from_pandas(pd.DataFrame(self._rows), preserve_index=False)


class TrialWriter:
    """Writes the results of one trial, a variant with a seed."""

    def __init__(self, folder: Path, variant: str, seed: int) -> None:
        self.folder = folder
        self.variant = variant
        self.seed = seed
        clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._rounds = _Growing()
        self._labels = _Growing()
        self._looks: dict[str, list[pd.DataFrame]] = {"confusion": [], "leakage": []}
        self._participants: list[pd.DataFrame] = []
        self._waiting: list[NDArray[np.void]] = []
        self._joule: list[NDArray[np.float64]] = []
        self._files = {
            name: opened(folder / f"{name}.parquet", schema)
            for name, schema in (("ops", _OP_SCHEMA), ("participants", _PARTICIPANTS_SCHEMA))
        }

    def add_round(
        self,
        row: Mapping[str, Any],
        labels: Sequence[Mapping[str, Any]],
        ops: NDArray[np.void],
        clients: Sequence[int] = (),
        cuts: Sequence[int] = (),
        confusion: pd.DataFrame | None = None,
        joule: NDArray[np.float64] | None = None,
        leakage: pd.DataFrame | None = None,
    ) -> None:
        """Add the results of a round; operations go to disk in large row groups, so memory hardly grows over rounds.

        Args:
            clients: participants.
            cuts: the cut of each of them; empty without a cut.
            joule: of every operation; None if unknown.
        """
        self._rounds.add([row])
        self._labels.add(labels)
        self._waiting.append(ops)
        participants = pd.DataFrame({"round": row["round"], "client": clients, "cut": cuts or None})
        self._participants.append(participants.sort_values("client"))
        self._joule.append(np.full(len(ops), np.nan) if joule is None else joule)
        for look, table in zip(self._looks.values(), (confusion, leakage), strict=True):
            look += [] if table is None else [table]
        if sum(map(len, self._waiting)) >= ROWS_PER_GROUP:
            self._flush()

    def add_tables(self, tables: Mapping[str, pd.DataFrame]) -> None:
        """Add whole tables, by name."""
        for name, table in tables.items():
            self._write(name, table)

    @property
    def rounds(self) -> pd.DataFrame:
        """Rows of the rounds so far."""
        return self._rounds.frame()

    @property
    def labels(self) -> pd.DataFrame:
        """Rows of the labels so far."""
        return self._labels.frame()

    def add_weights(self, tensors: Mapping[str, NDArray[Any]], about: Mapping[str, Any], name: str = MODEL) -> None:
        """Write a global model, `NAME.safetensors`, and its description, `NAME.json`."""
        stem = self.folder / name
        model = save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
        write_file(stem.with_suffix(".safetensors"), model)
        write_json(stem.with_suffix(".json"), about)

    def close(self, summary: Mapping[str, Any]) -> None:
        """Write the rows that are still in memory, and the checksums; only a closed trial becomes part of the run."""
        self._flush()
        for file in self._files.values():
            file.close()
        looks = {name: pd.concat(look) for name, look in self._looks.items() if look}
        self.add_tables({"rounds": self.rounds, "labels": self.labels, **looks})
        write_json(self.folder / SUMMARY, summary)
        seal(self.folder, "*")

    def _write(self, table: str, frame: pd.DataFrame) -> None:
        """Write a table, its columns in the order of the schema; without rows it has all of them.

        Texts are of one type even where all are unknown, so that tables of trials can be joined.
        """
        columns = tables("run")[table].columns
        frame = frame.assign(variant=self.variant, seed=self.seed)
        known = [name for name in columns if name in frame or frame.empty]
        further = [name for name in frame if name not in known]
        texts = {name: "string" for name in known if columns[name].type == "text"}
        frame = frame.reindex(columns=known + further).astype(texts)
        rows = pa.Table.from_pandas(frame, preserve_index=False)
        rows = rows.replace_schema_metadata()  # with it, pandas cannot read its own type of lists
        pq.write_table(rows, self.folder / f"{table}.parquet", row_group_size=ROWS_PER_GROUP)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = np.concatenate(self._waiting)
        values = {name: rows[name].astype(str) if _OP_TYPES[name].kind == "S" else rows[name] for name in OP_COLUMNS}
        self._append("ops", {**values, "joule": np.concatenate(self._joule)})
        participants = pd.concat(self._participants)
        self._append("participants", {name: participants[name].to_numpy() for name in ("round", "client", "cut")})
        for waiting in (self._waiting, self._joule, self._participants):
            waiting.clear()

    def _append(self, name: str, values: Mapping[str, NDArray[Any]]) -> None:
        """Write rows of a table that grows on the disk."""
        file, n = self._files[name], len(next(iter(values.values())))
        same = {"variant": pa.repeat(self.variant, n), "seed": pa.repeat(self.seed, n)}
        columns = same | {key: pa.array(column, from_pandas=True) for key, column in values.items()}
        file.write_table(pa.table(columns).cast(file.schema))


def write_served(folder: Path, requests: pd.DataFrame, fleet: pd.DataFrame, summary: Mapping[str, Any]) -> None:
    """Write and close the trial of a served variant with one seed."""
    folder.mkdir(parents=True, exist_ok=True)
    requests.to_parquet(folder / "requests.parquet", index=False)
    fleet.to_parquet(folder / "fleet.parquet", index=False)
    write_json(folder / SUMMARY, summary)
    seal(folder, "*")


@dataclass(frozen=True)
class Failure:
    """The reason why a trial failed.

    Attributes:
        round: round in which it failed; None if unknown.
        error: its type and its message, in one line.
    """

    variant: str
    seed: int
    round: int | None
    error: str

    @property
    def diverged(self) -> bool:
        """Whether a loss was no finite number."""
        return self.error.startswith(NonFiniteError.__name__)

    def __str__(self) -> str:
        return f"{self.error} (round {self.round})" if self.round else self.error


def write_failure(folder: Path, failure: Failure, traceback: str = "") -> None:
    """Store a trial's failure in its folder, with the traceback beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TRACEBACK).write_text(traceback, encoding="utf-8", errors="backslashreplace")
    write_json(folder / FAILURE, asdict(failure))


def read_failure(folder: Path) -> Failure | None:
    """Return the failure of the trial in `folder`; None if it did not fail."""
    stored = read_json(folder / FAILURE)
    return Failure(**stored) if stored else None


def is_whole(summary: Mapping[str, Any], rounds: int) -> bool:
    """Return True if a trial has run all its rounds, or has stopped as its scenario says."""
    return bool(summary.get("rounds") == rounds or summary.get("stopped"))


def rounds_of(folder: Path) -> int:
    """Return the number of rounds of the trial in `folder`; 0 if it has not been closed."""
    return int(read_json(folder / SUMMARY).get("rounds", 0))
