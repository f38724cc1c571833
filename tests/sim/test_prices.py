"""What operations of one shape need and give is asked once."""

import pytest
from small_world import fleet

from sfl_sim.ops import SERVER, State, Step, Value, Work, on
from sfl_sim.scenario.sections import Clients, Server
from sfl_sim.sim.nodes import link_between
from sfl_sim.sim.prices import Prices
from sfl_sim.system.fleet import build_fleet


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
