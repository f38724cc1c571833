"""A small world whose clients come and go, for tests of what is made of a round without those that it loses."""

from dataclasses import replace
from math import inf

from small_world import fleet, task, usual_options

from sfl_sim.methods import METHODS
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.testing import EVERYBODY, SURVIVORS, bits, gone_at, instant
from sfl_sim.training.executors import Eager, Timing

__all__ = ["EVERYBODY", "SURVIVORS", "bits", "gone_at", "instant", "own", "run"]


def run(
    name, rounds, presence=None, options=None, policy="drop", deadline_s=inf, order="cyclic", speedup=20.0,
    executor=None, **work
):  # fmt: skip
    """Let `rounds` go by, each with the participants that it names; the method, the clock, and each round's records."""
    work = task(**({"samples": [4, 8, 4, 8], "momentum": 0.9, "local_epochs": 2} | work))
    kind = METHODS[name]
    method = kind(work, kind.Options(**(usual_options(name) if options is None else options)))
    world = fleet(len(work.data), [1e3, 2e3, 3e3, 2e3], 2e4, [4e4, 2e4, 3e4, 5e4], speedup)
    executor = executor or (Eager() if work.device else Timing())
    dropouts = Dropouts(policy, presence, deadline_s)
    simulator = EventClock(replace(world, presence=presence), executor, ORDERS[order], workers=1, dropouts=dropouts)
    simulator.run(method.setup(), 1, in_round=False)
    records = []
    for number, clients in enumerate(rounds, start=1):
        simulator.run(method.round(number, clients), number)
        records.append(simulator.take_rows())
    return method, simulator, records


def own(rows, client):
    """Select the client's own operations: on its device and its links."""
    return rows[(rows["client"] == client) & (rows["node"] != b"server")]
