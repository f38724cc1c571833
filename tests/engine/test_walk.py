"""The order of what happens, written once: setup, choose and round again and again, finish."""

import numpy as np
import pytest

from sfl_sim.build.clock import build_clock
from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.walk import Walk
from sfl_sim.errors import ScenarioError
from sfl_sim.ops import SERVER, Value, par, send
from sfl_sim.scenario.load import parse


def experiment(name="splitfed_v2", **changes):
    values = {
        "data": {"train_samples": 60, "test_samples": 20},
        "clients": {"count": 4, "network": {"latency_s": 0.1}},
        "train": {"rounds": 3, "batch_size": 8},
        "method": {"name": name},
        **changes,
    }
    return Experiment(parse(values).variants[0].scenario, None)


def noted(run):
    """List the calls of a run's method, in order; setup and finish send a message each."""
    asked, method = [], run.method

    def message(name):
        asked.append(name)
        yield send(Value(name, 1000), 0, SERVER)

    choose, round = method.choose, method.round
    method.setup, method.finish = lambda: message("setup"), lambda: message("finish")
    method.choose = lambda number, clients: asked.append(f"choose {number}") or choose(number, clients)
    method.round = lambda number, clients: asked.append(f"round {number}") or round(number, clients)
    return asked


def test_setup_comes_before_the_first_round_and_finish_after_the_last():
    run = experiment()
    run.walk.clock.refused = "every flow is seen"
    asked = noted(run)

    rounds = list(run.walk.rounds())

    assert asked == ["setup", "choose 1", "round 1", "choose 2", "round 2", "choose 3", "round 3", "finish"]
    kinds = [set(walked.ops["kind"]) & {b"setup", b"finish"} for walked in rounds]
    assert kinds == [{b"setup"}, set(), {b"finish"}]
    assert [walked.started_s for walked in rounds[1:]] == [walked.ended_s for walked in rounds[:-1]]


def test_who_has_gone_during_setup_is_not_asked_in_the_first_round_and_has_paid_for_setup(tmp_path):
    """Two clients leave at 0.05 s and two come then; setup, a message from each to the server, takes 0.1 s."""
    logs = "".join(f"{name},{span},1000\n" for name, span in zip("abcd", ["0,0.05", "0.05,1000"] * 2, strict=True))
    profile = tmp_path / "leaving.csv"
    profile.write_text(f"client,start_s,end_s,period_s\n{logs}")
    availability = {"profile": str(profile), "lost": "drop"}
    power = {"compute_w": 1.0, "uplink_w": 1.0, "downlink_w": 1.0}
    run = experiment(
        clients={"count": 4, "network": {"latency_s": 0.1}, "availability": availability, "power": power},
        train={"rounds": 1, "batch_size": 8},
    )
    run.method.setup = lambda: (yield par([sending(Value("setup", 1000), c) for c in range(4)]))

    (first,) = run.rounds()

    gone = [c for c in range(4) if not run.fleet.presence[c].is_present(1.0)]
    assert (len(gone), first.row["participants"], first.row["lost"]) == (2, 2, 0)
    assert not set(first.ops["client"][first.ops["kind"] != b"setup"]) & set(gone)
    assert (first.joule[first.ops["kind"] == b"setup"] >= 0.1).all()
    assert (run.joule[gone] >= 0.1).all()


def sending(value, client):
    yield send(value, client, SERVER)


def test_setup_and_finish_are_not_what_a_lost_client_has_spent_on_a_round():
    """The deadline passes while everybody's model is on its way up."""
    late = {"lost": "deadline", "deadline_s": 0.15}
    clients = {"count": 4, "network": {"latency_s": 0.1}, "availability": late}
    run = experiment("fedavg", clients=clients, train={"rounds": 1, "batch_size": 8})
    noted(run)

    (only,) = run.rounds()

    aside = np.isin(only.ops["kind"], [b"setup", b"finish"])
    assert (only.row["lost"], aside.sum()) == (4, 2)
    assert only.row["lost_bytes"] == only.ops["bytes"][~aside].sum() > 0


@pytest.mark.parametrize("options", [
    {"name": "fedasync"}, {"name": "fedbuff", "buffer": 3, "host": "splitfed_v1"},
], ids=lambda options: options["name"])  # fmt: skip
def test_who_works_on_from_round_to_round_never_waits_and_spends_its_watts_all_the_time(options):
    """Everything takes 1 W here, so each client spends as many joules as there are seconds."""
    power = dict.fromkeys(["compute_w", "uplink_w", "downlink_w", "idle_w"], 1.0)
    clients = {"count": 4, "network": {"latency_s": 0.1}, "power": power}
    run = experiment(clients=clients, train={"rounds": 9, "batch_size": 8}, method=options)
    rows = [round.row for round in run.rounds()]
    assert sum(row["barrier_s"] for row in rows) == pytest.approx(0, abs=1e-9)
    assert run.clients()["joule"].tolist() == pytest.approx(4 * [rows[-1]["ended_s"]])
    assert sum(row["client_joule"] * row["participants"] for row in rows) == pytest.approx(run.joule.sum())


def test_a_clock_that_no_longer_tells_instants_apart_is_an_error():
    """At 1e-9 bit/s a message takes 1e15 s and more, to which a training step of a second adds nothing."""
    slow = {"count": 4, "network": {"uplink_bps": 1e-9, "downlink_bps": 1e6}}
    with pytest.raises(ScenarioError, match=r"are too slow: .* \d.*e\+\d\d s .allowed: less than 8.8e\+12 s"):
        list(experiment(clients=slow).walk.rounds())


def test_more_stays_than_can_be_listed_are_an_error(monkeypatch, tmp_path):
    """Every client comes back every 4 ms, and the first round takes seconds."""
    monkeypatch.setattr("sfl_sim.engine.participation.MAX_STAYS", 100)
    monkeypatch.setattr("sfl_sim.engine.participation.MAX_STAYS_A_CLIENT", 25)
    profile = tmp_path / "brief.csv"
    profile.write_text("client,start_s,end_s,period_s\na,0,0.002,0.004\n")
    run = experiment(clients={"count": 4, "availability": {"profile": str(profile), "lost": "wait"}})
    with pytest.raises(ScenarioError, match=r"^clients\.availability\.profile: .*100, or 25"):
        list(run.rounds())
    assert "presence" not in run.histories()


def test_only_participants_count_as_lost_participants():
    """The deadline passes while the assistants' answers are on their way."""
    late = {"lost": "deadline", "deadline_s": 0.15}
    run = experiment(
        "korea", clients={"count": 4, "participation": 0.25, "availability": late, "network": {"latency_s": 0.1}}
    )
    rounds = list(run.rounds())
    lost = run.histories()["dropouts"].groupby("round")["client"].nunique()
    assert lost.max() > 1
    assert [each.row["lost"] for each in rounds] == [1, 1, 1]


def test_a_walk_can_begin_with_a_later_round_at_its_instant():
    whole = list(experiment().walk.rounds())[1]
    run = experiment()

    clock = build_clock(run.scenario, run.fleet, run.executor, run.counts)
    later = next(Walk(run.setup, run.method, clock, first=2, started_s=whole.started_s).rounds())

    assert (later.number, later.clients, later.started_s) == (2, whole.clients, whole.started_s)
    assert later.ended_s == whole.ended_s
    assert np.array_equal(later.ops, whole.ops)


def test_each_round_that_begins_is_told_with_its_participants():
    run = experiment(clients={"count": 4, "participation": 0.5})
    told = []
    run.walk.on_begin.append(lambda number, clients: told.append((number, tuple(clients))))
    assert [(walked.number, walked.clients) for walked in run.walk.rounds()] == told
