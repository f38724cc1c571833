"""Nodes of small live runs: processes of this machine, and methods that run on them."""

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch

from sfl_sim import testing
from sfl_sim.data.batches import Images
from sfl_sim.features.live import agent
from sfl_sim.features.live.clock import FOR_EVER_S, Empty, LiveOperations
from sfl_sim.features.live.links import RunKey
from sfl_sim.features.live.local import LocalNodes
from sfl_sim.features.live.machines import Machines
from sfl_sim.ops import Step
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.system.presence import Presence


@dataclass(frozen=True)
class SmallImages:
    """Makes the samples of a small task, wherever it is asked."""

    n: int

    def __call__(self):
        return Images(testing.images(self.n), torch.device("cpu"), torch.float64, False, augment=False)


@contextmanager
def small_nodes(samples, recipe=SmallImages):
    """Nodes for clients with so many samples each."""
    machines, recipe = Machines(RunKey.new(), len(samples)), recipe(sum(samples))
    host = "tcp://127.0.0.1"
    local = LocalNodes(machines.nodes, machines.listen(host), machines.key, recipe, host)
    try:
        machines.gather(60, local.why_gone)
        machines.begin(recipe)
        yield machines
    finally:
        machines.close()
        local.end()


def on_nodes(method, machines, world, rounds=None):
    """Run a method on nodes; gives its run, what they have measured, and the bits of the global model."""
    steps, executor = [], Empty()
    presence = [Presence([(0.0, FOR_EVER_S)], FOR_EVER_S) for _ in world.samples]
    run = testing.simulate(
        method,
        world.rounds if rounds is None else rounds,
        world.order,
        replace(world.fleet, presence=presence),
        executor,
        workers=world.workers,
        environment=partial(executor.clock, machines, 1.0),
        operations=type("Operations", (LiveOperations,), {"steps": steps}),
        dropouts=Dropouts("drop", presence),
    )
    with machines.at_the_driver():
        return run, steps, testing.bits(method)


@dataclass(frozen=True)
class OfAnotherTime(SmallImages):
    """The same, on machines whose clocks are ahead: by 1,000 seconds and by up to 300 more, each by another time."""

    def __call__(self):
        agent.now_s = lambda: time.monotonic() + 1000 + 100 * (os.getpid() % 4)
        return super().__call__()


class Touch(Step):
    name = "touch"

    def run(self, state):
        state.weights.flat.add_(1)


class Fails(Step):
    name = "fails"

    def run(self, state):
        raise ZeroDivisionError("by nought")
