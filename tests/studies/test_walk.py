"""A walk through rounds that are alike takes what a whole run takes, in every world."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

from sfl_sim.engine.experiment import Experiment
from sfl_sim.methods import METHODS
from sfl_sim.ops import SERVER, Value, send
from sfl_sim.scenario.load import parse
from sfl_sim.store.columns import BREAKDOWN, PARTS
from sfl_sim.studies.points import RoundFigures
from sfl_sim.studies.walk import EVENT_LOOP, RECURSION, Walker

REGULAR = sorted(name for name, method in METHODS.items() if method.regular)

ON_A_BUS = {"profile": "mobiperf", "trace": "hsdpa_bus", "latency_s": 0.02}


def scenario(**changes):
    values = {
        "data": {"name": "digits", "train_samples": 96, "partition": {"kind": "dominant_label", "p": 0.8}},
        "model": {"name": "cnn_small", "cut": 1},
        "clients": {"network": {"latency_s": 0.02}},
        "train": {"rounds": 4, "batch_size": 4},
        **changes,
    }
    (variant,) = parse(values).variants
    return variant.scenario


def in_full(scenario):
    """Rows of rounds.parquet of a timing-only run through the event loop."""
    experiment = Experiment(scenario, device=None)
    experiment.walk.clock.refused = "a walk is compared with it"
    return [round.row for round in experiment.rounds()]


def check_against_the_run(scenario, walked, workers=1):
    rows = in_full(scenario)
    found = RoundFigures(walked, len(rows)).figures(lambda _: workers)
    assert found["round_s"] == pytest.approx(rows[-1]["ended_s"] / len(rows), rel=1e-9)
    assert sum(found[f"{part}_s"] for part in PARTS) == pytest.approx(found["round_s"])
    for name in BREAKDOWN:
        mean_s = np.mean([row[f"{name}_s"] for row in rows])
        assert found[f"{name}_s"] == pytest.approx(mean_s, rel=1e-6, abs=1e-9 * found["round_s"])
    for name in ("bytes_up", "bytes_down"):
        assert found[name] == pytest.approx(np.mean([row[name] for row in rows]))


@pytest.mark.parametrize("method", REGULAR)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_walked_rounds_take_what_the_run_takes(method, participation):
    clients = {"participation": participation, "network": {"latency_s": 0.02}}
    train = {"rounds": 4, "batch_size": 4, "momentum": 0.9, "drop_last": True}
    one = scenario(method={"name": method}, clients=clients, train=train)
    walked = Walker(one).walk(one)
    assert walked.how == RECURSION
    check_against_the_run(one, walked)


@pytest.mark.parametrize("order", ["fcfs", "cyclic", "random_job", "random_client"])
def test_rounds_that_are_served_in_the_same_sequence_are_walked_once(order):
    one = scenario(server={"order": order})
    walked = Walker(one).walk(one)
    rounds = [each for each in walked.rounds if not each.is_aside]
    assert sum(each.n_rounds for each in rounds) == 4
    assert (len(rounds) == 1) == (order in ("fcfs", "cyclic"))
    check_against_the_run(one, walked)


@pytest.mark.parametrize("method", ["splitfed_v1", "splitfed_v2"])
@pytest.mark.parametrize("server", [{}, {"order": "random_job"}])
@pytest.mark.parametrize("clients", [
    {"network": ON_A_BUS}, {"compute": {"jitter": 0.2}, "availability": {"profile": "flash", "lost": "wait"}},
], ids=["links that vary", "clients that come back"])  # fmt: skip
def test_rounds_that_depend_on_when_they_begin_are_walked_one_after_another(method, server, clients):
    one = scenario(method={"name": method}, clients=clients, server=server)
    walked = Walker(one).walk(one)
    assert walked.how == RECURSION
    rounds = [each for each in walked.rounds if not each.is_aside]
    assert [(each.started_s, each.ended_s) for each in rounds] == [
        (row["started_s"], row["ended_s"]) for row in in_full(one)
    ]
    check_against_the_run(one, walked)


@pytest.mark.parametrize("server", [{"order": "shortest_job"}, {"order": "bounded_wait", "max_wait_s": 0.1}])
def test_orders_that_decide_at_each_job_need_the_event_loop(server):
    one = scenario(server=server)
    walked = Walker(one).walk(one)
    assert walked.how == EVENT_LOOP
    check_against_the_run(one, walked)


def test_what_happens_once_is_apart_and_a_second_world_asks_for_no_flow_again():
    one, asked = scenario(clients={"network": {"latency_s": 0.1}}), []
    walker = Walker(one)
    method = walker.experiment.method
    method.setup, method.finish, choose = partial(told, asked, "setup"), partial(told, asked, "finish"), method.choose
    method.choose = lambda number, clients: asked.append(number) or choose(number, clients)
    walked = walker.walk(one)
    assert [(walked.number, walked.n_rounds, walked.is_aside) for walked in walked.rounds] == [
        (1, 1, True), (1, 4, False), (4, 1, True),
    ]  # fmt: skip
    assert walker.walk(one).simulated_s == walked.simulated_s
    assert asked == ["setup", 1, 2, 3, 4, "finish"]


def told(asked, name):
    """A flow that sends a message to the server."""
    asked.append(name)
    yield send(Value(name, 1000), 0, SERVER)


def test_one_walker_walks_through_many_worlds():
    worlds = [
        scenario(
            method={"name": "splitfed_v1"}, clients={"network": {"latency_s": 0.02, "scale": scale}}, server=server
        )
        for scale in (0.25, 4.0)
        for server in ({}, {"workers": 3}, {"workers": "unlimited", "speedup": 5.0}, {"macs_per_s": 1e9, "call_s": 0.1})
    ]
    walker = Walker(worlds[0])
    for world in worlds:
        workers = float("inf" if world.server.workers == "unlimited" else world.server.workers)
        check_against_the_run(world, walker.walk(world), workers)


def test_samples_that_some_worlds_load_at_once_and_others_do_not_take_what_they_take_there():
    worlds = [scenario(method={"name": "splitfed_v1"}, clients={"compute": {"sample_s": s}}) for s in (0.0, 0.5)]
    walker = Walker(worlds[0])
    for world in worlds:
        check_against_the_run(world, walker.walk(world))


def test_a_method_that_suits_its_demands_to_the_clients_is_found_out():
    for regulation in ("time", "none"):
        one = scenario(method={"name": "mergesfl", "batch_regulation": regulation})
        walker = Walker(one)
        check_against_the_run(one, walker.walk(one))
        assert walker.follows_the_world is (regulation == "time")


def test_it_is_found_out_by_the_event_loop_as_well():
    """Notice it with the event clock, too: otherwise the next point would be walked with demands of the first."""
    clients = {"network": {"latency_s": 0.02, "shared": {"access_points": 1, "backhaul_bps": 1e6}}}
    one = scenario(method={"name": "mergesfl", "batch_regulation": "time"}, clients=clients)
    walker = Walker(one)
    assert walker.walk(one).how == EVENT_LOOP
    assert walker.follows_the_world


def test_a_cut_that_changes_from_round_to_round_is_walked_round_by_round():
    one = scenario(
        method={"name": "splitfed_v1"}, model={"name": "cnn_small", "cut": {"by": "round", "values": [1, 2]}}
    )
    walked = Walker(one).walk(one)
    assert [each.n_rounds for each in walked.rounds] == [1, 1, 1, 1]
    check_against_the_run(one, walked)


def test_clients_spend_their_rounds_completely():
    one = scenario(clients={"participation": 0.4, "network": {"latency_s": 0.02}})
    measured = RoundFigures(Walker(one).walk(one), 4)
    clients = measured.clients()
    spent_s = clients[[f"{name}_s" for name in ("device", "uplink", "queue", "server", "downlink", "rest")]].sum(axis=1)
    rounds_s = [row["ended_s"] - row["started_s"] for row in in_full(one)]
    never = spent_s[spent_s == 0]
    assert len(never) < len(spent_s)
    assert spent_s.drop(never.index).between(0.999 * min(rounds_s), 1.001 * max(rounds_s)).all()
    assert clients.loc[never.index, "device_s"].isna().all()
    assert clients["joule"].isna().all()


def test_the_server_is_busy_for_the_share_of_its_lanes_that_jobs_take():
    one = scenario(method={"name": "splitfed_v1"})
    walker = Walker(one)
    (each,) = walker.walk(one).rounds
    jobs = each.ops[each.ops["node"] == b"server"]
    service_s = (jobs["ended_s"] - jobs["started_s"]).sum()
    found = RoundFigures(walker.walk(one), 4).figures(lambda _: 1)
    assert found["server_busy"] == pytest.approx(service_s / each.ended_s)
    assert 0 < found["server_busy"] < 1
    assert RoundFigures(walker.walk(one), 4).figures(lambda _: float("inf"))["server_busy"] is None


def test_whom_a_method_chooses_does_not_depend_on_how_often_it_is_walked():
    """This method counts whom it has chosen."""

    class InTurn(METHODS["splitfed_v1"], regular=True):
        def choose(self, round, clients):
            chosen = sorted(clients, key=lambda c: self.times[c])[:2]
            self.times.update(chosen)
            return chosen

        def __init__(self, task, options=None):
            super().__init__(task, options)
            self.times = Counter()

    one = scenario(method=InTurn)
    walker = Walker(one)
    walker.walk(one)
    check_against_the_run(one, walker.walk(one))


@pytest.mark.parametrize("lost", ["wait", "drop"])
def test_a_first_round_does_not_begin_before_a_client_is_there(lost, tmp_path):
    profile = tmp_path / "late.csv"
    logs = "".join(f"{name},100,999990,1000000\n" for name in range(10))
    profile.write_text(f"client,start_s,end_s,period_s\n{logs}")
    late = scenario(clients={"availability": {"profile": str(profile), "lost": lost}}, method={"name": "splitfed_v2"})
    rows, usual = in_full(late), in_full(scenario(clients={}, method={"name": "splitfed_v2"}))
    assert rows[0]["started_s"] == 100
    assert rows[0]["barrier_s"] == pytest.approx(usual[0]["barrier_s"])
    found = RoundFigures(Walker(late).walk(late), len(rows)).figures(lambda _: 1)
    assert found["idle_s"] == 100 / len(rows)
    assert found["round_s"] - found["idle_s"] == pytest.approx(usual[-1]["ended_s"] / len(rows))


@pytest.mark.parametrize("method", ["splitfed_v1", "mergesfl"])
def test_who_is_there_in_one_world_says_nothing_about_another(method):
    worlds = [
        scenario(
            method={"name": method},
            data={"name": "digits", "train_samples": 96, "partition": {"kind": "iid"}},
            clients={
                "count": 12,
                "participation": 0.3,
                "compute": {"scale": 1e-5},
                "network": {"scale": scale},
                "availability": {"profile": "fedscale", "lost": "wait"},
            },
        )
        for scale in (1.0, 0.0005)
    ]
    walker = Walker(worlds[0])
    for world in worlds:
        check_against_the_run(world, walker.walk(world))


@pytest.mark.parametrize("begins_at_h", [0, 12])
@pytest.mark.parametrize("method", ["fedavg", "splitfed_v2", "fedbuff"])
def test_the_time_in_which_nobody_is_available_belongs_to_the_rounds(method, begins_at_h):
    away = {"profile": "flash", "lost": "wait", "begins_at_h": begins_at_h}
    one = scenario(method={"name": method}, clients={"availability": away}, seed=32)
    walked = Walker(one).walk(one)
    check_against_the_run(one, walked)
    assert (walked.idle_s > 1000) == (begins_at_h == 12)


def test_a_client_that_was_lost_once_may_be_chosen_for_its_seconds_later():
    """Tiers by observed seconds know those of all who stayed in a round, whatever was before."""
    tiers = {"kind": "tiers", "by": "observed", "tiers": 2}
    one = scenario(
        clients={"count": 12, "participation": 0.25, "overcommit": 2, "choice": tiers},
        data={"name": "digits", "train_samples": 240},
        method={"name": "fedavg"},
        train={"rounds": 24, "batch_size": 5},
    )
    walked = Walker(one).walk(one)
    assert [each.ended_s for each in walked.rounds] == pytest.approx([row["ended_s"] for row in in_full(one)])
