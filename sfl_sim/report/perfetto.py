"""The timeline as a Chrome trace, which ui.perfetto.dev opens: one process per variant, one track per node."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_EVENTS = 200_000
"""Perfetto gets slow beyond; of a longer run, the operations that ended first are shown."""

_ORDER = {"server": 0, "aggregator": 1, "client": 2, "uplink": 3, "downlink": 4, "peer": 5}


def write_trace(run: Path) -> Path:
    """Write `trace.json.gz` from the run's ops.parquet, and give its path."""
    target = run / "trace.json.gz"
    with gzip.open(target, "wt", compresslevel=3) as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        file.write(",\n".join(json.dumps(event, separators=(",", ":")) for event in _events(run)))
        file.write("\n]}\n")
    return target


def _events(run: Path) -> Iterator[dict[str, Any]]:
    processes: dict[str, int] = {}
    tracks: set[tuple[int, int]] = set()
    count = 0
    for batch in pq.ParquetFile(run / "ops.parquet").iter_batches(50_000):
        for op in batch.to_pylist():
            if count >= MAX_EVENTS:
                return
            count += 1
            name = f"{op['variant']} (seed {op['seed']})"
            if name not in processes:
                processes[name] = len(processes) + 1
                yield _meta("process_name", processes[name], 0, name)
            process, track = processes[name], _track(op["node"], op["client"])
            if (process, track) not in tracks:
                tracks.add((process, track))
                owner = "" if op["node"] in {"server", "aggregator"} else f" {op['client']}"
                yield _meta("thread_name", process, track, f"{op['node']}{owner}")
            yield {
                "name": op["kind"], "cat": op["node"], "ph": "X", "pid": process, "tid": track,
                "ts": op["started_s"] * 1e6, "dur": (op["ended_s"] - op["started_s"]) * 1e6,
                "args": {key: op[key] for key in ("round", "step", "client", "requested_s", "macs", "bytes")},
            }  # fmt: skip


def _track(node: str, client: int) -> int:
    """Server and aggregator first, then the device and links of one client after another."""
    return _ORDER[node] if node in {"server", "aggregator"} else 10 * (client + 1) + _ORDER[node]


def _meta(kind: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}
