"""Rates of a live run, from tables that were made with known ones."""

import pandas as pd
import pytest
import yaml

from sfl_sim.errors import ScenarioError
from sfl_sim.features.live.calibration import calibrate_live, measured_steps
from sfl_sim.ops import Work
from sfl_sim.store.places import DEVICE, DOWNLINK, UPLINK
from sfl_sim.system.cost import amounts

SCENARIO = {
    "name": "small",
    "data": {"name": "digits", "train_samples": 96, "test_samples": 50},
    "model": {"name": "cnn_small", "cut": 2},
    "clients": {"count": 2, "compute": "ai_benchmark", "network": "mobiperf"},
    "train": {"rounds": 3},
}
MACS_PER_S, SERVER_PER_S = (1e9, 2e9), 8e9
SHARED = {"access_points": 1, "capacity_bps": 1e6}
UP_BPS, DOWN_BPS, LATENCY_S = (10e6, 20e6), (40e6, 80e6), 0.004


def step(node, client, macs, lasts_s, round=2):
    return {
        "round": round, "node": node, "client": client, "kind": "train", "part": "8-4", "size_bytes": 0,
        "lasts_s": lasts_s, **amounts(Work.of(macs)),
    }  # fmt: skip


def message(link, client, size_bytes, lasts_s, round=2):
    return {**step(link, client, 0.0, lasts_s, round), "kind": "model", "part": "", "size_bytes": size_bytes}


def rows(round=2, slower=1.0, sizes=(1_000, 100_000)):
    """What two clients and a server measure in a round."""
    found = []
    for client, rate in enumerate(MACS_PER_S):
        found += [step(DEVICE, client, macs, slower * macs / rate, round) for macs in (1e6, 3e6)]
        found += [step("server", client, 4e6, slower * 4e6 / SERVER_PER_S, round)]
        for link, bps in ((UPLINK, UP_BPS[client]), (DOWNLINK, DOWN_BPS[client])):
            found += [message(link, client, size, slower * (8 * size / bps + LATENCY_S), round) for size in sizes]
    return found


@pytest.fixture
def written(tmp_path):
    """Writes a live run's folder with these steps."""

    def write(steps, slowdown=1.0, seeds=(0,), clients=2):
        (tmp_path / "scenario.yaml").write_text(
            yaml.safe_dump(SCENARIO | {"clients": SCENARIO["clients"] | {"count": clients}})
        )
        pd.DataFrame({"client": range(clients)}).to_parquet(tmp_path / "clients.parquet")
        steps = pd.concat([pd.DataFrame(steps).assign(variant="splitfed_v2", seed=seed) for seed in seeds])
        steps.to_parquet(tmp_path / "steps.parquet")
        pd.DataFrame([{"node": "server", "slowdown": slowdown}]).to_parquet(tmp_path / "nodes.parquet")
        return tmp_path

    return write


def test_known_rates_come_back(written):
    base = calibrate_live(written(rows())).study.base
    assert base.clients.compute.macs_per_s == pytest.approx(list(MACS_PER_S))
    assert base.server.macs_per_s == pytest.approx(SERVER_PER_S)
    assert base.clients.network.uplink_bps == pytest.approx(list(UP_BPS), rel=1e-5)
    assert base.clients.network.downlink_bps == pytest.approx(list(DOWN_BPS), rel=1e-5)
    assert base.clients.network.latency_s == pytest.approx([LATENCY_S] * 2, rel=1e-4)
    assert base.clients.compute.profile is base.clients.network.profile is None


def test_links_behind_which_clients_share_one_stay_the_scenario_s(written, monkeypatch):
    shared = {"clients": {**SCENARIO["clients"], "network": {"profile": "mobiperf", "shared": SHARED}}}
    monkeypatch.setitem(SCENARIO, "clients", shared["clients"])
    calibrated = calibrate_live(written(rows()))
    network = calibrated.study.base.clients.network
    assert (network.profile, network.uplink_bps, network.shared.access_points) == ("mobiperf", None, 1)
    assert set(calibrated.errors["node"]) == {DEVICE, "server"}


def test_of_a_run_that_was_slowed_down_the_scenario_s_seconds_count(written):
    calibrated = calibrate_live(written(rows(slower=5.0), slowdown=5.0))
    assert calibrated.study.base.clients.compute.macs_per_s == pytest.approx(list(MACS_PER_S))


def test_the_first_round_tells_no_rate_unless_it_is_the_only_one(written):
    run = written(rows(round=1, slower=9.0) + rows(round=2))
    assert set(measured_steps(run)["round"]) == {2}
    assert calibrate_live(run).study.base.clients.compute.macs_per_s == pytest.approx(list(MACS_PER_S))
    assert set(measured_steps(written(rows(round=1)))["round"]) == {1}


def test_a_rate_is_that_at_which_all_steps_together_take_what_they_took(written):
    uneven = [row | {"lasts_s": 0.5 * row["lasts_s"]} if row["macs"] == 1e6 else row for row in rows()]
    found = calibrate_live(written(uneven)).study.base.clients.compute.macs_per_s
    assert found == pytest.approx([4e6 / (0.5e6 + 3e6) * rate for rate in MACS_PER_S], rel=1e-5)


@pytest.mark.parametrize("sizes", [(50_000,), (30_000, 100_000)])
def test_messages_of_one_size_tell_no_latency(sizes, written):
    network = calibrate_live(written(rows(sizes=sizes))).study.base.clients.network
    assert network.latency_s == [0.0, 0.0]
    took_s = sum(8 * size / UP_BPS[0] + LATENCY_S for size in sizes)
    assert network.uplink_bps[0] == pytest.approx(8 * sum(sizes) / took_s, rel=1e-5)


def test_messages_that_take_less_when_they_are_larger_tell_a_rate_alone(written):
    odd = [row | {"lasts_s": 0.05 if row["size_bytes"] == 1_000 else 0.01} for row in rows() if row["size_bytes"]]
    odd += [row for row in rows() if not row["size_bytes"]]
    network = calibrate_live(written(odd)).study.base.clients.network
    assert network.latency_s == [0.0, 0.0]
    assert network.uplink_bps[0] == pytest.approx(8 * 101_000 / 0.06, rel=1e-5)


def test_a_client_that_computes_nothing_is_as_fast_as_the_middle_one(written):
    idle = [row for row in rows() if (row["node"], row["client"]) != (DEVICE, 1)]
    assert calibrate_live(written(idle)).study.base.clients.compute.macs_per_s == pytest.approx([MACS_PER_S[0]] * 2)


@pytest.mark.parametrize("idle", [0, 1, 2])
def test_a_client_that_took_part_in_no_round_is_as_the_middle_one(idle, written):
    active = [client for client in range(3) if client != idle]
    found = [row | {"client": active[row["client"]]} for row in rows()]
    base = calibrate_live(written(found, clients=3)).study.base
    network = base.clients.network
    for given, known in (
        (base.clients.compute.macs_per_s, MACS_PER_S), (network.uplink_bps, UP_BPS), (network.downlink_bps, DOWN_BPS),
    ):  # fmt: skip
        assert given[idle] == pytest.approx(sum(known) / 2, rel=1e-5)
        assert [given[client] for client in active] == pytest.approx(list(known), rel=1e-5)
    assert network.latency_s == pytest.approx([LATENCY_S] * 3, rel=1e-4)


def test_a_server_that_computes_nothing_keeps_what_the_scenario_says(written):
    alone = [row for row in rows() if row["node"] != "server"]
    server = calibrate_live(written(alone)).study.base.server
    assert server.macs_per_s is None
    assert server.speedup is not None


def test_errors_are_those_of_each_node_and_kind(written):
    errors = calibrate_live(written(rows())).errors
    assert set(errors["node"]) == {DEVICE, "server", UPLINK, DOWNLINK}
    assert errors["ratio"].to_list() == pytest.approx([1.0] * len(errors), rel=1e-4)
    means = errors.set_index("node")["lasts_s"]
    assert means["server"] == pytest.approx(4e6 / SERVER_PER_S)
    assert means[DEVICE] == pytest.approx(2e6 * (1 / MACS_PER_S[0] + 1 / MACS_PER_S[1]) / 2)


def test_another_cost_profile_prices_the_same_steps_otherwise(written):
    run = written(rows())
    compute = calibrate_live(run, "phones").study.base.clients.compute
    assert compute.cost == "phones"
    assert calibrate_live(run, "phones").study.base.server.cost == "phones"
    assert compute.macs_per_s[1] == pytest.approx(2 * compute.macs_per_s[0], rel=1e-5)


@pytest.mark.parametrize(
    ("left", "word"),
    [
        (lambda row: row["node"] != UPLINK, UPLINK),
        (lambda row: row["node"] != DOWNLINK, DOWNLINK),
        (lambda row: row["node"] != DEVICE, "computes"),
    ],
)
def test_what_a_run_cannot_tell_is_one_line(left, word, written):
    with pytest.raises(ScenarioError) as raised:
        calibrate_live(written([row for row in rows() if left(row)]))
    assert raised.value.key == "live run"
    assert word in raised.value.problem


def test_a_run_of_several_seeds_or_none_that_was_live_is_one_line(written, tmp_path):
    several = written(rows(), seeds=(0, 1))
    with pytest.raises(ScenarioError, match="several"):
        calibrate_live(several)
    (several / "steps.parquet").unlink()
    with pytest.raises(ScenarioError) as raised:
        calibrate_live(several)
    assert (raised.value.key, raised.value.found) == ("live run", str(tmp_path))
