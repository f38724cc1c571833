"""Nodes of small live runs: processes of this machine, and methods that run on them."""

import asyncio
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch

from sfl_sim import testing
from sfl_sim.data.batches import Images
from sfl_sim.errors import ScenarioError
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


@dataclass(frozen=True)
class LazyRecipe:
    """Makes no samples, but only sleeps."""

    def __call__(self):
        time.sleep(600)


@dataclass(frozen=True)
class FailingRecipe:
    """Fails to make samples."""

    def __call__(self):
        raise ZeroDivisionError("by nought")


@dataclass(frozen=True)
class TalkingRecipe:
    """Says more than a pipe holds, and fails."""

    def __call__(self):
        os.write(2, b"so much to say\n" * 20_000)
        raise ZeroDivisionError("by nought")


class Touch(Step):
    name = "touch"

    def run(self, state):
        state.weights.flat.add_(1)


class Fails(Step):
    name = "fails"

    def run(self, state):
        raise ZeroDivisionError("by nought")


def one_agent(node, address, key, allow_code=True, server="tcp://127.0.0.1"):
    """A node in a thread of this process: its agent, its thread, and the error with which it ends, if any."""
    errors = []

    def serve():
        try:
            asyncio.run(started.serve(address, key, server))
        except (ScenarioError, agent.EndedEarly) as error:
            errors.append(error)

    started = agent.Agent(node, agent.own_of, allow_code)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return started, thread, errors


@contextmanager
def thread_nodes(n_clients, samples=12):
    """Nodes in threads of this process, which begin in no time: the driver's side, and the agents by node."""
    machines = Machines(RunKey.new(), n_clients)
    address = machines.listen("tcp://127.0.0.1")
    agents, threads = {}, []
    try:
        for node in machines.nodes:
            agents[node], thread, _ = one_agent(node, address, machines.key)
            threads.append(thread)
        machines.gather(10)
        if samples:
            machines.begin(SmallImages(samples))
        yield machines, agents
    finally:
        machines.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


def until(machines, happened):
    """Let the driver take messages until something has happened."""
    for _ in range(1000):
        if happened():
            return
        machines.step(0.01)
    raise TimeoutError
