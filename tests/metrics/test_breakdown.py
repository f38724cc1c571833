"""A breakdown of simulated time that adds up, whatever happens at once, and bytes that count once."""

import numpy as np
import pytest
from small_world import fleet, simulate, task

from sfl_sim.methods import METHODS
from sfl_sim.metrics.breakdown import breakdown, by_client, traffic
from sfl_sim.store.columns import OP_DTYPE


def rows_of(*ops):
    """Rows from (node, kind, client, requested_s, started_s, ended_s), all of the first mini-batch."""
    rows = np.zeros(len(ops), OP_DTYPE)
    for number, op in enumerate(ops):
        rows[["node", "kind", "client", "requested_s", "started_s", "ended_s"]][number] = op
    return rows


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("order", ["fcfs", "cyclic"])
def test_the_breakdown_adds_up_to_the_round(name, order):
    world = fleet(3, [1e5, 3e5, 7e5], [1e5, 4e4, 9e4], [3e5, 2e5, 1e5], speedup=2.0)
    _, simulator, rows = simulate(name, task(device=None), 1, order=order, world=world, workers=1)
    spent = breakdown(rows, range(3), 0.0, simulator.now_s)
    assert sum(spent.values()) == pytest.approx(simulator.now_s, rel=1e-9)
    assert min(spent.values()) >= 0


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_clients_own_breakdown_is_what_it_does_by_itself(name):
    world = fleet(3, [1e5, 3e5, 7e5], [1e5, 4e4, 9e4], [3e5, 2e5, 1e5], speedup=2.0)
    _, simulator, rows = simulate(name, task(device=None), 1, world=world, workers=1)
    spent, together = by_client(rows, [2, 0, 1], 0.0, simulator.now_s), breakdown(rows, range(3), 0.0, simulator.now_s)
    for name, of_each_s in spent.items():
        assert of_each_s.mean() == pytest.approx(together[name], abs=1e-9 * simulator.now_s)
    for place, client in enumerate([2, 0, 1]):
        alone = breakdown(rows, [client], 0.0, simulator.now_s)
        assert {name: of_each_s[place] for name, of_each_s in spent.items()} == pytest.approx(alone, abs=1e-9)


@pytest.mark.parametrize("late_s", [0.0, 1e5, 1e9])
def test_rounding_takes_no_client_below_nothing(late_s):
    """Late in a long run sums are rounded to microseconds."""
    world = fleet(3, [1e5, 3e5, 7e5], [1e5, 4e4, 9e4], [3e5, 2e5, 1e5], speedup=2.0)
    _, simulator, rows = simulate("splitfed_v2", task(device=None), 1, world=world, workers=1)
    for time in ("requested_s", "started_s", "ended_s"):
        rows[time] += late_s
    spent = by_client(rows, range(3), late_s, simulator.now_s + late_s)
    assert min(of_each_s.min() for of_each_s in spent.values()) >= 0


def test_a_breakdown_by_hand():
    """One client: model down, forward, up, server, down, backward, model up, average; nobody to wait for."""
    world = fleet(1, 1e5, 1e5, 2e5)
    _, simulator, rows = simulate("splitfed_v2", task([4], device=None), 1, world=world)
    spent = breakdown(rows, [0], 0.0, simulator.now_s)
    length_s = rows["ended_s"] - rows["started_s"]
    assert spent["device"] == pytest.approx(length_s[rows["node"] == b"client"].sum())
    assert spent["uplink"] == pytest.approx(length_s[rows["node"] == b"uplink"].sum())
    assert spent["aggregate"] == pytest.approx(length_s[rows["kind"] == b"average"].sum())
    assert spent["queue"] == 0
    assert spent["barrier"] == pytest.approx(0, abs=1e-12)


def test_a_fixed_order_turns_barrier_into_queue():
    """The fast client waits at the server for the slow one's turn instead of at the end of the round."""
    world = fleet(2, [1e5, 1e6])
    spent = {}
    for order in ("fcfs", "cyclic"):
        _, simulator, rows = simulate("splitfed_v2", task([12, 12], device=None), 1, order=order, world=world)
        spent[order] = breakdown(rows, [0, 1], 0.0, simulator.now_s)
    assert spent["fcfs"]["queue"] < 0.1 * spent["cyclic"]["queue"]
    assert spent["cyclic"]["barrier"] < 0.5 * spent["fcfs"]["barrier"]


def test_an_instant_of_overlapping_operations_counts_once():
    """Two clients: the second uploads while it computes, and the server fuses while the first does nothing else."""
    rows = np.zeros(4, OP_DTYPE)
    rows["node"] = [b"client", b"client", b"uplink", b"server"]
    rows["client"] = [0, 1, 1, -1]
    rows["requested_s"] = rows["started_s"] = [10, 10, 14, 12]
    rows["ended_s"] = [13, 16, 18, 15]
    spent = breakdown(rows, [0, 1], 10.0, 20.0)
    expected = {"device": (3 + 6) / 2, "uplink": 2 / 2, "aggregate": 2 / 2, "barrier": (5 + 2) / 2}
    assert spent == pytest.approx(dict.fromkeys(spent, 0.0) | expected)
    assert sum(spent.values()) == pytest.approx(10)


def test_operations_of_clients_that_take_no_part_are_left_out():
    """Hydra's setup, to which all clients belong."""
    _, simulator, rows = simulate("hydra", task(device=None), 1, clients=[0, 2])
    told = rows[rows["kind"] == b"label counts"]
    assert sorted(told["client"]) == [0, 1, 2]
    ours = rows[rows["client"] != 1]
    found = breakdown(rows, [0, 2], 0.0, simulator.now_s)
    assert found == breakdown(ours, [0, 2], 0.0, simulator.now_s)
    uplink = ours[ours["node"] == b"uplink"]
    assert found["uplink"] == pytest.approx((uplink["ended_s"] - uplink["requested_s"]).sum() / 2)


def test_merged_jobs_belong_to_no_client_and_all_wait_for_them():
    *_, rows = simulate("mergesfl", task(device=None), 1)
    jobs = rows[rows["node"] == b"server"]
    spent = breakdown(rows, range(3), 0.0, rows["ended_s"].max())
    own = rows[rows["client"] < 0]
    assert set(jobs["client"]) == {-1}
    assert spent["server"] == spent["queue"] == 0
    assert spent["aggregate"] == pytest.approx((own["ended_s"] - own["requested_s"]).sum())


def test_traffic_counts_messages_between_clients_once():
    *_, rows = simulate("splitnn", task(device=None), 1)
    found = traffic(rows)
    assert found["bytes_up"] + found["bytes_down"] == rows["bytes"].sum()


WAITING = [
    (b"client", b"forward", 0, 0, 0, 3),
    (b"uplink", b"smashed", 0, 3, 3, 5),
    (b"server", b"train", 0, 9, 10, 12),
]
"""One mini-batch that arrives after 5 s, is asked to be served after 9, and has to queue for a second."""
FEATURES = (b"uplink", b"knowledge", 7, 0, 0, 9)


def test_waiting_for_features_counts_as_assistants_and_not_as_barrier():
    spent = breakdown(rows_of(*WAITING, FEATURES), [0], 0.0, 12.0)
    assert spent == pytest.approx(
        dict.fromkeys(spent, 0.0) | {"device": 3, "uplink": 2, "assistants": 4, "queue": 1, "server": 2}
    )


def test_without_assistants_the_same_wait_counts_as_barrier():
    spent = breakdown(rows_of(*WAITING), [0], 0.0, 12.0)
    assert spent["assistants"] == 0
    assert spent["barrier"] == pytest.approx(4)


def test_a_client_that_sends_while_it_waits_for_assistants_is_held_up_by_its_uplink():
    refreshed = (b"uplink", b"model", 0, 5, 5, 8)
    spent = breakdown(rows_of(*WAITING, FEATURES, refreshed), [0], 0.0, 12.0)
    assert (spent["uplink"], spent["assistants"]) == pytest.approx((2 + 3, 1))
    assert sum(spent.values()) == pytest.approx(12)


def test_an_operation_from_the_round_before_counts_from_the_start_of_this_one():
    """A late assistant of the last round is still sending its features when it takes part in this one."""
    spent = breakdown(rows_of((b"uplink", b"knowledge", 0, 4, 6, 12)), [0], 10.0, 20.0)
    assert spent == pytest.approx(dict.fromkeys(spent, 0.0) | {"uplink": 2, "barrier": 8})


HOPS = [
    (b"uplink", b"smashed", 0, 0, 0, 2),
    (b"edge1", b"forward", 0, 2, 3, 4),
    (b"backbone", b"smashed", 0, 4, 5, 8),
    (b"server", b"train", 0, 8, 8, 9),
    (b"backbone", b"model", -1, 9, 9, 12),
]
"""A mini-batch that waits a second at an edge and a second for its link to the cloud; then a model goes up."""


def test_time_between_servers_is_the_participants_or_of_all_that_wait_for_an_average():
    spent = breakdown(rows_of(*HOPS), [0], 0.0, 12.0)
    parts = {"uplink": 2, "queue": 1, "server": 2, "backbone": 4, "aggregate": 3}
    assert spent == pytest.approx(dict.fromkeys(spent, 0.0) | parts)
    assert {name: each[0] for name, each in by_client(rows_of(*HOPS), [0], 0.0, 12.0).items()} == pytest.approx(spent)


def test_bytes_between_servers_are_told_where_there_are_any():
    rows = rows_of(*HOPS)
    rows["bytes"] = 10
    assert traffic(rows) == {"bytes_up": 10, "bytes_down": 0, "bytes_backbone": 20}
    assert traffic(rows[:1]) == {"bytes_up": 10, "bytes_down": 0}
