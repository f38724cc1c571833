"""The clock: who waits for whom, by flows written for the purpose."""

from dataclasses import replace
from traceback import format_exception

import pytest
from small_steps import Compute
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
    read,
    send,
    start,
    wait,
)
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.system.links import Pattern, RateTrace
from sfl_sim.training.executors import Timing


def clock(n=2, order="fcfs", executor=None, **world):
    """Devices of 1 MAC/s, links of 8 bit/s (1 byte a second), a server of 1 MAC/s."""
    rates = {"macs_per_s": 1.0, "uplink_bps": 8.0, "downlink_bps": 8.0, "speedup": 1.0}
    return EventClock(fleet(n, **(rates | world)), executor or Timing(), ORDERS[order])


def rows_of(simulator, flow):
    simulator.run(flow, 1)
    return simulator.take_rows()


def test_a_flow_does_one_thing_after_another():
    def flow():
        state = State("model")
        yield on(0, Compute(3), state)
        yield send(Value("smashed", 5), 0, SERVER)
        yield on(SERVER, Compute(2), state)
        yield send(Value("gradients", 4), SERVER, 0)

    rows = rows_of(clock(), flow())
    assert rows["ended_s"].tolist() == [3, 8, 10, 14]
    assert rows["node"].tolist() == [b"client", b"uplink", b"server", b"downlink"]


def test_patience_ends():
    """Let a flow wait for a limited time: it goes on then, and gets True if the events have occurred."""
    soon, late, told = Event("soon"), Event("late"), []

    def doer():
        yield on(0, Compute(3), State("model"))
        yield occur(soon)
        yield on(0, Compute(3), State("model"))
        yield occur(late)

    def waiter(events, at_most_s):
        come = yield wait(events, at_most_s)
        told.append((come, simulator.now_s))

    def flow():
        patient = [
            waiter([soon], 4),
            waiter([soon, late], 4),
            waiter([soon, late], 8),
            waiter([], 5),
            waiter([late], 2),
        ]
        yield par([doer(), *patient])
        yield from waiter([late], 9)

    simulator = clock()
    simulator.run(flow(), 1)
    assert told == [(True, 0), (False, 2), (True, 3), (False, 4), (True, 6), (True, 6)]
    assert not simulator._awaiting.events  # who has given up waits for nothing that might never come


def test_a_started_flow_holds_nobody_up_and_goes_on_in_the_next_round():
    def slow():
        yield on(0, Compute(5), State("model"))
        yield send(Value("late", 8), 0, SERVER)

    def first():
        yield start(slow())
        yield on(1, Compute(2), State("model"))

    def second():
        yield on(0, Compute(1), State("model"))
        yield on(1, Compute(20), State("model"))

    simulator = clock()
    simulator.run(first(), 1)
    assert simulator.now_s == 2
    assert simulator.take_rows()["client"].tolist() == [1]
    simulator.run(second(), 2)
    rows = simulator.take_rows()
    assert [(row["client"], row["started_s"], row["ended_s"]) for row in rows] == [
        (0, 0, 5),
        (0, 5, 6),
        (0, 5, 13),
        (1, 6, 26),
    ]
    assert set(rows["round"]) == {2}


def test_what_goes_wrong_in_a_started_flow_is_told():
    def wrong():
        yield on(0, Compute(1), State("model"))
        raise ValueError("in the background")

    def flow():
        yield start(wrong())
        yield on(1, Compute(5), State("model"))

    with pytest.raises(ValueError, match="in the background"):
        clock().run(flow(), 1)


def test_a_flow_waits_for_what_others_do():
    """Let a flow wait for events: it goes on when the last has occurred; at once if all have, or if there are none."""
    first, second = Event("the first"), Event("the second")

    def doer(client, seconds, event):
        yield on(client, Compute(seconds), State("model"))
        yield occur(event)

    def waiter():
        yield wait([first, second])
        yield on(2, Compute(1), State("model"))
        yield wait([first])
        yield wait([])
        yield on(2, Compute(1), State("model"))

    def flow():
        yield par([waiter(), doer(0, 3, first), doer(1, 5, second)])

    rows = rows_of(clock(3), flow())
    assert rows["requested_s"][rows["client"] == 2].tolist() == [5, 6]


def test_an_event_that_never_occurs_is_named():
    def flow():
        yield wait([Event("the fusion of mini-batch 3")])

    with pytest.raises(DeadlockError, match="a flow waits for the fusion of mini-batch 3"):
        clock().run(flow(), 1)


def test_flows_side_by_side_share_a_device_first_come_first_served():
    def job(state):
        yield on(0, Compute(2), state)

    def flow():
        yield par(job(State("model")) for _ in range(3))

    rows = rows_of(clock(), flow())
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
    def job(state):
        yield on(SERVER, Compute(2), state)

    def flow(*trunks):
        yield par(job(OnTrunk(trunk)) for trunk in trunks)

    def starts(*trunks):
        simulator = EventClock(fleet(2, speedup=1.0, macs_per_s=1.0), Timing(), ORDERS["fcfs"], workers=2)
        return rows_of(simulator, flow(*trunks))["started_s"].tolist()

    trunk = State("model")
    assert starts(trunk, trunk) == [0, 2]
    assert starts(trunk, State("model")) == [0, 0]


def test_uplink_and_downlink_are_two_links_and_each_sends_one_message_at_a_time():
    def message(src, dst):
        yield send(Value("smashed", 3), src, dst)

    def flow():
        yield par(message(*ends) for ends in [(0, SERVER), (0, SERVER), (SERVER, 0), (1, SERVER)])

    rows = rows_of(clock(), flow())
    assert sorted(zip(rows["node"].tolist(), rows["client"].tolist(), rows["ended_s"].tolist(), strict=True)) == [
        (b"downlink", 0, 3),
        (b"uplink", 0, 3),
        (b"uplink", 0, 6),
        (b"uplink", 1, 3),
    ]


def test_latency_delays_a_message_but_does_not_hold_the_link():
    def message():
        yield send(Value("smashed", 3), 0, SERVER)

    def flow():
        yield par(message() for _ in range(2))

    assert rows_of(clock(latency_s=10.0), flow())["ended_s"].tolist() == [13, 16]


def test_a_hand_over_between_clients_takes_the_slower_link_and_both_latencies():
    def flow():
        yield send(Value("model", 4), 0, 1)

    rows = rows_of(clock(uplink_bps=[16.0, 8.0], downlink_bps=[8.0, 4.0], latency_s=1.0), flow())
    assert rows["node"].tolist() == [b"peer"]
    assert rows["ended_s"].tolist() == [10]  # 4 bytes at half a byte a second, and twice a second


def test_a_copy_at_the_node_itself_takes_no_time_and_no_record():
    def flow():
        yield send(State("model", 10**9), SERVER, SERVER)
        yield send(State("model", 10**9), AGGREGATOR, SERVER)

    simulator = clock()
    assert len(rows_of(simulator, flow())) == 0
    assert simulator.now_s == 0


def test_par_gives_results_in_the_order_of_its_flows_whoever_is_done_first():
    def job(node, macs):
        yield on(node, Compute(macs), State("model"))
        return macs

    def flow():
        return (yield par([job(0, 5), job(1, 1)]))

    simulator = clock()
    assert simulator.run(flow(), 1) == [5, 1]
    assert simulator.now_s == 5


def test_a_link_with_a_trace_takes_as_long_as_its_integral_says():
    """One byte a second for 4 s, then two: a message of 6 bytes that starts at 2 s ends at 6 s."""
    trace = RateTrace(12.0, Pattern([0.0, 4.0, 8.0], [8.0, 16.0]), 0.0)
    simulator = EventClock(replace(clock().prices.fleet, uplinks=[trace, trace]), Timing(), ORDERS["fcfs"])

    def flow():
        yield on(0, Compute(2), State("model"))
        yield send(Value("smashed", 6), 0, SERVER)

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

    def flow():
        return (yield par([sender(), changer()]))

    assert clock(executor=Runs()).run(flow(), 1)[0] == 0
    assert state.content == 1


def test_averages_of_one_state_at_the_aggregator_do_not_overlap():
    def average(state):
        yield on(AGGREGATOR, Compute(3), state)

    def flow():
        state = State("model")
        yield par([average(state), average(state), average(State("model"))])

    assert rows_of(clock(), flow())["ended_s"].tolist() == [3, 3, 6]


def test_the_clock_goes_on_from_round_to_round():
    def flow():
        yield on(0, Compute(2), State("model"))

    simulator = clock()
    simulator.run(flow(), 1)
    simulator.run(flow(), 2)
    rows = simulator.take_rows()
    assert rows["round"].tolist() == [1, 2]
    assert rows["ended_s"].tolist() == [2, 4]
    assert len(simulator.take_rows()) == 0


def test_a_number_can_be_read():
    class Knows(Timing):
        def read(self, value):
            return 7.0

    def flow():
        return (yield read(Value("norm")))

    assert clock(executor=Knows()).run(flow(), 1) == 7.0


def test_who_waits_for_whom_is_named_when_nothing_can_happen_any_more():
    """Client 1 brings its job, but the order holds the server for client 0, which never comes."""

    def flow():
        state = State("model")
        yield expect(state, {0: 1, 1: 1})
        smashed = yield on(1, Compute(1), State("model"))
        yield on(SERVER, Compute(1), state, smashed)

    with pytest.raises(DeadlockError, match=r"round 1 is stuck at 1\.000 s: client 1 waits .* holds for client 0"):
        clock(order="cyclic").run(flow(), 1)


def test_jobs_that_were_announced_and_never_come_are_named():
    """As where a method lacks `yield from` before its mini-batches: the round would end at once and do nothing."""

    def flow(jobs):
        state = State("model")
        yield expect(state, {0: jobs})
        yield on(SERVER, Compute(1), state, (yield on(0, Compute(1), State("model"))))

    clock().run(flow(1), 1)
    with pytest.raises(DeadlockError, match="round 2 has ended without 2 jobs of client 0 that `expect` has announced"):
        clock().run(flow(3), 2)


@pytest.mark.parametrize("node", [0, SERVER])
def test_an_error_in_a_flow_or_a_step_is_raised_as_it_is(node):
    error = ScenarioError("in the method", key="method.name", found=3)

    class Fails(Compute):
        def out(self, state, *args):
            raise error

    def branch():
        yield on(node, Fails(1), State("model"))

    def flow():
        yield par([branch(), branch()])

    with pytest.raises(ScenarioError) as raised:
        clock().run(flow(), 1)
    assert raised.value is error


def test_what_is_no_operation_is_refused():
    def flow():
        yield "train"

    with pytest.raises(TypeError, match="'train', which is no operation"):
        clock().run(flow(), 1)

    def whole():
        yield flow()

    with pytest.raises(TypeError, match="which is no operation; `yield from` runs a flow"):
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

    with pytest.raises(AttributeError, match="'Send' object has no attribute") as raised:
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
        state = State("model")
        yield on(0, Compute(3), state)
        yield send(Value("smashed", 2), 0, SERVER)
        yield on(SERVER, Compute(2), state)

    simulator.env.process(meter(simulator.env))
    simulator.run(flow(), 1)
    assert simulator.now_s == 7
    assert seen == [(2.25, 0), (4.5, 1), (6.75, 1)]
