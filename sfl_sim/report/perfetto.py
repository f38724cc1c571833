"""The timeline as a Chrome trace, which ui.perfetto.dev opens: one process per variant, one track per node.

Arrows lead from an operation to the one on another track that it causes within the round.
"""

import gzip
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from sfl_sim.metrics.critical_path import Ops, requested_after
from sfl_sim.store import places

MAX_EVENTS = 200_000
"""Perfetto gets slow beyond; of a longer run, the first operations are shown: trial after trial, as they are stored."""

_ORDER = {place: rank for rank, place in enumerate((places.DEVICE, *places.LINKS, places.BACKBONE), start=1)}


def write_trace(run: Path) -> tuple[Path, int]:
    """Write `trace.json.gz` from the run's ops.parquet; give its path, and how many operations are left out of it."""
    target = run / "trace.json.gz"
    stored = pq.ParquetFile(run / "ops.parquet")
    ops = _first_ops(stored)
    with gzip.open(target, "wt", compresslevel=1) as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        file.write(",\n".join(chain(_names(ops), _slices(ops), _arrows(ops))))
        file.write("\n]}\n")
    return target, stored.metadata.num_rows - len(ops)


def _first_ops(stored: pq.ParquetFile) -> pd.DataFrame:
    """The operations that are shown, each with its process, its track, and when it begins and how long it takes."""
    batches, left = [], MAX_EVENTS
    for batch in stored.iter_batches(50_000):
        batches.append(batch.slice(0, left))
        left -= len(batches[-1])
        if not left:
            break
    ops: pd.DataFrame = pa.Table.from_batches(batches).to_pandas()
    process = ops.groupby(["variant", "seed"], observed=True, sort=False).ngroup() + 1
    node = ops["node"].astype(str)
    # Servers and aggregator first, then the device and links of one client after another.
    stations = sorted({*node} - {*_ORDER}, key=lambda name: (name != places.SERVER, len(name), name))
    rank = node.map(_ORDER | {name: -number for number, name in enumerate(stations)})
    track = (len(stations) + 10 * (ops["client"] + 1) + rank).where(rank > 0, -rank)
    begins_us, takes_us = ops["started_s"] * 1e6, (ops["ended_s"] - ops["started_s"]) * 1e6
    return ops.assign(process=process, track=track, begins_us=begins_us, takes_us=takes_us)


def _columns(ops: pd.DataFrame, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(ops[name].tolist() for name in names), strict=True)


def _names(ops: pd.DataFrame) -> Iterator[str]:
    for process, variant, seed in _columns(ops.drop_duplicates("process"), "process", "variant", "seed"):
        yield _meta("process_name", process, 0, f"{variant} (seed {seed})")
    tracks = ops.drop_duplicates(["process", "track"])
    for process, track, node, client in _columns(tracks, "process", "track", "node", "client"):
        owner = f" {client}" if node in _ORDER else ""
        yield _meta("thread_name", process, track, f"{node}{owner}")


def _meta(kind: str, process: int, track: int, name: str) -> str:
    return json.dumps({"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}})


def _slices(ops: pd.DataFrame) -> Iterator[str]:
    """The operations as JSON. All but names are numbers, which need no encoder: a tenth of its time."""
    names = {kind: json.dumps(kind) for kind in ops["kind"].unique()}
    told = "process", "track", "node", "kind", "begins_us", "takes_us"
    for process, track, node, kind, begins_us, takes_us, round, step, client, requested_s, macs, size_bytes in _columns(
        ops, *told, "round", "step", "client", "requested_s", "macs", "bytes"
    ):
        yield (
            f'{{"name":{names[kind]},"cat":"{node}","ph":"X","pid":{process},"tid":{track},"ts":{begins_us},'
            f'"dur":{takes_us},"args":{{"round":{round},"step":{step},"client":{client},'
            f'"requested_s":{requested_s},"macs":{macs},"bytes":{size_bytes}}}}}'
        )


def _arrows(ops: pd.DataFrame) -> Iterator[str]:
    """Draw arrows from the middle of an operation, surely within it, to the start of what its end set off elsewhere."""
    number = 0
    for _, trial in ops.groupby("process"):
        before = requested_after(Ops.of(trial))
        causes = trial.iloc[before].reset_index()
        effects = trial.reset_index()
        leads = (before >= 0) & (causes["track"] != effects["track"]) & (causes["round"] == effects["round"])
        from_us = (causes["begins_us"] + causes["takes_us"] / 2)[leads].tolist()
        for (process, one), (_, other, to_us), at_us in zip(
            _columns(causes[leads], "process", "track"),
            _columns(effects[leads], "process", "track", "begins_us"),
            from_us,
            strict=True,
        ):
            number += 1
            yield (
                f'{{"name":"then","cat":"then","ph":"s","id":{number},"pid":{process},"tid":{one},"ts":{at_us}}},\n'
                f'{{"name":"then","cat":"then","ph":"f","bp":"e","id":{number},"pid":{process},"tid":{other},'
                f'"ts":{to_us}}}'
            )
