"""Steps and flows that are written for the purpose: what is computed does not matter."""

from sfl_sim.ops import State, Value, Work, on, par, send

UNIT = {"macs_per_s": 1.0, "uplink_bps": 8.0, "downlink_bps": 8.0, "speedup": 1.0}
"""A fleet's devices and server of 1 MAC/s, and links of a byte a second."""


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


def made_by(client, size_bytes=0):
    """A value of a client, whose job at a server a step on it is."""
    value = Value("smashed", size_bytes, step=0)
    value.maker = client
    return value


def computing(node, macs, state=None, *values):
    """Compute on a node; gives the MACs."""
    yield on(node, Compute(macs), state or State("model"), *values)
    return macs


def sending(size_bytes, src, dst):
    """Send so many bytes."""
    yield send(Value("smashed", size_bytes), src, dst)


def together(flows):
    """Run flows side by side; gives what `par` gives."""
    return (yield par(flows))
