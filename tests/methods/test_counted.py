"""MACs that methods are charged against torch's own count of the products that their steps run."""

from collections import Counter

import pytest
from small_exits import deep
from small_world import CASES, fleet, task
from torch.utils.flop_counter import FlopCounterMode

from sfl_sim import testing
from sfl_sim.methods.dtfl import Dtfl
from sfl_sim.methods.epsl import Epsl
from sfl_sim.methods.fsl_sage import FslSage
from sfl_sim.methods.gas import Gas
from sfl_sim.methods.harmony import Harmony
from sfl_sim.ops import ServerNode
from sfl_sim.training.executors import Eager

OTHERWISE = {
    Harmony: "aligns by a second backward pass of z++, which the paper's formula has not",
    Epsl: "asks for rows' gradients that it drops: autograd computes them one by one",
    Gas: "sums activations by label, which is a product here",
}
"""Why a method's steps at the server run more products than its algorithm needs; priced is the algorithm."""
COUNTED = [
    case
    for case in CASES
    if case.kind is not FslSage  # whose second derivatives the counter cannot follow
    and not (case.kind is Dtfl and not case.options.count_models)  # whose only tier is another cut
]


class Counting(Eager):
    """Counts what torch multiplies, and what is charged, at clients and at servers."""

    def __init__(self):
        super().__init__()
        self.counted, self.charged = Counter(), Counter()

    def run(self, op):
        with FlopCounterMode(display=False) as counter:
            out = super().run(op)
        if not op.step.aggregates:  # averages are no products
            where = "server" if isinstance(op.node, ServerNode) else "client"
            self.counted[where] += counter.get_total_flops() / 2
            self.charged[where] += op.step.work(op.state, *op.args).macs
        return out


@pytest.mark.parametrize("case", COUNTED, ids=str)
def test_a_method_is_charged_the_products_that_its_steps_run(case):
    """Clients hold two layers of five; the gradient of samples, and whatever goes to nobody, is not computed."""
    executor = Counting()
    method = case.method(task([8, 4], build=deep, cut=2, momentum=0.9))
    testing.simulate(method, 2, "fcfs", fleet(2), executor)
    assert executor.charged["client"] == executor.counted["client"] > 0
    if case.kind in OTHERWISE:
        assert 0 < executor.charged["server"] <= executor.counted["server"]
    else:
        assert executor.charged["server"] == executor.counted["server"]
