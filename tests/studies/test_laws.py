"""Every kind of run keeps the laws of docs/laws.md, and a row that is changed by hand breaks those that it should."""

import shutil
from dataclasses import replace
from math import inf, nan

import numpy as np
import pandas as pd
import pytest
from small_study import TIMING, run

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import parse
from sfl_sim.sim.orders import ARRIVAL_DRIVEN, ORDERS
from sfl_sim.studies.laws import LAWS, Breach, Untold, held_against, trials_of

FLASH = {"profile": "flash", "begins_at_h": 12}
WORLD = {
    "name": "laws",
    "seed": 1,
    "data": {"name": "synthetic", "shape": [1, 8, 8], "samples": 200, "test_samples": 20},
    "model": {"name": "cnn_small", "cut": 1},
    "clients": {
        "count": 5,
        "compute": {"profile": "ai_benchmark", "scale": 1e-5},
        "network": {"profile": "mobiperf", "scale": 0.01, "latency_s": 0.02, "trace": "hsdpa_bus"},
        "power": {"compute_w": 2.0, "radio": "wifi", "idle_w": 0.1},
    },
    "train": {"rounds": 3, "batch_size": 16},
    "server": {"speedup": 5.0},
    "method": {"name": "splitfed_v2"},
}
FLEET = {"data": {"samples": 1600}, "clients": {"count": 60, "participation": 0.25}}
ORDER = {"server": {"order": "cyclic", "burst": 2}}
KINDS = {
    "main job": {},
    "cyclic": ORDER,
    "shortest job, patience": {
        "grid": [{"server.order": ["shortest_job", "label_aware"]},
                 {"server.order": "bounded_wait", "server.max_wait_s": 0.5}],
    },
    "unreliable fleet": {
        **FLEET,
        "grid": [{"clients.availability": [FLASH | {"lost": "wait"}, FLASH | {"lost": "drop"},
                                           FLASH | {"lost": "deadline", "deadline_s": 30.0}]}],
    },
    "overcommit": {"clients": {"participation": 0.6, "overcommit": 2}},
    "several servers": {
        "method": {"name": "splitfed_v1"},
        "servers": {"edge": {"count": 2, "backbone": {"uplink_bps": 1e6, "downlink_bps": 1e6, "latency_s": 0.01}}},
    },
    "asynchronous": {"grid": {"method.name": ["fedbuff", "fedasync", "gas"]}},
    "wire": {"wire": {"up": {"kind": "int", "bits": 8}}, "clients": {"network": {"overhead": {"message_bytes": 40}}}},
    "replay": {"method": {"name": "korea"}, "clients": {"participation": 0.6}},
    "shared links": {
        "grid": {"clients.network.shared": [{"access_points": 2, "capacity_bps": 1e5},
                                            {"access_points": 2, "capacity_bps": 1e5, "duplex": "half"}]},
    },
    "other methods": {
        "grid": {"method.name": ["fedavg", "splitnn", "u_shaped", "cse_fsl", "epsl", "harmony", "hydra", "mu_splitfed"]}
    },
    "patience": {
        "method": {"name": "korea", "proportion": "fixed", "p0": 0.5, "assistants": "all", "patience_s": 0.5},
        "clients": {"participation": 0.5},
    },
    "kept activations": {"method": {"name": "splitfrozen", "send_once": True}, "train": {"local_epochs": 2}},
    "two workers": {
        "train": {"batches": "full", "local_epochs": 2},
        "server": {"workers": 2},
        "grid": {"method.name": ["splitfed_v1", "splitfed_v2"]},
    },
}  # fmt: skip


def merged(base, changes):
    both = {key: merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
            for key, value in changes.items()}  # fmt: skip
    return base | both


def untold(trials, again=True):
    """The numbers of the laws that cannot all be told; fails at the first breach."""
    numbers = set()
    for law, findings in held_against(trials, again):
        breaches = [finding for _, finding in findings if isinstance(finding, Breach)]
        assert not breaches, (law, breaches[0])
        numbers |= {law.number for _, finding in findings if isinstance(finding, Untold)}
    return numbers


UNTOLD = {
    "several servers": {8},
    "asynchronous": {2, 6, 9},
    "other methods": {6, 9},
    "kept activations": {6, 9},
    "patience": {2},
    "two workers": {5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_keeps_the_laws(kind, tmp_path):
    folder, failure = run(parse(merged(WORLD, KINDS[kind])), tmp_path / "run", TIMING, lambda news: None)
    assert failure is None
    assert untold(trials_of(folder)) == UNTOLD.get(kind, set())


SHARED = {
    "splitfed_v2": {},
    "u_shaped": {"server": "shared"},
    "fsl_sage": {"align_every": 2, "align_epochs": 1, "upload_every": 1},
}


@pytest.mark.parametrize("method", SHARED)
@pytest.mark.parametrize("order", sorted(ORDERS))
def test_a_slow_server_keeps_every_order_of_unequal_clients(order, method, tmp_path):
    server = {"order": order, "speedup": 0.2, "workers": 2, "burst": 1 if order in ARRIVAL_DRIVEN else 2}
    server |= {"max_wait_s": 0.01} if order == "bounded_wait" else {}
    scenario = merged(WORLD, {"server": server, "data": {"partition": {"kind": "dirichlet", "alpha": 0.5}}})
    asked = parse(scenario | {"method": {"name": method} | SHARED[method]})
    folder, failure = run(asked, tmp_path / "run", TIMING, lambda news: None)
    assert failure is None
    (trial,) = trials_of(folder)
    waited_s = trial.at_servers["started_s"] - trial.at_servers["requested_s"]
    assert (waited_s > 0).any()
    assert untold([trial]) == set()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("laws")
    kinds = ["main job", "cyclic", "unreliable fleet", "shared links", "several servers"]
    return {kind: run(parse(merged(WORLD, KINDS[kind])), home / kind, TIMING, lambda news: None)[0] for kind in kinds}


def at(node, kind, n=4):
    """Gives the place of the n-th operation of a kind at a node in round 2."""

    def place_in(trial):
        ops = trial.ops
        return np.flatnonzero((ops["node"] == node) & (ops["kind"] == kind) & (ops["round"] == 2))[[n]]

    return place_in


def row(n):
    return lambda trial: np.array([n])


def changed(table, where, **values):
    """Gives a trial with other values in rows of a table: functions of the rows, or numbers."""

    def change(trial):
        frame, rows = trial.tables[table].copy(), where(trial)
        for column, value in values.items():
            new = value(frame.iloc[rows]) if callable(value) else value
            frame.iloc[rows, frame.columns.get_loc(column)] = new
        return replace(trial, tables={**trial.tables, table: frame})

    return change


def without(table, where):
    def change(trial):
        frame = trial.tables[table]
        return replace(trial, tables={**trial.tables, table: frame.drop(frame.index[where(trial)])})

    return change


def summed(**values):
    return lambda trial: replace(trial, summary={**trial.summary, **values})


def plus(column, more):
    return lambda rows: rows[column] + more


def times(column, factor):
    return lambda rows: rows[column] * factor


def middle(rows):
    return (rows["started_s"] + rows["ended_s"]) / 2


def swapped(trial):
    """Two jobs of different clients in a row have each other's times."""
    jobs = trial.at_servers[trial.at_servers["kind"] == "train"]
    may = (jobs["client"] != jobs["client"].shift()) & (jobs["requested_s"] < jobs["started_s"].shift())
    second = int(np.flatnonzero(may)[0])
    pair, times_s = jobs.index[[second - 1, second]], ["started_s", "ended_s"]
    ops = trial.ops.copy()
    ops.loc[pair, times_s] = ops.loc[pair[::-1], times_s].to_numpy()
    return replace(trial, tables={**trial.tables, "ops": ops})


JOB, UP, DOWN = at("server", "train"), at("uplink", "smashed"), at("downlink", "gradients")
FORWARD, BACKWARD = at("client", "forward"), at("client", "backward")
CHANGES = {
    "an average begins before it is requested": (
        "main job", changed("ops", at("aggregator", "average", 0), started_s=plus("requested_s", -1e-6)), {1, 8, 12}),
    "a round begins before the last one ends": (
        "main job", changed("rounds", row(1), started_s=plus("started_s", -1)), {1, 10}),
    "the run ends later than its last round": ("main job", summed(simulated_s=1e6), {1}),
    "a message is requested when nothing ends": (
        "main job", changed("ops", UP, requested_s=plus("requested_s", -1e-6)), {2, 12}),
    "gradients leave before they are computed": (
        "main job", changed("ops", DOWN, requested_s=lambda rows: 0.0), {2, 12}),
    "a device goes on while it begins something else": (
        "main job", changed("ops", BACKWARD, ended_s=plus("ended_s", 1e-3)), {2, 3, 8, 11, 12}),
    "a server runs two jobs with one worker": (
        "main job", changed("ops", JOB, ended_s=plus("ended_s", 1.0)), {2, 4, 8, 12}),
    "a job waits at an idle server": ("main job", changed("ops", JOB, started_s=middle), {4, 8, 12}),
    "two jobs change places": ("cyclic", swapped, {2, 4, 5, 12}),
    "a job is gone": ("main job", without("ops", JOB), {2, 4, 6, 12}),
    "a loss is gone": ("unreliable fleet", without("dropouts", row(0)), {2, 6, 8}),
    "a server has worked more": ("several servers", changed("servers", row(0), busy_s=times("busy_s", 2)), {6}),
    "a message has more bytes": ("main job", changed("ops", UP, bytes=times("bytes", 2)), {7, 8, 11, 12}),
    "a round has one byte more": ("main job", changed("rounds", row(1), bytes_up=plus("bytes_up", 1)), {7}),
    "a run has one byte more": ("main job", summed(bytes_down=1), {7}),
    "a link is slower": ("main job", changed("clients", row(1), uplink_bps=times("uplink_bps", 0.5)), {8}),
    "an edge carries more": ("shared links", changed("ops", UP, ended_s=middle), {2, 8, 11, 12}),
    "a mini-batch has fewer samples": ("main job", changed("ops", FORWARD, macs=times("macs", 0.5)), {8, 9, 12}),
    "a client has a sample more": ("main job", changed("clients", row(1), samples=plus("samples", 1)), {9}),
    "a part is longer": ("main job", changed("rounds", row(1), device_s=plus("device_s", 1)), {10}),
    "an operation takes more energy": ("main job", changed("ops", BACKWARD, joule=plus("joule", 1)), {11}),
    "a client takes more energy": ("main job", changed("clients", row(1), joule=plus("joule", 1e3)), {11}),
    "a round takes more energy": ("main job", changed("rounds", row(1), client_joule=plus("client_joule", 1)), {11}),
    "an instant is no number": ("main job", changed("ops", UP, requested_s=nan), {1, 2, 12}),
    "a round is there twice": ("main job", changed("rounds", row(1), round=plus("round", 1)), {1}),
    "a client has fewer samples than none": ("main job", changed("clients", row(1), samples=-7), {9}),
    "a part never ends": ("main job", changed("rounds", row(1), device_s=inf), {10}),
    "the energy of an operation is no number": ("main job", changed("ops", BACKWARD, joule=nan), {11}),
    "the energy of a client is no number": ("main job", changed("clients", row(1), joule=nan), {11}),
    "an operation has other work": ("main job", changed("ops", BACKWARD, macs=times("macs", 2)), {8, 12}),
    "a job has other work": ("main job", changed("ops", JOB, macs=times("macs", 2)), {8, 12}),
    "a job at an edge server has other work": (
        "several servers", changed("ops", at("edge1", "train"), macs=times("macs", 2)), {8, 12}),
    "a device is faster": ("main job", changed("clients", row(1), macs_per_s=times("macs_per_s", 2)), {8}),
    "a device is another": ("main job", changed("clients", row(1), device="x"), {8}),
    "a device trains faster": ("main job", changed("clients", row(1), training_factor=0.5), {8}),
    "a link is faster": ("main job", changed("clients", row(1), uplink_bps=times("uplink_bps", 2)), {8}),
    "a server is faster": ("several servers", changed("servers", row(0), macs_per_s=times("macs_per_s", 2)), {8}),
    "a server is linked elsewhere": ("several servers", changed("servers", row(0), above="edge2"), {8}),
    "a client is cut elsewhere": ("main job", changed("clients", row(1), cut=2), {9}),
    "a client was cut elsewhere in a round": ("main job", changed("participants", row(7), cut=2), {9}),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_by_hand_breaks_the_laws_that_it_should(folders, change):
    kind, by_hand, laws = CHANGES[change]
    trial = by_hand(
        next(trial for trial in trials_of(folders[kind]) if kind != "unreliable fleet" or len(trial.dropouts))
    )
    assert {law.number for law in LAWS if isinstance(law.check(trial), Breach)} == laws


def test_every_law_is_broken_by_some_change():
    assert set().union(*(laws for _, _, laws in CHANGES.values())) == {law.number for law in LAWS}


def test_a_breach_names_the_row_of_the_file(folders):
    (trial,) = trials_of(folders["main job"])
    breach = LAWS[-1].check(changed("ops", FORWARD, macs=0.0)(trial))
    assert (breach.file, breach.row) == ("ops.parquet", FORWARD(trial)[0])


@pytest.mark.parametrize(("table", "client"), [("ops", -7), ("participants", 99), ("clients", 0)])
def test_a_row_of_a_client_that_there_is_not_is_told_with_its_file(folders, table, client, tmp_path):
    folder = shutil.copytree(folders["main job"], tmp_path / "run")
    rows = pd.read_parquet(folder / f"{table}.parquet")
    rows.loc[1, "client"] = client
    rows.to_parquet(folder / f"{table}.parquet")
    with pytest.raises(ScenarioError, match=rf"{table}\.parquet.*row 1 .*found {client}"):
        trials_of(folder)
