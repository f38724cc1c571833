"""The critical path: what a round waits for at every instant, told by recorded times alone."""

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import fleet, simulate, task, usual_options

from sfl_sim.methods import METHODS
from sfl_sim.metrics.critical_path import WAITING, Dependencies, Ops, critical_path, requested_after
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.sim.trace import Fork, PlannedOperation, trace
from sfl_sim.system.cost import PlainProcessor
from sfl_sim.training.executors import Timing

COLUMNS = ["node", "kind", "step", "client", "requested_s", "started_s", "ended_s"]


def recorded(*ops):
    """Operations as (node, client, requested, started, ended)."""
    return pd.DataFrame([(node, "work", 0, *rest) for node, *rest in ops], columns=COLUMNS)


def stretches(found):
    return list(found.path[["node", "client", "resource", "from_s", "to_s"]].itertuples(index=False, name=None))


def test_a_round_of_two_clients_that_meet_at_the_server_and_a_third_that_does_not():
    found = critical_path(
        recorded(
            ("client", 0, 0, 0, 1), ("uplink", 0, 1, 1, 3), ("server", 0, 3, 3, 4), ("downlink", 0, 4, 4, 5),
            ("client", 1, 0, 0, 2), ("uplink", 1, 2, 2, 3.5), ("server", 1, 3.5, 4, 5), ("downlink", 1, 5, 5, 7),
            ("client", 2, 0, 0, 1), ("uplink", 2, 1, 1, 2),
            ("aggregator", -1, 7, 7, 8),
        ), 0, 8,
    )  # fmt: skip

    assert stretches(found) == [
        ("client", 0, "device", 0, 1), ("uplink", 0, "uplink", 1, 3), ("server", 0, "server", 3, 4),
        ("server", 1, "server", 4, 5), ("downlink", 1, "downlink", 5, 7), ("aggregator", -1, "aggregate", 7, 8),
    ]  # fmt: skip
    assert found.seconds_by("resource").to_dict() == {
        "uplink": 2,
        "server": 2,
        "downlink": 2,
        "device": 1,
        "aggregate": 1,
    }
    assert found.seconds_by("client").to_dict() == {0: 4, 1: 3, -1: 1}
    assert found.slack_s.to_dict() == {0: 0, 1: 0, 2: 5}


def test_a_round_without_operations_is_waiting():
    found = critical_path(recorded(), 0, 8)
    assert stretches(found) == [("", -1, WAITING, 0, 8)]
    assert found.slack_s.empty


def test_a_message_waits_until_the_link_is_free_and_not_until_the_last_one_has_arrived():
    found = critical_path(recorded(("uplink", 0, 0, 0, 2.5), ("uplink", 0, 1, 2, 4.5)), 0, 4.5)

    assert stretches(found) == [("uplink", 0, "uplink", 0, 2), ("uplink", 0, "uplink", 2, 4.5)]


def test_a_hold_that_ends_by_its_time_limit_began_when_the_first_waiting_job_came():
    found = critical_path(
        recorded(("client", 0, 0, 0, 2), ("client", 1, 0, 0, 1), ("server", 1, 1, 6, 7), ("server", 0, 2, 5, 6)), 0, 7
    )

    assert stretches(found) == [
        ("client", 1, "device", 0, 1),
        ("server", 0, "queue", 1, 5),
        ("server", 0, "server", 5, 6),
        ("server", 1, "server", 6, 7),
    ]
    assert found.slack_s.to_dict() == {0: 0, 1: 0}


def test_a_client_off_the_path_is_awaited_at_the_next_barrier():
    """Two steps with a barrier between them: the slow client of the one is the fast client of the other."""
    found = critical_path(
        recorded(
            ("client", 0, 0, 0, 4), ("client", 1, 0, 0, 1), ("client", 0, 4, 4, 5), ("client", 1, 4, 4, 7),
            ("client", 2, 0, 0, 2), ("client", 2, 4, 4, 6),
        ), 0, 7,
    )  # fmt: skip

    assert found.seconds_by("client").to_dict() == {0: 4, 1: 3}
    assert found.slack_s.to_dict() == {0: 0, 1: 0, 2: 1}


def test_an_average_awaits_all_uploads_even_of_clients_that_continue_at_once():
    """Client 1 has until 4, when its step is averaged with that of client 0; its upload has until 8."""
    found = critical_path(
        recorded(
            ("client", 0, 0, 0, 4), ("client", 1, 0, 0, 3), ("uplink", 1, 3, 3, 4.5), ("server", -1, 4, 4, 8),
            ("downlink", 0, 8, 8, 9),
        ), 0, 9,
    )  # fmt: skip

    assert found.slack_s.to_dict() == {0: 0, 1: 1}


def test_what_began_before_the_round_counts_from_its_start():
    found = critical_path(recorded(("uplink", 3, 8, 8, 12), ("server", 3, 12, 12, 13)), 10, 13)

    assert stretches(found) == [("uplink", 3, "uplink", 10, 12), ("server", 3, "server", 12, 13)]


def test_seconds_without_a_reason_are_waiting():
    found = critical_path(recorded(("client", 0, 0, 0, 1), ("downlink", 1, 3, 3, 4)), 0, 6)

    assert stretches(found) == [
        ("client", 0, "device", 0, 1),
        ("downlink", 1, "waiting", 1, 3),
        ("downlink", 1, "downlink", 3, 4),
        ("", -1, "waiting", 4, 6),
    ]


RATES = st.sampled_from([1e4, 2e4, 2.7e4, 5e4])  # few values, so that clients tie now and then


@st.composite
def worlds(draw, n):
    def each():
        return draw(st.lists(RATES, min_size=n, max_size=n))

    speedup, latency_s = draw(st.sampled_from([0.5, 3.0, 100.0])), draw(st.sampled_from([0.0, 0.1]))
    return fleet(n, each(), each(), each(), speedup, latency_s=latency_s)


@settings(max_examples=30)
@given(st.data())
def test_every_round_comes_apart_into_stretches_without_a_gap_and_nobody_on_them_has_slack(data):
    draw = data.draw
    name = draw(st.sampled_from(sorted(METHODS)))
    samples = draw(st.lists(st.integers(1, 9), min_size=3, max_size=5))
    order = draw(st.sampled_from(sorted(ORDERS)))
    _, simulator, rows = simulate(
        name, task(samples, batch_size=2, device=None), rounds=1, order=order, world=draw(worlds(len(samples))),
        workers=draw(st.sampled_from([1, 2, float("inf")])), include_model_exchange=draw(st.booleans()),
        max_wait_s=draw(st.sampled_from([0.0, 0.2, float("inf")])),
    )  # fmt: skip

    found = critical_path(rows, 0.0, simulator.now_s)

    path = found.path
    assert path["from_s"].tolist() == [0.0, *path["to_s"].iloc[:-1]]
    assert path["to_s"].iloc[-1] == simulator.now_s
    assert (path["to_s"] >= path["from_s"]).all()
    assert found.seconds_by("resource").sum() == pytest.approx(simulator.now_s)
    assert (found.slack_s >= 0).all()
    assert not found.slack_s[[c for c in path["client"].unique() if c >= 0]].any()
    assert nx.is_directed_acyclic_graph(Dependencies(Ops.of(rows), 0.0, simulator.now_s).graph)


@pytest.mark.parametrize("name", ["fedavg", "splitfed_v1", "splitfed_v2", "splitfed_v3", "mergesfl", "hydra"])
@pytest.mark.parametrize("alike", [True, False])
def test_precedences_are_those_of_the_flow(name, alike):
    rng = np.random.default_rng(1)
    n = 4
    world = fleet(n, *([2e4] * 3 if alike else (rng.uniform(1e4, 5e4, n).tolist() for _ in range(3))), 3.0)
    work = task((8, 8, 8, 8) if alike else (4, 7, 9, 2), batch_size=2, device=None)
    method = METHODS[name](work, METHODS[name].Options(**usual_options(name)))
    simulator = EventClock(world, Timing(), ORDERS["fcfs"])
    simulator.run(method.round(1, range(n)), 1)
    rows = simulator.take_rows()

    before = requested_after(Ops.of(rows))

    told = [tuple(row) for row in rows[["node", "kind", "step", "client"]].tolist()]
    found = {told[row]: told[cause] for row, cause in enumerate(before)}
    branches = [item.branches for item in trace(method.round(1, range(n)), simulator.prices) if isinstance(item, Fork)]
    chains = [
        [key(entry) for entry in branch if isinstance(entry, PlannedOperation)] for fork in branches for branch in fork
    ]
    pairs = [pair for chain in chains for pair in pairwise(chain)]
    assert pairs
    assert [found[after] for _, after in pairs] == [one for one, _ in pairs]


def key(entry):
    return entry.node.encode(), entry.kind.encode(), entry.step, entry.client


@pytest.mark.parametrize(
    ("name", "order", "workers"),
    [
        ("fedavg", "fcfs", 1),
        ("splitfed_v1", "fcfs", float("inf")),
        ("splitfed_v2", "cyclic", 1),
        ("hydra", "cyclic", 1),
    ],
)
def test_a_client_can_take_as_much_longer_as_its_slack_and_no_more(name, order, workers):
    """Slow down a client's device so that all its work grows by a bit less than its slack, and by a bit more."""
    rng = np.random.default_rng(2)
    n = 5
    world = fleet(n, *(rng.uniform(1e4, 5e4, n).tolist() for _ in range(3)), 50.0, latency_s=0.1)
    work = task((9, 6, 11, 3, 7), device=None)

    def run(world):
        _, simulator, rows = simulate(name, work, rounds=1, order=order, world=world, workers=workers)
        return rows, simulator.now_s

    rows, ended_s = run(world)
    slack_s = critical_path(rows, 0.0, ended_s).slack_s
    assert (slack_s > 0).any()
    for client, slack in slack_s.items():
        own = rows[(rows["client"] == client) & (rows["node"] == b"client")]
        work_s = (own["ended_s"] - own["started_s"]).sum()

        def ended_later_s(by_s, client=client, work_s=work_s):
            processors = list(world.processors)
            processors[client] = PlainProcessor(world.macs_per_s[client] / (1 + by_s / work_s))
            return run(replace(world, processors=processors))[1] - ended_s

        assert ended_later_s(0.99 * slack) == pytest.approx(0, abs=1e-9)
        if order == "fcfs":  # a client's work is one chain, and nobody has to wait for it but in the end
            assert ended_later_s(slack + 0.05) == pytest.approx(0.05)
