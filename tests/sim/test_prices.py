"""Prices: a shape is asked once what it needs; nodes that do not exist and numbers that are none are refused."""

from dataclasses import replace
from math import inf, nan

import pytest
from small_steps import Compute, computing, made_by, sending
from small_world import fleet

from sfl_sim.errors import NonFiniteError, ScenarioError
from sfl_sim.ops import AGGREGATOR, SERVER, State, Step, Value, Work, on
from sfl_sim.scenario.sections import Clients, Server
from sfl_sim.sim.clock import Clock
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.nodes import link_between
from sfl_sim.sim.orders import ORDERS
from sfl_sim.sim.prices import Prices
from sfl_sim.sim.trace import trace
from sfl_sim.system.cost import FittedProcessor
from sfl_sim.system.fleet import build_fleet
from sfl_sim.training.executors import Timing


class Asked(Step):
    """A step of one MAC a sample, which counts how often it is asked for its work."""

    name = "asked"

    def __init__(self):
        self.asked = 0

    def work(self, state, data):
        self.asked += 1
        return Work.of(data.samples)

    def out(self, state, data):
        return Value("result", 8 * data.samples, data.samples, data.step)

    def shape(self, state, data):
        return data.samples

    def run(self, state, data):
        return None


class Twice(Asked):
    """Overrides the work alone, so that the shape may say too little."""

    def work(self, state, data):
        return Work.of(2 * super().work(state, data).macs)


class Unknown(Asked):
    """Has no shape that would say all."""

    def shape(self, state, data):
        return None


def looked_up(step):
    """MACs, bytes and mini-batch of four operations."""
    prices, state = Prices(fleet(1)), State("model")
    found = [prices.look_up(on(0, step, state, Value("data", 0, n, i))) for i, n in enumerate((4, 4, 2, 4))]
    return [(macs, result.size_bytes, result.step) for macs, _, result in found]


@pytest.mark.parametrize("trace", [None, "hsdpa_bus"])
def test_protocols_add_a_share_and_bytes_of_every_message_to_its_time(trace):
    def seconds(size_bytes, **overhead):
        scenario = {"network": {"uplink_bps": 8e3, "downlink_bps": 8e3, "trace": trace, **overhead}}
        clients = Clients.model_validate({"compute": 1e6, **scenario})
        return Prices(build_fleet(1, 0, clients, Server())).transfer_s(link_between(0, SERVER), 0.0, size_bytes)

    added = {"overhead": {"share": 0.05, "message_bytes": 40}}
    assert seconds(1000, **added) == seconds(1090)
    assert seconds(0, **added) == (0.0, 0.0), "nothing is sent"


def test_a_step_is_asked_once_for_each_shape():
    step = Asked()
    assert looked_up(step) == [(4, 32, 0), (4, 32, 1), (2, 16, 2), (4, 32, 3)]
    assert step.asked == 2


@pytest.mark.parametrize(("step", "macs"), [(Twice(), [8, 8, 4, 8]), (Unknown(), [4, 4, 2, 4])])
def test_a_step_that_tells_no_shape_is_asked_every_time(step, macs):
    assert looked_up(step) == [(macs[0], 32, 0), (macs[1], 32, 1), (macs[2], 16, 2), (macs[3], 32, 3)]
    assert step.asked == 4


def drive(flow):
    EventClock(fleet(3), Timing(), ORDERS["fcfs"]).run(flow, 1)


def foresee(flow):
    trace(flow, Prices(fleet(3)))


CLOCKS = pytest.mark.parametrize("walk", [drive, foresee])


def odd(node, work, value):
    step = Compute(0, "odd")
    step.work = lambda state, *args: work
    yield on(node, step, State("model"), value)


@CLOCKS
@pytest.mark.parametrize("macs", [-1.0, nan, inf])
@pytest.mark.parametrize(("node", "where"), [(1, "client 1"), (SERVER, "client 1, at the server")])
def test_macs_that_are_none_name_the_operation(walk, macs, node, where):
    with pytest.raises(NonFiniteError, match=rf"^odd of mini-batch 0 of {where} has {macs} MACs$"):
        walk(odd(node, Work.of(macs), made_by(1)))


@CLOCKS
@pytest.mark.parametrize("size_bytes", [-8, nan, inf])
def test_bytes_that_are_none_name_the_payload(walk, size_bytes):
    with pytest.raises(NonFiniteError, match=rf"^Value\(smashed, {size_bytes} B.*\) cannot be sent"):
        walk(sending(size_bytes, 1, SERVER))


BOTH = pytest.mark.parametrize("like", [None, "all"], ids=["by events", "by arrays"])


@BOTH
def test_seconds_that_are_none_name_the_operation(like):
    """The same with the array clock, which leaves the message to the event clock."""
    world = replace(fleet(3), processors=[FittedProcessor(1, 1, 1, 1, 1)] * 3)
    with pytest.raises(NonFiniteError, match=r"^odd of mini-batch 0 of client 2 takes nan s$"):
        clock(world).run(lambda: odd(2, Work(1.0, (0, 0, nan, 0), 0), made_by(2)), 1, like=like)


def clock(world=None):
    return Clock(EventClock(world or fleet(3), Timing(), ORDERS["fcfs"]))


@BOTH
@pytest.mark.parametrize("node", [-3, 3, 1000, 1.5, "server", None])
@pytest.mark.parametrize(
    "flow",
    [
        lambda node: computing(node, 1),
        lambda node: sending(5, node, SERVER),
        lambda node: sending(5, SERVER, node),
        lambda node: sending(5, 0, node),
        lambda node: sending(5, node, node),
    ],
    ids=["on", "from", "to", "between clients", "to itself"],
)
def test_no_operation_takes_place_at_a_node_that_does_not_exist(flow, node, like):
    with pytest.raises(ScenarioError) as refused:
        clock().run(lambda: flow(node), 1, like=like)
    assert refused.value.allowed == ["clients 0 to 2", "SERVER", "AGGREGATOR"]
    assert repr(node) in str(refused.value)


@BOTH
def test_every_node_of_the_fleet_is_known(like):
    def flow():
        for node in (0, 2, SERVER, AGGREGATOR):
            yield from computing(node, 1)
            yield from sending(5, node, SERVER)
            yield from sending(5, AGGREGATOR, node)

    simulator = clock()
    simulator.run(flow, 1, like=like)
    assert len(simulator.events.take_rows()) == 8
