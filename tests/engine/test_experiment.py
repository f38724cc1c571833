"""The composition root: every key of a scenario arrives where it works, and interrupted runs tell the truth."""

import hashlib
import math

import numpy as np
import pytest
import torch
from torch import nn

from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.ops import State
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.own_code import Permission, permitted
from sfl_sim.store.columns import BREAKDOWN

BASE = {
    "data": {"train_samples": 200, "test_samples": 50, "partition": {"kind": "dominant_label"}},
    "train": {"rounds": 3, "batch_size": 8},
    "server": {"order": "cyclic"},
}
CPU = torch.device("cpu")


def experiment(changes=None, device=None):
    values = {section: dict(keys) for section, keys in BASE.items()}
    for key, value in (changes or {}).items():
        section, _, name = key.partition(".")
        if name:
            values.setdefault(section, {})[name] = value
        else:
            values[section] = value
    return Experiment(parse(values).variants[0].scenario, device)


def finished(changes=None, device=None):
    run = experiment(changes, device)
    for _ in run.rounds():
        pass
    return run


@pytest.fixture(scope="module")
def usual():
    return finished(device=CPU)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 1),
        ("data.partition", {"kind": "iid"}),
        ("data.train_samples", 300),
        ("model.cut", 2),
        ("clients.participation", 0.5),
        ("clients.compute", 1e9),
        ("clients.network", "fedscale"),
        ("clients.network", {"trace": "hsdpa_bus"}),
        ("clients.network", {"latency_s": 0.1}),
        ("server.speedup", 1.0),
        ("server.order", "fcfs"),
        ("server.burst", 3),
        ("server.include_model_exchange", False),
        ("method", {"name": "fedavg"}),
        ("train.batch_size", 5),
        ("train.local_epochs", 2),
        ("train.drop_last", True),
    ],
)
def test_a_key_of_the_world_changes_the_timeline(key, value, usual):
    assert finished({key: value}).timeline_digest != usual.timeline_digest


def test_unbounded_patience_is_the_cyclic_order_and_none_is_another(usual):
    def digest(max_wait_s):
        return finished({"server": {"order": "bounded_wait", "max_wait_s": max_wait_s}}).timeline_digest

    assert digest(1e9) == usual.timeline_digest != digest(0)


def test_orders_know_the_dominant_labels():
    run = experiment({"data.partition": {"kind": "dominant_label", "phi": 2}})
    assert run.walk.clock.events.labels == run.clients()["dominant_label"].tolist()


def test_more_workers_matter_where_clients_have_states_of_their_own():
    fast_links = {"uplink_bps": 1e12, "downlink_bps": 1e12}
    slow_server = {"method": {"name": "splitfed_v1"}, "server.speedup": 0.1, "clients.network": fast_links}
    one, many = (finished({**slow_server, "server.workers": n}) for n in (1, "unlimited"))
    assert one.walk.clock.now_s > 2 * many.walk.clock.now_s


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.lr", 0.1),
        ("train.lr_decay", 0.5),
        ("train.momentum", 0.9),
        ("train.weight_decay", 0.01),
        ("train.precision", "float64"),
        ("data.augment", True),
        ("data.std", [0.5]),
        ("data.partition", {"kind": "dominant_label", "p": 0.5}),
    ],
)
def test_a_key_of_training_changes_the_weights_and_not_the_timeline(key, value, usual):
    run = finished({key: value}, CPU)
    assert run.weights_digest() != usual.weights_digest()
    assert key == "train.precision" or run.timeline_digest == usual.timeline_digest


@pytest.mark.parametrize(
    ("key", "value", "changes"),
    [
        ("train.lr_min", 0.04, {"train.lr_decay": 0.1}),
        ("train.agg_weights", "uniform", {"data.partition": {"kind": "dirichlet", "alpha": 0.5, "min_size": 1}}),
    ],
)
def test_so_does_a_key_that_needs_another(key, value, changes):
    assert finished(changes, CPU).weights_digest() != finished({**changes, key: value}, CPU).weights_digest()


def test_clients_with_slow_devices_hold_the_fewest_layers():
    run = experiment({"method": {"name": "splitfed_v1"}, "model.cut": {"by": "device_speed", "values": [1, "conv3"]}})
    clients = run.clients().sort_values("macs_per_s")
    assert clients["cut"].tolist() == [1] * 5 + [3] * 5


DRAWN = {"by": "round", "values": [1, "conv3", 2]}


def test_a_cut_that_is_drawn_in_every_round_is_no_client_s_own():
    run = experiment({"method": {"name": "splitfed_v1"}, "model.cut": DRAWN})
    assert run.method.task.round_cuts == [1, 3, 2]
    assert run.method.task.cuts == [3] * 10
    assert run.clients()["cut"].isna().all()
    assert not experiment({"method": {"name": "fedavg"}, "model.cut": DRAWN}).method.task.round_cuts


def chosen(by, **more):
    return {"method": {"name": "splitfed_v1"}, "model.cut": {"by": by, "values": [3, 1]}, "train.rounds": 3, **more}


def test_a_policy_is_asked_before_every_round_but_the_first():
    rounds = list(experiment(chosen("greedy")).rounds())
    assert set(rounds[0].cuts) == {3}
    assert [sum(each.cuts) / len(each.cuts) for each in rounds] == [each.row["cut_mean"] for each in rounds]
    assert set(rounds[1].cuts) == {1}


@pytest.mark.parametrize("changes", [
    {"method": {"name": "splitfed_v1"}, "model.cut": DRAWN, "train.rounds": 4}, chosen("bandit"),
], ids=["drawn", "chosen"])  # fmt: skip
def test_cuts_that_change_are_the_same_with_and_without_training(changes):
    assert finished(changes).timeline_digest == finished(changes, CPU).timeline_digest


def test_edges_choose_for_their_own_clients():
    first, *_, last = experiment(chosen("makespan", servers={"edge": {"count": 2}})).rounds()
    assert set(first.cuts) == {3}
    assert set(last.cuts) == {1}
    assert len(last.cuts) == len(last.clients)


@pytest.mark.parametrize(("servers", "workers"), [({}, 3), ({"edge": {"count": 2, "workers": 5}}, 5)])
def test_a_policy_knows_the_workers_of_the_server_that_clients_reach(servers, workers):
    run = experiment(chosen("makespan", servers=servers, server={"workers": 3}))
    assert run.method.task.seen.workers == workers


def deeper(known, clients):
    return dict.fromkeys(clients, known.cuts[-1] + 1)


def failing(known, clients):
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (deeper, r"model.cut.by: must give clients \[.*\] cuts of \[1, 3\] \(found"),
        (failing, r"model.cut.by: fails with ValueError: no idea, at .*test_experiment.py:\d+ \(found"),
        (len, r"model.cut.by: fails with TypeError"),
    ],
)
def test_a_policy_of_ones_own_that_is_wrong_is_one_line(policy, problem):
    with permitted(Permission(True)), pytest.raises(ScenarioError, match=problem):
        finished(chosen(f"{policy.__module__}:{policy.__qualname__}"))


def one_layer(input_shape, n_labels):
    return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), n_labels)))


def test_assistants_are_clients_that_do_not_train():
    """Assistants do not exist if all clients train in every round, unless clients that train may assist as well."""
    korea = {"name": "korea", "proportion": "fixed"}
    with pytest.raises(ScenarioError, match=r"^clients\.participation:"):
        finished({"method": korea})
    for method in (korea | {"assistants": "all"}, korea | {"proportion": "off"}):
        finished({"method": method})


def test_fedavg_has_no_cut_and_trains_networks_that_cannot_be_cut():
    run = experiment({"method": {"name": "fedavg"}, "model": {"factory": one_layer}})
    assert run.clients()["cut"].isna().all()
    assert next(run.rounds()).cuts == []
    with pytest.raises(ScenarioError, match=r"^model\.cut: one_layer has 1 layers?"):
        experiment({"model": {"factory": one_layer}})


def test_every_round_has_its_own_participants_in_cyclic_order():
    run = experiment({"clients.participation": 0.3, "train.rounds": 20})
    rounds = [round.ops for round in run.rounds()]
    seen = [set(ops["client"][ops["node"] == b"client"]) for ops in rounds]
    assert all(len(clients) == 3 for clients in seen)
    assert len(set(map(frozenset, seen))) > 10
    assert set().union(*seen) == set(range(10))
    served = rounds[0]["client"][(rounds[0]["kind"] == b"train")][:3].tolist()
    assert served == sorted(served, key=run.setup.cyclic.index)


def test_the_cyclic_order_groups_clients_by_label_in_the_run_s_label_order():
    run = experiment({"data.partition": {"kind": "dominant_label", "phi": 2}, "train.batch_size": 2})
    dominant = run.counts.argmax(axis=1)[run.setup.cyclic]
    assert dominant.tolist() == [label for label in run.setup.label_order for _ in range(2)]


def test_what_is_kept_of_an_interrupted_run_is_its_last_whole_round():
    """Ctrl-C in the middle of round 2, and again while round 2 is evaluated, keeps weights and digests of round 1."""
    one = finished({"train.rounds": 1}, CPU)

    class Pressed(KeyboardInterrupt):
        pass

    for where in ("training", "evaluation"):
        run = experiment(device=CPU)
        rounds = run.rounds()
        next(rounds)
        if where == "training":
            inner, calls = run.memory.run, iter(range(30))

            def stops(op, inner=inner, calls=calls):
                if next(calls, None) is None:
                    raise Pressed
                return inner(op)

            run.memory.run = stops
        else:
            run.evaluator.of_model = lambda *_, **__: (_ for _ in ()).throw(Pressed())
        with pytest.raises(Pressed):
            next(rounds)
        assert run.weights_digest() == one.weights_digest()
        assert run.timeline_digest == one.timeline_digest


def test_the_weights_digest_is_of_names_and_numbers(usual):
    digest = hashlib.blake2b(digest_size=16)
    for name, values in usual.weights().items():
        digest.update(name.encode() + values.tobytes())
    assert usual.weights_digest() == digest.hexdigest()
    assert [name.split(".")[0] for name in usual.weights()] == ["part1"] * 2 + ["part2"] * 6
    assert isinstance(usual.method.model()[0], State)


TEXT = {"data": {"name": "synthetic", "shape": [12], "samples": 100}, "model": {"name": "char_transformer"}}
LATE = {"clients.availability": {"lost": "deadline", "deadline_s": 9}}


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("model.cut.by", {"method": {"name": "splitfed_v2"}, "model.cut": DRAWN}),
        ("data.augment", {**TEXT, "data.augment": True}),
        ("data.std", {**TEXT, "data.std": [0.2]}),
        ("data.std", {"data": {"name": "synthetic", "shape": [3, 8, 8], "samples": 100, "std": [0.2]}}),
        *(("clients.availability.lost", {"method": {"name": name}, **LATE})
          for name, kind in METHODS.items() if not kind.knows_deadlines),
    ],
)  # fmt: skip
def test_what_cannot_be_used_together_is_refused_also_in_time_alone(key, changes):
    with pytest.raises(ScenarioError) as refused:
        experiment(changes)
    assert refused.value.key == key


def test_images_are_divided_by_the_standard_deviation_that_is_given():
    images = experiment({"data.std": [0.25]}, CPU).method.data.images
    own = experiment({}, CPU).method.data.images
    x = images.x[:3]
    torch.testing.assert_close(images.prepare(x), own.prepare(x) * own.std / 0.25)


def test_what_happens_once_belongs_to_the_first_round_and_leaves_its_breakdown_whole():
    """Let 4 of 40 clients take part; all send their label counts to Hydra's server."""
    clients = {"clients.participation": 0.1, "clients.count": 40}
    run = experiment({"method": {"name": "hydra"}, "data.partition": {"kind": "iid"}, **clients})
    first, second, _ = run.rounds()
    parts_s = [f"{part}_s" for part in BREAKDOWN]
    for round in (first, second):
        assert round.row["participants"] == 4
        length_s = round.row["ended_s"] - round.row["started_s"]
        assert sum(round.row[part] for part in parts_s) == pytest.approx(length_s)
    told = first.ops[first.ops["kind"] == b"label counts"]
    assert sorted(told["client"]) == list(range(40))
    assert set(told["bytes"]) == {4 * 10}
    assert b"label counts" not in second.ops["kind"]


def test_the_most_that_the_server_has_held_at_once_is_kept():
    held = {name: finished({"method": {"name": name}}).server_model_bytes for name in ("splitfed_v1", "splitfed_v2")}
    assert held["splitfed_v1"] == 10 * held["splitfed_v2"] > 0


def test_what_batteries_pay_is_the_same_by_client_and_by_round():
    power = {"compute_w": 2.0, "uplink_w": 1.0, "downlink_w": 0.5}
    run = experiment({"clients.power": power, "clients.participation": 0.5})
    rows = [round.row for round in run.rounds()]
    by_round = sum(row["client_joule"] * row["participants"] for row in rows)
    by_client = run.clients()["joule"]
    assert by_client.sum() == pytest.approx(by_round, rel=1e-12)
    assert by_round > 0
    assert (by_client == 0).any()  # of ten clients, some never took part


def test_every_operation_tells_the_energy_that_it_takes():
    """A client's energy is that of its operations if waiting is free, and servers have none."""
    run = experiment({"clients.power": {"compute_w": 2.0, "uplink_w": 1.0, "downlink_w": 0.5}})
    rounds = list(run.rounds())
    ops, joule = (np.concatenate([getattr(round, name) for round in rounds]) for name in ("ops", "joule"))
    own = np.isin(ops["node"], [b"client", b"uplink", b"downlink"])
    assert (joule[own] > 0).all()
    assert (joule[~own] == 0).all()
    paid = [joule[ops["client"] == client].sum() for client in range(len(run.shares))]
    np.testing.assert_allclose(paid, run.clients()["joule"])
    unknown = finished()
    assert unknown.joule is None
    assert unknown.clients()["joule"].isna().all()


def test_the_table_of_clients_says_where_in_the_trace_each_begins():
    network = {"profile": "mobiperf"}
    steady, varying = (
        experiment({"clients.network": network | trace}).clients()["trace_phase_s"]
        for trace in ({}, {"trace": "hsdpa_bus"})
    )
    assert steady.isna().all()
    assert varying.between(0, 10_000).all()
    assert varying.nunique() == len(varying)
