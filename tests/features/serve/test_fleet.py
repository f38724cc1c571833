"""A served fleet: Eq. (12) without queues, equal requests for all methods, and what each setting changes."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from torch import nn

from sfl_sim.errors import ScenarioError
from sfl_sim.features.serve.fleet import ServedFleet
from sfl_sim.metrics.exit_metrics import hybrid, latency_eq12, power
from sfl_sim.models.network import Network
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.serving import Serving
from sfl_sim.system.cost import PlainProcessor
from sfl_sim.system.links import RateTrace
from sfl_sim.training.deployed import Deployed

N_LABELS = 4


def nothing(done, total):
    pass


def dense(*widths):
    """A network in which every parameter is multiplied once for a sample: MACs are parameters."""

    def build(shape, n_labels):
        sizes = [math.prod(shape), *widths, n_labels]
        layers = [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(sizes)]
        return nn.Sequential(nn.Sequential(nn.Flatten(), layers[0]), *layers[1:])

    return build


def deployed(cut, has_head=True):
    """A client's share of a network of four layers, and its exit: ghosts, as for the clock."""
    front, back = Network("net", dense(8, 6, 5), (1, 4, 4), N_LABELS).split(cut, seed=0, device=None)
    width = (8, 6, 5)[cut - 1]
    (head,) = Network("head", dense(), (1, 1, width), N_LABELS).split(seed=0, device=None)
    return Deployed([front], head if has_head else None, [back], (width,))


def fleet(clients=3, bps=1e6, **scenario):
    """Clients with a device of 1 MMAC/s each, and what SplitFedV1 gives them of a small network."""
    values = {
        "data": {"name": "digits", "train_samples": 100, "test_samples": 50},
        "clients": {"count": clients, "compute": 1e6, "network": {"uplink_bps": bps, "downlink_bps": bps}},
        "method": {"name": "splitfed_v1"},
    }
    return ServedFleet(parse(values | scenario).variants[0].scenario)


def test_a_model_in_use_takes_no_training_factor():
    clients = {"count": 3, "compute": {"macs_per_s": 1e6, "training_factor": 4}}
    scenario = {"data": {"name": "digits", "train_samples": 100, "test_samples": 50}, "method": {"name": "splitfed_v1"}}
    slow = ServedFleet(parse(scenario | {"clients": clients}).variants[0].scenario).fleet
    assert slow.training_factor == [4, 4, 4]
    assert list(slow.processors) == list(fleet().fleet.processors)


def section(**values):
    arrivals = values.pop("arrivals", {"kind": "poisson", "rate_per_s": 1})
    return Serving.model_validate({"arrivals": arrivals, **values})


def answers(clients=3, samples=20, seed=0):
    """Answers by chance: half the labels are seen, those with a head are surer of them."""
    rng = np.random.default_rng(seed)
    n = clients * samples
    label = np.tile(np.arange(samples) % N_LABELS, clients)
    return pd.DataFrame(
        {
            "variant": "v", "seed": 0, "client": np.repeat(np.arange(clients), samples),
            "sample": np.tile(np.arange(samples), clients), "label": label, "seen": label < N_LABELS // 2,
            "entropy": rng.uniform(0, math.log(N_LABELS), n).astype(np.float32),
            "device_correct": rng.random(n) < 0.6, "server_correct": rng.random(n) < 0.8,
        }
    )  # fmt: skip


# HARMONY's Eq. (12)


def paper_world():
    """Three clients with the constants of Eq. (12), the last without an exit.

    An element of the features takes a second on the uplink, a parameter 1/100 s at the server and 1/P_C on the device.
    """
    ours = fleet()
    ours.deployed = [deployed(1), deployed(3), deployed(2, has_head=False)]
    ours.table = ours._table(pd.Series([1, 3, 2]))
    powers = power(ours.table["front_parameters"])
    ours.fleet = replace(
        ours.fleet,
        processors=list(map(PlainProcessor, powers)),
        server=PlainProcessor(100.0),
        uplinks=[RateTrace(32.0)] * 3,
        downlinks=[RateTrace(math.inf)] * 3,
    )
    known = answers()
    known.loc[known["client"] == 2, "entropy"] = np.inf
    return ours, known


@pytest.fixture
def one_by_one(tmp_path):
    """Requests so far apart that none ever waits, one client after another."""
    path = tmp_path / "trace.csv"
    times = [f"{5000 * number},{number % 3}" for number in range(1, 91)]
    path.write_text("time_s,client\n" + "\n".join(times))
    return {"kind": "trace", "file": str(path)}


@pytest.mark.parametrize("threshold", [{"kind": "oracle"}, {"kind": "fixed", "entropy": [0.7, 0.4, 0.1]}])
def test_without_queues_and_with_the_paper_s_constants_every_second_is_one_of_eq_12(threshold, one_by_one):
    ours, known = paper_world()
    rows, found = ours.serve(section(arrivals=one_by_one, threshold=threshold, warm_up=0), known, nothing)
    per_client = rows.groupby("client")["offloaded"].agg(["size", "mean"])
    assert per_client["mean"].between(0, 1, inclusive="neither").tolist() == [True, True, False]
    expected_s = latency_eq12(
        per_client["size"], ours.table["device_parameters"], power(ours.table["front_parameters"]), per_client["mean"],
        ours.table["feature_channels"], ours.table["server_parameters"],
    )  # fmt: skip
    latency_s = (rows["ended_s"] - rows["arrived_s"]).groupby(rows["client"]).sum()
    assert latency_s.to_numpy() == pytest.approx(expected_s, rel=1e-9)
    assert found["latency_s"] == pytest.approx(found["latency_eq12"], rel=1e-9)


def test_over_the_whole_test_set_it_is_the_eq_12_of_the_table_of_answers(tmp_path):
    """Each client is asked each of its samples once."""
    ours, known = paper_world()
    path = tmp_path / "trace.csv"
    pd.DataFrame({"time_s": 5000.0 * np.arange(1, len(known) + 1), "client": known["client"]}).to_csv(path, index=False)
    serving = section(
        arrivals={"kind": "trace", "file": str(path)}, threshold={"kind": "fixed", "entropy": 0.6}, warm_up=0
    )
    ours._about = lambda clients, answers: answers
    rows, _ = ours.serve(serving, known, nothing)
    on_paper = hybrid(known, 0.6).reset_index()
    expected_s = latency_eq12(
        on_paper["samples"], ours.table["device_parameters"], power(ours.table["front_parameters"]),
        on_paper["offload_probability"], ours.table["feature_channels"], ours.table["server_parameters"],
    )  # fmt: skip
    latency_s = (rows["ended_s"] - rows["arrived_s"]).groupby(rows["client"]).sum()
    assert latency_s.to_numpy() == pytest.approx(expected_s, rel=1e-9)
    assert rows.groupby("client")["correct"].mean().tolist() == pytest.approx(on_paper["accuracy"].tolist())


def test_with_requests_close_together_it_takes_longer_than_eq_12_says():
    ours, known = paper_world()
    _, found = ours.serve(section(warm_up=0, requests=200), known, nothing)
    assert found["latency_s"] > 2 * found["latency_eq12"]
    assert found["falls_behind"]


# What becomes of a request


def test_a_request_is_answered_as_the_table_says_and_where_its_entropy_says():
    ours, known = paper_world()
    rows, found = ours.serve(section(threshold={"kind": "fixed", "entropy": 0.5}, requests=500), known, nothing)
    asked = known.set_index(["client", "sample"]).loc[list(zip(rows["client"], rows["sample"], strict=True))]
    assert rows["offloaded"].tolist() == (asked["entropy"] >= 0.5).tolist()
    correct = np.where(rows["offloaded"], asked["server_correct"], asked["device_correct"])
    assert rows["correct"].tolist() == correct.tolist()
    assert (rows["threshold"] == 0.5).all()
    assert (found["threshold"], found["threshold_value"]) == ("fixed", 0.5)


def test_all_methods_and_rates_are_asked_by_the_same_clients_in_the_same_order_and_about_the_same():
    ours, known = paper_world()
    slow, _ = ours.serve(section(requests=300), known, nothing)
    fast, found = ours.serve(section(requests=300, arrivals={"kind": "poisson", "rate_per_s": 10}), known, nothing)
    other, _ = fleet(method={"name": "splitfed_v2"}).serve(section(requests=300, exit_probability=0.5), None, nothing)
    assert slow["client"].tolist() == fast["client"].tolist() == other["client"].tolist()
    assert slow["sample"].tolist() == fast["sample"].tolist()
    assert slow["arrived_s"].tolist() == pytest.approx((10 * fast["arrived_s"]).tolist()) == other["arrived_s"].tolist()
    assert found["rate_per_s"] == pytest.approx(30)


@pytest.mark.parametrize("known", [answers(), None])
def test_a_rule_that_needs_no_labels_holds_its_share_with_and_without_answers(known):
    ours, _ = paper_world()
    ours.deployed[2] = deployed(2)
    serving = section(threshold={"kind": "offload_rate", "target": 0.3}, requests=3000)
    rows, found = ours.serve(serving, known, nothing)
    assert rows.groupby("client")["offloaded"].mean().tolist() == pytest.approx([0.3] * 3, abs=0.04)
    assert (found["threshold"], found["threshold_value"]) == ("offload_rate", 0.3)


def test_exits_happen_as_often_as_the_scenario_says_where_there_is_a_head():
    ours, _ = paper_world()
    rows, found = ours.serve(section(exit_probability=[0.9, 0.2, 0.5], requests=6000), None, nothing)
    offloaded = rows.groupby("client")["offloaded"].mean()
    assert offloaded[:2].tolist() == pytest.approx([0.1, 0.8], abs=0.04)
    assert offloaded[2] == 1  # it has none
    assert found["threshold"] == "probability"
    assert found["accuracy"] is None
    assert rows["correct"].isna().all()
    assert rows["threshold"].isna().all()


def test_whoever_holds_the_whole_model_asks_nobody():
    rows, found = fleet(method={"name": "fedavg"}).serve(section(requests=50), None, nothing)
    assert not rows["offloaded"].any()
    assert found["capacity_per_s"] is None


def test_the_capacity_is_where_the_server_falls_behind():
    busy = fleet(clients=20, bps=1e9, server={"speedup": 1, "workers": 2})
    capacity_per_s = busy.serve(section(requests=10), None, nothing)[1]["capacity_per_s"]

    def behind(load):
        rate_per_s = load * capacity_per_s / 20
        _, found = busy.serve(
            section(arrivals={"kind": "poisson", "rate_per_s": rate_per_s}, requests=4000), None, nothing
        )
        return found["falls_behind"]

    assert not behind(0.8)
    assert behind(1.2)


def served_s(service, batch=1):
    """Seconds of the requests at the server, and its capacity."""
    values = {"service": service, "requests": 4000, "batch": {"max_size": batch}}
    rows, found = fleet(server={"speedup": 100, "call_s": 0.002}).serve(section(**values), None, nothing)
    return rows["server_s"], found["capacity_per_s"]


def test_service_times_vary_around_the_computed_ones_as_asked():
    """Four standard errors of the mean and, roughly, of the coefficient of variation, at 4,000 requests."""
    computed_s, capacity_per_s = served_s(None)
    assert computed_s.std() < 1e-9
    for service, cv in (({"kind": "exponential"}, 1.0), ({"kind": "lognormal", "cv": 0.5}, 0.5)):
        drawn_s, expected_per_s = served_s(service)
        assert drawn_s.mean() == pytest.approx(computed_s.mean(), rel=4 * cv / math.sqrt(4000))
        assert drawn_s.std() / drawn_s.mean() == pytest.approx(cv, rel=0.15)
        assert expected_per_s == capacity_per_s


def test_measured_service_times_are_those_of_the_file_and_say_what_the_server_can_do(tmp_path):
    file = tmp_path / "measured.csv"
    file.write_text("service_s\n0.001\n0.003\n0.005\n")
    measured_s, capacity_per_s = served_s({"kind": "measured", "file": str(file)})
    assert sorted(measured_s.round(9).unique()) == [0.001, 0.003, 0.005]
    assert capacity_per_s == pytest.approx(1 / 0.003)
    file.write_text("service_s\n0.001\n0\n")
    with pytest.raises(ScenarioError, match=r"measured.csv:3: serving.service.file: .*'service_s' cannot be used"):
        fleet().check(section(service={"kind": "measured", "file": str(file)}), timing_only=True)


def test_batches_raise_the_capacity_of_a_server_whose_calls_cost_something():
    alone_s, alone_per_s = served_s(None)
    _, together_per_s = served_s(None, batch=8)
    computing_s = alone_s.mean() - 0.002
    assert alone_per_s == pytest.approx(1 / (0.002 + computing_s))
    assert together_per_s == pytest.approx(8 / (0.002 + 8 * computing_s))


def test_requests_that_wait_for_a_batch_leave_together():
    together = {"max_size": 4, "max_wait_s": 100.0}
    rows, _ = fleet().serve(section(batch=together, requests=40), None, nothing)
    left = (rows["ended_s"] - rows["downlink_s"]).round(9)
    assert left.value_counts().tolist() == [4] * 10


def test_a_client_s_own_rate_is_its_share_of_the_requests():
    rows, found = fleet().serve(section(arrivals={"kind": "poisson", "rate_per_s": [1, 2, 7]}), None, nothing)
    assert len(rows) == 10_000
    assert (rows["client"].value_counts(normalize=True).sort_index().tolist()) == pytest.approx(
        [0.1, 0.2, 0.7], abs=0.02
    )
    assert found["rate_per_s"] == pytest.approx(10)


def test_of_a_trace_come_all_requests_or_the_first_so_many(one_by_one):
    ours = fleet()
    rows, found = ours.serve(section(arrivals=one_by_one), None, nothing)
    assert len(rows) == 90
    assert found["rate_per_s"] == pytest.approx(1 / 5000)
    few, _ = ours.serve(section(arrivals=one_by_one, requests=7), None, nothing)
    assert few["arrived_s"].tolist() == rows["arrived_s"][:7].tolist()
    with pytest.raises(ScenarioError, match=r"^serving\.requests: .*found 91"):
        ours.serve(section(arrivals=one_by_one, requests=91), None, nothing)


def test_a_trace_may_begin_at_any_instant_but_not_end_at_the_same(tmp_path):
    def rate_per_s(times_s):
        path = tmp_path / "trace.csv"
        path.write_text("time_s,client\n" + "".join(f"{time_s},0\n" for time_s in times_s))
        return fleet().serve(section(arrivals={"kind": "trace", "file": str(path)}), None, nothing)[1]["rate_per_s"]

    assert rate_per_s([1.7e9, 1.7e9 + 2, 1.7e9 + 4]) == pytest.approx(0.5)
    for useless in ([5.0], [5.0, 5.0]):
        with pytest.raises(ScenarioError, match=r"serving\.arrivals\.file: "):
            rate_per_s(useless)


def test_some_clients_may_never_ask_and_large_fleets_get_more_requests():
    ours = fleet(clients=120, data={"name": "digits", "train_samples": 1200, "test_samples": 50})
    rows, _ = ours.serve(section(arrivals={"rate_per_s": [0.0] + 119 * [1.0]}), None, nothing)
    assert len(rows) == 12_000
    assert 0 not in set(rows["client"])


@pytest.mark.parametrize("rate_per_s", [1e20, 1e-20, [0.0, 0.0, 0.0]])
def test_absurd_rates_are_refused(rate_per_s):
    with pytest.raises(ScenarioError, match=r"serving\.arrivals\.rate_per_s: .* out of range"):
        fleet().check(section(arrivals={"rate_per_s": rate_per_s}), timing_only=False)


def test_at_a_smaller_rho_fewer_requests_are_about_labels_that_a_client_has_not_seen():
    ours, known = paper_world()
    seen = known.set_index(["client", "sample"])["seen"]

    def unseen(rho):
        rows, found = ours.serve(section(rho=rho, requests=2000), known, nothing)
        assert found["rho"] == rho
        return 1 - seen.loc[list(zip(rows["client"], rows["sample"], strict=True))].mean()

    assert unseen(0) == 0
    assert unseen(0.4) == pytest.approx(0.4 / 1.4, abs=0.05)


def test_progress_is_told():
    told = []
    fleet().serve(section(requests=250), None, lambda done, total: told.append((done, total)))
    assert told[0] == (0, 250)
    assert told[-1] == (250, 250)


@pytest.mark.parametrize(
    ("values", "timing_only", "line"),
    [
        ({"arrivals": {"kind": "poisson", "rate_per_s": [1, 2]}}, True, "serving.arrivals.rate_per_s: a list needs"),
        ({"exit_probability": [0.5]}, True, "serving.exit_probability: a list needs one entry per client"),
        ({"threshold": {"kind": "fixed", "entropy": [1.0]}}, False, "serving.threshold.entropy: a list needs one"),
        ({}, True, "serving.exit_probability: is missing: without training it is unknown"),
        ({"arrivals": {"kind": "trace", "file": "nowhere.csv"}}, True, "nowhere.csv: serving.arrivals.file: cannot be"),
        ({"rho": 0.1}, False, "serving.rho: needs answers to as many samples of unseen labels"),
    ],
)
def test_what_does_not_fit_the_fleet_is_refused(values, timing_only, line):
    ours, _ = paper_world()
    with pytest.raises(ScenarioError) as caught:
        ours.check(section(**values), timing_only)
    assert str(caught.value).startswith(line)


def phones(compute=1e6, shared=None, seed=0, **others):
    """Two phones of so many MAC/s, with links of 1 Mbit/s."""
    network = {"uplink_bps": 1e6, "downlink_bps": 1e6, "shared": shared}
    values = {
        "seed": seed,
        "data": {"name": "digits", "train_samples": 100, "test_samples": 50},
        "clients": {"count": 2, "compute": compute, "network": network, **others},
        "method": {"name": "splitfed_v1"},
    }
    return ServedFleet(parse(values).variants[0].scenario)


def test_requests_share_links_as_models_do():
    """Two phones behind an access point as fast as one of them wait longer if they ask at the same time."""
    asked = section(arrivals={"kind": "poisson", "rate_per_s": 40}, requests=200, exit_probability=0)
    access_point = {"access_points": 1, "capacity_bps": 1e6}
    alone_s, together_s = (
        phones(1e9, shared).serve(asked, None, nothing)[0]["uplink_s"] for shared in (None, access_point)
    )
    assert (together_s >= alone_s - 1e-9).all()
    assert together_s.mean() > 1.05 * alone_s.mean()


def test_the_jitter_of_devices_is_drawn_anew_for_each_seed():
    compute = {"macs_per_s": 1e6, "jitter": 0.5}
    asked = section(requests=20)
    requests = [phones(compute, seed=seed).serve(asked, None, nothing)[0] for seed in (0, 1)]
    one, other = (each.loc[each["client"] == 0, "device_s"].head(5).tolist() for each in requests)
    assert one != pytest.approx(other)


def test_when_phones_are_there_to_train_does_not_matter_to_requests():
    """Phones that idle and charge may train; requests come from those in use."""
    away = {"availability": {"profile": "flash", "lost": "drop"}}
    asked = section(requests=50)
    alike = [phones(**others).serve(asked, None, nothing)[0] for others in ({}, away)]
    pd.testing.assert_frame_equal(*alike)


def test_a_batch_may_be_larger_than_any_list():
    small, large = (section(requests=10, batch={"max_size": size}) for size in (8, 10**7))
    rates = [fleet().serve(serving, None, nothing)[1]["capacity_per_s"] for serving in (small, large)]
    assert rates[0] == pytest.approx(rates[1])  # devices without a cost per call gain nothing
