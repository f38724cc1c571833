"""Steps for flows that are written for the purpose: what is computed does not matter."""

from sfl_sim.ops import Value, Work


class Compute:
    """A step of so many MACs."""

    aggregates = False

    def __init__(self, macs, name="work"):
        self.macs = macs
        self.name = name

    def work(self, state, *args):
        return Work.of(self.macs)

    def out(self, state, *args):
        return Value("result")

    def run(self, state, *args):
        return None
