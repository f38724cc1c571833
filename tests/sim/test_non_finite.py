"""Steps and values of a user's own whose numbers make no sense stop the run, foreseen or not, and are named."""

from dataclasses import replace
from math import inf, nan

import pytest
from small_world import fleet

from sfl_sim.errors import NonFiniteError
from sfl_sim.ops import SERVER, State, Value, Work, on, send
from sfl_sim.sim.clock import Clock
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.sim.trace import trace
from sfl_sim.system.cost import FittedProcessor
from sfl_sim.training.executors import Timing


class Odd:
    """A step of a user's own."""

    name = "odd"
    aggregates = False

    def __init__(self, work):
        self._work = work

    def work(self, state, *args):
        return self._work

    def out(self, state, *args):
        return Value("done", step=4)


def simulator():
    return EventClock(fleet(3), Timing(), ORDERS["fcfs"])


def drive(flow):
    simulator().run(flow, 1)


def foresee(flow):
    trace(flow, simulator().prices)


@pytest.mark.parametrize("walk", [drive, foresee])
@pytest.mark.parametrize("macs", [-1.0, nan, inf])
def test_macs_that_are_none_name_the_operation(walk, macs):
    def flow():
        yield on(2, Odd(Work.of(macs)), State("model"), Value("batch", step=4))

    with pytest.raises(NonFiniteError, match=rf"^odd of mini-batch 4 of client 2 has {macs} MACs$"):
        walk(flow())


@pytest.mark.parametrize("walk", [drive, foresee])
def test_a_job_of_the_server_is_named_with_its_client(walk):
    smashed = Value("smashed", step=4)
    smashed.maker = 1

    def flow():
        yield on(SERVER, Odd(Work.of(nan)), State("model"), smashed)

    with pytest.raises(NonFiniteError, match=r"^odd of mini-batch 4 of client 1, at the server has nan MACs$"):
        walk(flow())


@pytest.mark.parametrize("foreseen", [False, True])
def test_seconds_that_are_none_name_the_operation(foreseen):
    """The same with the array clock, which leaves the message to the event clock."""

    def flow():
        yield on(2, Odd(Work(1.0, (0, 0, nan, 0), 0)), State("model"))

    world = replace(fleet(3), processors=[FittedProcessor(1, 1, 1, 1, 1)] * 3)
    clock = Clock(EventClock(world, Timing(), ORDERS["fcfs"]))
    with pytest.raises(NonFiniteError, match=r"^odd of client 2 takes nan s$"):
        clock.run(flow, 1, like="all" if foreseen else None)


@pytest.mark.parametrize("walk", [drive, foresee])
@pytest.mark.parametrize("size_bytes", [-8, nan, inf])
def test_bytes_that_are_none_name_the_payload(walk, size_bytes):
    def flow():
        yield send(Value("smashed", size_bytes, samples=2, step=4), 1, SERVER)

    with pytest.raises(NonFiniteError, match=rf"^Value\(smashed, {size_bytes} B, 2 samples, step 4\) cannot be sent"):
        walk(flow())
