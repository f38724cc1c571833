"""A node that the fleet does not have is refused in one line by both clocks, whatever a flow wants of it."""

import re

import pytest
from small_steps import Compute
from small_world import fleet

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import AGGREGATOR, SERVER, State, Value, on, send
from sfl_sim.sim.clock import Clock
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.training.executors import Timing


def clock():
    return Clock(EventClock(fleet(3), Timing(), ORDERS["fcfs"]))


@pytest.mark.parametrize("like", [None, "all"], ids=["by events", "by arrays"])
@pytest.mark.parametrize("node", [-3, 3, 1000, 1.5, "server", None])
@pytest.mark.parametrize(
    "op",
    [
        lambda node: on(node, Compute(1), State("model")),
        lambda node: send(Value("smashed", 5), node, SERVER),
        lambda node: send(Value("gradients", 5), SERVER, node),
        lambda node: send(Value("model", 5), 0, node),
        lambda node: send(Value("model", 5), node, node),
    ],
    ids=["on", "from", "to", "between clients", "to itself"],
)
def test_no_operation_takes_place_at_a_node_that_does_not_exist(op, node, like):
    def flow():
        yield op(node)

    line = f"a flow names node {node!r}, which does not exist (allowed: clients 0 to 2, SERVER, AGGREGATOR)"
    with pytest.raises(ScenarioError, match=f"^{re.escape(line)}$"):
        clock().run(flow, 1, like=like)


@pytest.mark.parametrize("like", [None, "all"], ids=["by events", "by arrays"])
def test_every_node_of_the_fleet_is_known(like):
    def flow():
        for node in (0, 2, SERVER, AGGREGATOR):
            yield on(node, Compute(1), State("model"))
            yield send(Value("smashed", 5), node, SERVER)
            yield send(Value("gradients", 5), AGGREGATOR, node)

    simulator = clock()
    simulator.run(flow, 1, like=like)
    assert len(simulator.events.take_rows()) == 8
