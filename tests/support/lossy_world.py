"""A small world whose clients come and go, for tests of what is made of a round without those that it loses."""

from dataclasses import replace
from math import inf

from small_world import fleet, task, tensors, usual_options

from sfl_sim.methods import METHODS
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.system.presence import Presence
from sfl_sim.training.batched import Batched
from sfl_sim.training.eager import Eager
from sfl_sim.training.timing import Timing

EVERYBODY = [0, 1, 2, 3]
SURVIVORS = [0, 1, 2]
FOR_GOOD_S = 1e6
ALWAYS = Presence([(0.0, 1.0)], 1.0)


def gone_at(leaves_s, for_s=FOR_GOOD_S):
    """Make the presence of four clients, of which some go away, each at its instant and for its time."""
    return [
        Presence([(0.0, leaves_s[c]), (leaves_s[c] + for_s, 2 * FOR_GOOD_S)], 2 * FOR_GOOD_S)
        if c in leaves_s
        else ALWAYS
        for c in EVERYBODY
    ]


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
        if isinstance(executor, Batched):
            executor.finish()
    return method, simulator, records


def own(rows, client):
    """Select the client's own operations: on its device and its links."""
    return rows[(rows["client"] == client) & (rows["node"] != b"server")]


def instant(rows, client, share):
    """Give the instant at which this share of the client's own part of a round has passed."""
    mine = own(rows, client)
    begin_s, end_s = mine["requested_s"].min(), mine["ended_s"].max()
    return begin_s + share * (end_s - begin_s)


def bits(method):
    """The global model's numbers, to be compared to the bit."""
    return {name: tensor.numpy().tobytes() for name, tensor in tensors(method).items()}


TRAIN_ALONE = {
    "fedavg": {}, "splitfed_v1": {}, "splitfed_v3": {}, "multihead": {}, "fedprox": {"mu": 0.1}, "fedavgm": {},
    "fednar": {"max_norm": 0.5}, "smofi": {"fusion": False}, "multiexit": {}, "splitgp": {},
    "harmony": {"inner_steps": 1},
}  # fmt: skip
"""Methods whose clients train copies, and share nothing before the average."""

TOGETHER = {
    "splitfed_v2": [{}],
    "hydra": [{"cut2": 2}],
    "mergesfl": [{}, {"steps": "mean"}],
    "splitfrozen": [{}],
    "splitfed_v1": [{"server_agg_every": "step"}, {"server_agg_every": "epoch"}],
    "smofi": [{"barrier": barrier, "staleness": -1.0} for barrier in ("paper", "strict", "relaxed")],
}
"""Methods whose clients have changed something common before they are done."""
