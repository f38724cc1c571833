"""One folder a run: written beside its final place, moved there when whole, never over another run.

While a run is under way its files lie in `<out>.partial`, one cell for every variant and seed; `join` makes of the
cells the tables that docs/output.md describes, and `publish` moves them. So a folder at `<out>` is always readable.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import save_file

from sfl_sim.errors import ScenarioError
from sfl_sim.records import CONFUSION_COLUMNS, OP_COLUMNS

TABLES = ["rounds", "labels", "confusion", "answers", "representations", "clients", "layers", "ops"]
SERVING_TABLES = ["requests", "fleet"]
ROWS_PER_GROUP = 100_000

_TEXT = pa.dictionary(pa.int32(), pa.string())
_OP_SCHEMA = pa.schema(
    [
        ("variant", _TEXT), ("seed", pa.int64()), ("node", _TEXT), ("kind", _TEXT), ("round", pa.int32()),
        ("step", pa.int32()), ("client", pa.int32()), ("requested_s", pa.float64()), ("started_s", pa.float64()),
        ("ended_s", pa.float64()), ("macs", pa.float64()), ("bytes", pa.int64()),
    ]
)  # fmt: skip


class Cell:
    """The part of a run that one variant with one seed writes."""

    def __init__(self, folder: Path, variant: str, seed: int) -> None:
        self.folder = folder
        self.variant = variant
        self.seed = seed
        shutil.rmtree(folder, ignore_errors=True)  # what an earlier run left unfinished
        folder.mkdir(parents=True)
        self._rounds: list[dict[str, Any]] = []
        self._labels: list[dict[str, Any]] = []
        self._confusion: list[pd.DataFrame] = []
        self._waiting: list[NDArray[np.void]] = []
        self._ops = pq.ParquetWriter(folder / "ops.parquet", _OP_SCHEMA, compression="zstd")

    def add_clients(self, clients: pd.DataFrame) -> None:
        """The fleet: one row per client."""
        self._write("clients", clients)

    def add_layers(self, layers: pd.DataFrame) -> None:
        """The model: one row per layer."""
        self._write("layers", layers)

    def add_round(
        self,
        row: Mapping[str, Any],
        labels: Sequence[Mapping[str, Any]],
        ops: NDArray[np.void],
        confusion: pd.DataFrame | None = None,
    ) -> None:
        """What one round gave; operations go to disk in large row groups, so memory hardly grows over rounds."""
        self._rounds.append(dict(row))
        self._labels.extend(map(dict, labels))
        self._waiting.append(ops)
        if confusion is not None:
            self._confusion.append(confusion[CONFUSION_COLUMNS])
        if sum(map(len, self._waiting)) >= ROWS_PER_GROUP:
            self._flush()

    def add_final(self, tables: Mapping[str, pd.DataFrame]) -> None:
        """Tables on the models once training has ended."""
        for name, table in tables.items():
            self._write(name, table)

    @property
    def rounds(self) -> pd.DataFrame:
        """The rounds so far."""
        return pd.DataFrame(self._rounds)

    @property
    def labels(self) -> pd.DataFrame:
        """The per-label rows so far."""
        return pd.DataFrame(self._labels)

    def add_weights(self, tensors: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
        """The global model as safetensors, and a JSON file that says what it is."""
        stem = self.folder / "checkpoint"
        save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, f"{stem}.safetensors")
        _write_json(stem.with_suffix(".json"), about)

    def close(self, summary: Mapping[str, Any]) -> None:
        """Write what is still in memory; only a closed cell becomes part of the run."""
        self._flush()
        self._ops.close()
        self._write("rounds", self.rounds)
        self._write("labels", self.labels)
        if self._confusion:
            self._write("confusion", pd.concat(self._confusion))
        _write_json(self.folder / "summary.json", summary)

    def _write(self, table: str, frame: pd.DataFrame) -> None:
        frame = frame.assign(variant=self.variant, seed=self.seed)
        first = ["variant", "seed"]
        frame[first + [c for c in frame if c not in first]].to_parquet(self.folder / f"{table}.parquet", index=False)

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = np.concatenate(self._waiting)
        self._waiting.clear()
        same = {"variant": self.variant, "seed": self.seed}
        columns = [pa.array([same[name]] * len(rows), pa.string() if name == "variant" else pa.int64())
                   for name in same]  # fmt: skip
        for name in OP_COLUMNS:
            values = rows[name]
            columns.append(pa.array(values.astype(str) if values.dtype.kind == "S" else values))
        table = pa.table(columns, names=[*same, *OP_COLUMNS])
        self._ops.write_table(table.cast(_OP_SCHEMA))


def write_served(folder: Path, requests: pd.DataFrame, fleet: pd.DataFrame, summary: Mapping[str, Any]) -> None:
    """Write the cell that one variant with one seed gives when it is served; the summary, last, closes it."""
    folder.mkdir(parents=True, exist_ok=True)
    requests.to_parquet(folder / "requests.parquet", index=False)
    fleet.to_parquet(folder / "fleet.parquet", index=False)
    _write_json(folder / "summary.json", summary)


class RunFolder:
    """The folder of one run.

    Args:
        out: its final place.
        digest: of the scenario; a folder with another digest is a different run.
        resume: keep the cells that an interrupted or killed run of this scenario has finished.

    Raises ScenarioError if something else lies there, or another process is writing there.
    """

    def __init__(self, out: Path, digest: str, *, resume: bool = False) -> None:
        self.out = out
        self.digest = digest
        if not out.name:
            raise ScenarioError("a run needs a folder of its own", key="--out", found=str(out))
        self.staging = out.with_name(out.name + ".partial")
        for folder in (self.out, self.staging):
            self._refuse_others(folder)
        try:
            if not resume:
                shutil.rmtree(self.staging, ignore_errors=True)
            elif self.out.exists() and not self.staging.exists() and read_manifest(out).get("status") != "complete":
                self.out.rename(self.staging)
            self.staging.mkdir(parents=True, exist_ok=True)
            running = {"scenario": self.digest, "status": "running", "pid": os.getpid()}
            _write_json(self.staging / "manifest.json", running)
        except OSError as error:
            raise ScenarioError(f"cannot write there: {error.strerror}", key="--out", found=str(out)) from error

    def _refuse_others(self, folder: Path) -> None:
        if not folder.exists():
            return
        if not folder.is_dir():
            raise ScenarioError("is a file; a run needs a folder", key="--out", found=str(folder))
        manifest = read_manifest(folder)
        if any(folder.iterdir()) and manifest.get("scenario") != self.digest:
            raise ScenarioError(
                "the folder holds something else than a run of this scenario with these settings; choose another",
                key="--out", found=str(folder),
            )  # fmt: skip
        if manifest.get("status") == "running" and _alive(manifest["pid"]):
            raise ScenarioError(f"process {manifest['pid']} is writing there", key="--out", found=str(folder))

    def finished(self, number: int, rounds: int) -> bool:
        """Whether cell `number` has been closed with all its rounds."""
        try:
            summary = json.loads((self.cell_folder(number) / "summary.json").read_text())
        except (OSError, ValueError):
            return False
        return bool(summary["rounds"] == rounds)

    def cell_folder(self, number: int) -> Path:
        """Where cell `number` lies while the run is under way."""
        return self.staging / "cells" / f"{number:04d}"

    def closed(self) -> dict[int, tuple[dict[str, Any], pd.DataFrame]]:
        """The summary and the rounds of every closed cell, by its number."""
        return {
            int(path.parent.name): (json.loads(path.read_text()), pd.read_parquet(path.with_name("rounds.parquet")))
            for path in sorted(self.staging.glob("cells/*/summary.json"))
        }

    def join(
        self,
        name: str,
        scenario_yaml: str,
        manifest: Mapping[str, Any],
        additions: Mapping[int, Mapping[str, Any]],
    ) -> Path:
        """Join the closed cells into the run's tables, in the staging folder, and give that folder.

        `additions` to the summaries, by the number of the cell, are what only the whole run can tell.
        """
        cells = self._join_tables(TABLES)
        variants = [
            json.loads((cell / "summary.json").read_text()) | dict(additions.get(int(cell.name), {})) for cell in cells
        ]
        _write_json(self.staging / "summary.json", {"scenario": name, "variants": variants})
        checkpoints = self.staging / "checkpoints"
        checkpoints.mkdir(exist_ok=True)
        for cell in cells:
            for path in cell.glob("checkpoint.*"):
                shutil.copyfile(path, checkpoints / f"{cell.name}{path.suffix}")
        return self._describe(scenario_yaml, manifest)

    def join_serving(
        self, name: str, scenario_yaml: str, manifest: Mapping[str, Any], answers: pd.DataFrame | None
    ) -> Path:
        """Join the closed cells of served fleets, as `join` does; the `answers` that they drew from lie beside them."""
        cells = [json.loads((cell / "summary.json").read_text()) for cell in self._join_tables(SERVING_TABLES)]
        if answers is not None:
            answers.to_parquet(self.staging / "answers.parquet", index=False)
        _write_json(self.staging / "serving.json", {"scenario": name, "cells": cells})
        return self._describe(scenario_yaml, manifest)

    def _join_tables(self, tables: Sequence[str]) -> list[Path]:
        """Join these tables of the closed cells, whose folders are given."""
        cells = sorted(path.parent for path in self.staging.glob("cells/*/summary.json"))
        for table in tables:
            parts = [cell / f"{table}.parquet" for cell in cells]
            _concatenate([part for part in parts if part.exists()], self.staging / f"{table}.parquet")
        return cells

    def _describe(self, scenario_yaml: str, manifest: Mapping[str, Any]) -> Path:
        """Say beside the tables what they are of; the cells go once nobody can want them."""
        if manifest["status"] == "complete":  # otherwise `resume` wants them
            shutil.rmtree(self.staging / "cells", ignore_errors=True)
        (self.staging / "scenario.yaml").write_text(scenario_yaml)
        _write_json(self.staging / "manifest.json", {"scenario": self.digest, **manifest})
        return self.staging

    def publish(self) -> Path:
        """Move the joined run to its place; an interrupted one does not replace a complete one. Gives the folder."""
        interrupted = read_manifest(self.staging)["status"] != "complete"
        if interrupted and self.out.exists() and read_manifest(self.out).get("status") == "complete":
            return self.staging
        old = self.out.with_name(self.out.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        if self.out.exists():
            self.out.rename(old)
        self.staging.rename(self.out)
        shutil.rmtree(old, ignore_errors=True)
        return self.out

    def discard(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.staging, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


def free_folder(parent: Path, name: str, digest: str) -> Path:
    """`parent/name`, or `name-2`, `name-3`, ... if different runs lie there."""
    candidate, number = parent / name, 1
    while candidate.exists() and any(candidate.iterdir()) and read_manifest(candidate).get("scenario") != digest:
        number += 1
        candidate = parent / f"{name}-{number}"
    return candidate


def read_manifest(folder: Path) -> dict[str, Any]:
    """The folder's manifest.json; empty if there is none."""
    try:
        found = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    os.replace(part, path)


def _concatenate(sources: Sequence[Path], target: Path) -> None:
    if not sources:
        return
    schemas = [pq.read_schema(source).remove_metadata() for source in sources]
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for source in sources:
            with pq.ParquetFile(source) as file:
                for group in range(file.num_row_groups):
                    rows = [
                        schema.empty_table(),
                        file.read_row_group(group),
                    ]  # null where methods tell different things
                    writer.write_table(pa.concat_tables(rows, promote_options="permissive"))
