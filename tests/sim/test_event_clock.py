"""The clock: who waits for whom, by flows written for the purpose."""

from dataclasses import replace
from traceback import format_exception

import pytest
from small_steps import UNIT, Compute, computing, sending, together
from small_world import fleet

from sfl_sim.errors import DeadlockError, ScenarioError
from sfl_sim.ops import (
    AGGREGATOR,
    SERVER,
    Event,
    State,
    Value,
    Work,
    expect,
    occur,
    on,
    par,
    send,
    start,
    wait,
)
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.orders import ORDERS
from sfl_sim.system.links import Pattern, RateTrace
from sfl_sim.training.executors import Timing


def clock(n=2, order="fcfs", executor=None, **world):
    """Devices of 1 MAC/s, links of 8 bit/s (1 byte a second), a server of 1 MAC/s."""
    return EventClock(fleet(n, **(UNIT | world)), executor or Timing(), ORDERS[order])


def rows_of(simulator, flow):
    simulator.run(flow, 1)
    return simulator.take_rows()


def test_a_flow_does_one_thing_after_another():
    def flow():
        yield from computing(0, 3)
        yield from sending(5, 0, SERVER)
        yield from computing(SERVER, 2)
        yield from sending(4, SERVER, 0)

    rows = rows_of(clock(), flow())
    assert rows["ended_s"].tolist() == [3, 8, 10, 14]
    assert rows["node"].tolist() == [b"client", b"uplink", b"server", b"downlink"]


def test_patience_ends():
    """Let a flow wait for a limited time: it goes on then, and gets True if the events have occurred."""
    soon, late, told = Event("soon"), Event("late"), []

    def doer():
        for event in (soon, late):
            yield from computing(0, 3)
            yield occur(event)

    def waiter(events, at_most_s):
        come = yield wait(events, at_most_s)
        told.append((come, simulator.now_s))

    def flow():
        asked = [([soon], 4), ([soon, late], 4), ([soon, late], 8), ([], 5), ([late], 2)]
        yield par([doer(), *(waiter(*patience) for patience in asked)])
        yield from waiter([late], 9)

    simulator = clock()
    simulator.run(flow(), 1)
    assert told == [(True, 0), (False, 2), (True, 3), (False, 4), (True, 6), (True, 6)]
    assert not simulator._awaiting.events  # who has given up waits for nothing that might never come


def test_a_started_flow_holds_nobody_up_and_goes_on_in_the_next_round():
    def slow():
        yield from computing(0, 5)
        yield from sending(8, 0, SERVER)

    def first():
        yield start(slow())
        yield from computing(1, 2)

    def second():
        yield from computing(0, 1)
        yield from computing(1, 20)

    simulator = clock()
    simulator.run(first(), 1)
    assert simulator.now_s == 2
    assert simulator.take_rows()["client"].tolist() == [1]
    simulator.run(second(), 2)
    rows = simulator.take_rows()
    assert rows[["client", "started_s", "ended_s"]].tolist() == [(0, 0, 5), (0, 5, 6), (0, 5, 13), (1, 6, 26)]
    assert set(rows["round"]) == {2}


def test_what_goes_wrong_in_a_started_flow_is_told():
    def wrong():
        yield from computing(0, 1)
        raise ValueError("in the background")

    def flow():
        yield start(wrong())
        yield from computing(1, 5)

    with pytest.raises(ValueError, match="in the background"):
        clock().run(flow(), 1)


def test_a_flow_waits_for_what_others_do():
    """Let a flow wait for events: it goes on when the last has occurred; at once if all have, or if there are none."""
    first, second = Event("the first"), Event("the second")

    def doer(client, seconds, event):
        yield from computing(client, seconds)
        yield occur(event)

    def waiter():
        yield wait([first, second])
        yield from computing(2, 1)
        yield wait([first])
        yield wait([])
        yield from computing(2, 1)

    rows = rows_of(clock(3), together([waiter(), doer(0, 3, first), doer(1, 5, second)]))
    assert rows["requested_s"][rows["client"] == 2].tolist() == [5, 6]


def test_an_event_that_never_occurs_is_named():
    def flow():
        yield wait([Event("the fusion of mini-batch 3")])

    with pytest.raises(DeadlockError, match="the fusion of mini-batch 3"):
        clock().run(flow(), 1)


def test_flows_side_by_side_share_a_device_first_come_first_served():
    rows = rows_of(clock(), together(computing(0, 2) for _ in range(3)))
    assert rows["requested_s"].tolist() == [0, 0, 0]
    assert rows["started_s"].tolist() == [0, 2, 4]


class OnTrunk(State):
    """A head that is changed together with a trunk."""

    def __init__(self, trunk):
        super().__init__("model")
        self.trunk = trunk

    @property
    def guard(self):
        return self.trunk


def test_what_is_changed_together_with_a_shared_trunk_waits_for_the_trunk_whatever_the_workers():
    def starts(*trunks):
        simulator = EventClock(fleet(2, **UNIT), Timing(), Queueing(ORDERS["fcfs"], 2))
        jobs = (computing(SERVER, 2, OnTrunk(trunk)) for trunk in trunks)
        return rows_of(simulator, together(jobs))["started_s"].tolist()

    trunk = State("model")
    assert starts(trunk, trunk) == [0, 2]
    assert starts(trunk, State("model")) == [0, 0]


def test_uplink_and_downlink_are_two_links_and_each_sends_one_message_at_a_time():
    ends = [(0, SERVER), (0, SERVER), (SERVER, 0), (1, SERVER)]
    rows = rows_of(clock(), together(sending(3, src, dst) for src, dst in ends))
    assert sorted(rows[["node", "client", "ended_s"]].tolist()) == [
        (b"downlink", 0, 3), (b"uplink", 0, 3), (b"uplink", 0, 6), (b"uplink", 1, 3),
    ]  # fmt: skip


def test_latency_delays_a_message_but_does_not_hold_the_link():
    messages = together(sending(3, 0, SERVER) for _ in range(2))
    assert rows_of(clock(latency_s=10.0), messages)["ended_s"].tolist() == [13, 16]


def test_a_hand_over_between_clients_takes_the_slower_link_and_both_latencies():
    rows = rows_of(clock(uplink_bps=[16.0, 8.0], downlink_bps=[8.0, 4.0], latency_s=1.0), sending(4, 0, 1))
    assert rows["node"].tolist() == [b"peer"]
    assert rows["ended_s"].tolist() == [10]  # 4 bytes at half a byte a second, and twice a second


def test_a_copy_at_the_node_itself_takes_no_time_and_no_record():
    simulator = clock()
    assert len(rows_of(simulator, together(sending(10**9, node, SERVER) for node in (SERVER, AGGREGATOR)))) == 0
    assert simulator.now_s == 0


def test_par_gives_results_in_the_order_of_its_flows_whoever_is_done_first():
    simulator = clock()
    assert simulator.run(together([computing(0, 5), computing(1, 1)]), 1) == [5, 1]
    assert simulator.now_s == 5


def test_a_link_with_a_trace_takes_as_long_as_its_integral_says():
    """One byte a second for 4 s, then two: a message of 6 bytes that starts at 2 s ends at 6 s."""
    trace = RateTrace(12.0, Pattern([0.0, 4.0, 8.0], [8.0, 16.0]), 0.0)
    simulator = EventClock(replace(fleet(2, **UNIT), uplinks=[trace, trace]), Timing(), ORDERS["fcfs"])

    def flow():
        yield from computing(0, 2)
        yield from sending(6, 0, SERVER)

    assert rows_of(simulator, flow())["ended_s"].tolist() == [2, 6]


def test_a_state_is_copied_when_it_is_sent_and_not_when_it_arrives():
    class Counter(State):
        def __init__(self, content):
            super().__init__("model", 5, content=content)

        def snapshot(self):
            return Counter(self.content)

    class Add(Compute):
        def run(self, state, *args):
            state.content += 1

    class Runs(Timing):
        def run(self, op):
            return op.step.run(op.state)

    state = Counter(0)

    def sender():
        return (yield send(state, SERVER, 0)).content

    def changer():
        yield on(SERVER, Add(1), state)

    assert clock(executor=Runs()).run(together([sender(), changer()]), 1)[0] == 0
    assert state.content == 1


def test_averages_of_one_state_at_the_aggregator_do_not_overlap():
    state = State("model")
    averages = together(computing(AGGREGATOR, 3, of) for of in (state, state, State("model")))
    assert rows_of(clock(), averages)["ended_s"].tolist() == [3, 3, 6]


def test_the_clock_goes_on_from_round_to_round():
    simulator = clock()
    for number in (1, 2):
        simulator.run(computing(0, 2), number)
    rows = simulator.take_rows()
    assert rows["round"].tolist() == [1, 2]
    assert rows["ended_s"].tolist() == [2, 4]
    assert len(simulator.take_rows()) == 0


def test_who_waits_for_whom_is_named_when_nothing_can_happen_any_more():
    """Client 1 brings its job, but the order holds the server for client 0, which never comes."""

    def flow():
        state = State("model")
        yield expect(state, {0: 1, 1: 1})
        smashed = yield on(1, Compute(1), State("model"))
        yield on(SERVER, Compute(1), state, smashed)

    with pytest.raises(DeadlockError, match=r"round 1 .* 1\.000 s: client 1 .* client 0"):
        clock(order="cyclic").run(flow(), 1)


def test_jobs_that_were_announced_and_never_come_are_named():
    """As where a method lacks `yield from` before its mini-batches: the round would end at once and do nothing."""

    def flow(jobs):
        state = State("model")
        yield expect(state, {0: jobs})
        yield on(SERVER, Compute(1), state, (yield on(0, Compute(1), State("model"))))

    clock().run(flow(1), 1)
    with pytest.raises(DeadlockError, match=r"round 2 .* 2 jobs of client 0 .*`expect`"):
        clock().run(flow(3), 2)


@pytest.mark.parametrize("node", [0, SERVER])
def test_an_error_in_a_flow_or_a_step_is_raised_as_it_is(node):
    error = ScenarioError("in the method", key="method.name", found=3)

    class Fails(Compute):
        def out(self, state, *args):
            raise error

    def branch():
        yield on(node, Fails(1), State("model"))

    with pytest.raises(ScenarioError) as raised:
        clock().run(together([branch(), branch()]), 1)
    assert raised.value is error


def test_what_is_no_operation_is_refused():
    def flow():
        yield "train"

    with pytest.raises(TypeError, match="'train'"):
        clock().run(flow(), 1)

    def whole():
        yield flow()

    with pytest.raises(TypeError, match="`yield from`"):
        clock().run(whole(), 1)


@pytest.mark.parametrize("node", [0, AGGREGATOR])
@pytest.mark.parametrize("when", ["work", "run"])
def test_a_mistake_in_an_operation_names_the_line_that_yielded_it(node, when):
    class Runs(Timing):
        def run(self, op):
            return op.step.run(op.state, *op.args)

    class Sized(Compute):
        """Asks its argument for its size, before it runs or as it runs."""

    setattr(Sized, when, lambda step, state, value: Work.of(value.size_bytes))

    def flow():
        smashed = send(Value("smashed", 5), 0, SERVER)  # lacks its `yield`
        yield on(node, Sized(1), State("model"), smashed)

    with pytest.raises(AttributeError, match="'Send'") as raised:
        clock(executor=Runs()).run(flow(), 1)
    assert "yield on(node, Sized" in "".join(format_exception(raised.value))


def test_a_simpy_process_of_ones_own_runs_beside_the_flows():
    """A meter counts every 2.25 s the operations that have ended since it looked last: at 3 s, 5 s and 7 s one does."""
    simulator, seen = clock(), []

    def meter(env):
        while True:
            yield env.timeout(2.25)
            seen.append((env.now, len(simulator.take_rows())))

    def flow():
        yield from computing(0, 3)
        yield from sending(2, 0, SERVER)
        yield from computing(SERVER, 2)

    simulator.env.process(meter(simulator.env))
    simulator.run(flow(), 1)
    assert simulator.now_s == 7
    assert seen == [(2.25, 0), (4.5, 1), (6.75, 1)]
