import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sfl_sim.report import perfetto
from sfl_sim.report.perfetto import write_trace


@pytest.fixture(scope="module")
def events(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The trace of a small run: two variants, four clients."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "ops.parquet").write_bytes((small_folder / "ops.parquet").read_bytes())
    return read(write_trace(folder)[0])


def read(path: Path) -> pd.DataFrame:
    with gzip.open(path, "rt") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return pd.DataFrame(found)


def test_every_node_has_a_named_track_and_every_variant_a_process(events: pd.DataFrame) -> None:
    def named(kind: str) -> pd.Series:
        meta = events[events["name"] == kind]
        return meta["args"].map(lambda args: args["name"]).groupby(meta["pid"]).agg(set)

    tracks = {f"{node} {client}" for node in ("client", "uplink", "downlink") for client in range(4)}
    assert set().union(*named("process_name")) == {"splitfed_v2, fcfs (seed 0)", "splitfed_v2, cyclic (seed 0)"}
    assert list(named("thread_name")) == [tracks | {"server", "aggregator"}] * 2


def test_an_arrow_leads_from_what_ends_to_what_begins_then_elsewhere(events: pd.DataFrame) -> None:
    slices = events[events["ph"] == "X"]
    slices = slices.assign(requested_us=[1e6 * args["requested_s"] for args in slices["args"]])
    starts, finishes = (events[events["ph"] == ph].set_index("id") for ph in "sf")

    assert starts.index.is_unique
    assert set(starts.index) == set(finishes.index)
    assert (finishes["bp"] == "e").all()
    kinds = set()
    for number, start in starts.iterrows():
        one, other = within(slices, start), within(slices, finishes.loc[number])
        assert one["pid"] == other["pid"]
        assert one["tid"] != other["tid"]
        assert one["args"]["round"] == other["args"]["round"]
        assert other["requested_us"] == pytest.approx(one["ts"] + one["dur"])
        kinds.add((one["cat"], other["cat"]))
    mini_batch = ["client", "uplink", "server", "downlink", "client"]
    assert kinds >= {*pairwise(mini_batch), ("uplink", "aggregator")}


def within(slices: pd.DataFrame, point: pd.Series) -> pd.Series:
    """The slice on the point's track at its instant; of two that touch there, the one that begins."""
    track = slices[(slices["pid"] == point["pid"]) & (slices["tid"] == point["tid"])]
    found = track[(track["ts"] <= point["ts"]) & (point["ts"] <= track["ts"] + track["dur"])]
    return found.sort_values("ts").iloc[-1]


def test_of_a_long_run_the_first_operations_are_shown_and_no_arrow_leads_out_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto, "MAX_EVENTS", 50)

    trace, n_left_out = write_trace(folder)
    found = read(trace)

    assert n_left_out == len(pd.read_parquet(folder / "ops.parquet")) - 50
    assert (found["ph"] == "X").sum() == 50
    assert set(found.loc[found["ph"] == "s", "id"]) == set(found.loc[found["ph"] == "f", "id"])
