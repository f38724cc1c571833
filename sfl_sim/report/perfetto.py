"""The timeline as a Chrome trace, which ui.perfetto.dev opens: one process per variant, one track per node."""

from __future__ import annotations

import gzip
import json
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_EVENTS = 200_000
"""Perfetto gets slow beyond; of a longer run, the operations that ended first are shown."""

_COLUMNS = [
    "variant", "seed", "node", "kind", "client", "started_s", "ended_s", "round", "step", "requested_s", "macs", "bytes"
]  # fmt: skip
_ORDER = {"server": 0, "aggregator": 1, "client": 2, "uplink": 3, "downlink": 4, "peer": 5}


def write_trace(run: Path) -> Path:
    """Write `trace.json.gz` from the run's ops.parquet, and give its path."""
    target = run / "trace.json.gz"
    with gzip.open(target, "wt", compresslevel=1) as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        file.write(",\n".join(_events(run)))
        file.write("\n]}\n")
    return target


def _events(run: Path) -> Iterator[str]:
    """The events as JSON. All but names are numbers, which need no encoder: a tenth of its time."""
    processes: dict[str, int] = {}
    tracks: set[tuple[int, int]] = set()
    left = MAX_EVENTS
    for batch in pq.ParquetFile(run / "ops.parquet").iter_batches(50_000):
        ops = batch.to_pandas()
        for op in islice(zip(*(ops[column].tolist() for column in _COLUMNS), strict=True), left):
            variant, seed, node, kind, client, started_s, ended_s, round, step, requested_s, macs, size_bytes = op
            name = f"{variant} (seed {seed})"
            if name not in processes:
                processes[name] = len(processes) + 1
                yield _meta("process_name", processes[name], 0, name)
            process, track = processes[name], _track(node, client)
            if (process, track) not in tracks:
                tracks.add((process, track))
                owner = "" if node in {"server", "aggregator"} else f" {client}"
                yield _meta("thread_name", process, track, f"{node}{owner}")
            yield (
                f'{{"name":{_quoted(kind)},"cat":"{node}","ph":"X","pid":{process},"tid":{track},'
                f'"ts":{started_s * 1e6},"dur":{(ended_s - started_s) * 1e6},"args":{{"round":{round},"step":{step},'
                f'"client":{client},"requested_s":{requested_s},"macs":{macs},"bytes":{size_bytes}}}}}'
            )
        left -= min(left, len(batch))


_quoted = cache(json.dumps)


def _track(node: str, client: int) -> int:
    """Server and aggregator first, then the device and links of one client after another."""
    return _ORDER[node] if node in {"server", "aggregator"} else 10 * (client + 1) + _ORDER[node]


def _meta(kind: str, process: int, track: int, name: str) -> str:
    return json.dumps({"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}})
