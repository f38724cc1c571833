"""Three clocks agree: the event loop, the arrays where there is a plan, and a naive loop written from docs/methods."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_clock import NaiveClock
from small_world import CASES, fleet, task

from sfl_sim.metrics.busy import busy
from sfl_sim.sim.clock import Clock
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.orders import ORDERS
from sfl_sim.store.columns import OP_DTYPE, in_order
from sfl_sim.system.cost import PlainProcessor
from sfl_sim.training.executors import Timing

rates = st.sampled_from([2.0**9, 2.0**10, 2.0**12])
"""Powers of two: sums of such times are exact, so equal instants are equal however they come about."""


@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=12)
@given(st.data())
def test_three_clocks_tell_the_same_timeline(case, data):
    draw = data.draw
    samples = draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    n = len(samples)
    clients = sorted(draw(st.permutations(range(n)))[: draw(st.integers(1, n))])
    macs_per_s, up_bps, down_bps = (draw(st.lists(rates, min_size=n, max_size=n)) for _ in range(3))
    latency_s, server_macs_per_s = draw(st.sampled_from([0.0, 0.25])), draw(st.sampled_from([2.0**10, 2.0**14]))
    world = fleet(n, macs_per_s, up_bps, down_bps, latency_s=latency_s)
    world = replace(world, server=PlainProcessor(server_macs_per_s))
    order = draw(st.sampled_from(["fcfs", "cyclic", "cyclic_reverse", "shortest_job"]))
    served = {
        "workers": draw(st.sampled_from([1, 2, float("inf")])),
        "burst": draw(st.sampled_from([1, 2])) if order.startswith("cyclic") else 1,
    }

    def method():
        return case.method(task(samples, batch_size=2, device=None, participants=len(clients), momentum=0.9))

    naive = NaiveClock(macs_per_s, up_bps, down_bps, server_macs_per_s, latency_s, order, **served)
    timelines = [run(method(), clients, naive)]
    for by_arrays in (False, True):
        clock = Clock(EventClock(world, Timing(), Queueing(ORDERS[order], **served)))
        timelines.append(run(method(), clients, clock, like="all" if by_arrays and case.kind.regular else None))
    assert timelines[0] == timelines[1]
    assert timelines[1] == timelines[2]


def run(method, clients, clock, **plan):
    """Two rounds after the setup; all rows, and when they end."""
    naive, before = isinstance(clock, NaiveClock), []
    for number in (0, 1, 2):

        def flow(number=number):
            return method.round(number, clients) if number else method.setup()

        if naive:
            clock.run(flow(), max(number, 1))
        else:
            clock.run(flow, max(number, 1), **(plan if number else {}))
        rows = in_order(np.array(clock.rows[len(before) :], OP_DTYPE)) if naive else clock.events.take_rows()
        before += rows.tolist()
        if method.looks_at_times and number:
            method.task.seen.learn(number, *busy(rows))
    return before, clock.now_s
