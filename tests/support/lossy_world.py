"""A small world whose clients come and go, for tests of what is made of a round without those that it loses."""

from dataclasses import replace
from math import inf

from small_world import fleet, task, usual_options

from sfl_sim.methods import METHODS
from sfl_sim.ops import Value
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.testing import EVERYBODY, SURVIVORS, bits, gone_at, instant, simulate
from sfl_sim.training.steps import Backward, Forward, Train

__all__ = ["EVERYBODY", "SURVIVORS", "bits", "gone_at", "instant", "own", "replayed", "run"]


def run(
    name, rounds, presence=None, options=None, policy="drop", deadline_s=inf, order="cyclic", speedup=20.0,
    executor=None, **work
):  # fmt: skip
    """Let `rounds` go by, each with the participants that it names; the method, the clock, and each round's records."""
    work = task(**({"samples": [4, 8, 4, 8], "momentum": 0.9, "local_epochs": 2} | work))
    kind = METHODS[name]
    method = kind(work, kind.Options(**(usual_options(name) if options is None else options)))
    world = fleet(len(work.data), [1e3, 2e3, 3e3, 2e3], 2e4, [4e4, 2e4, 3e4, 5e4], speedup)
    dropouts = Dropouts(policy, presence, deadline_s)
    world = replace(world, presence=presence)
    method, clock, rows = simulate(method, rounds, order, world, executor, workers=1, dropouts=dropouts)
    return method, clock, [rows[rows["round"] == number] for number in range(1, len(rounds) + 1)]


def replayed(work, part1s, part2, jobs, round):
    """Train by hand, job by job, what the records say that the server served."""
    sgd = work.optimiser(round)
    batches = {c: list(work.data.batches(c, round)) for c in part1s}
    for job in jobs:
        part1, batch = part1s[job["client"]], batches[job["client"]][job["step"]]
        smashed = Value("smashed", content=Forward().run(part1, batch))
        Backward(sgd).run(part1, Value("gradients", content=Train(sgd).run(part2, smashed)))


def own(rows, client):
    """Select the client's own operations: on its device and its links."""
    return rows[(rows["client"] == client) & (rows["node"] != b"server")]
