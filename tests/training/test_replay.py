"""An executor that remembers what is alive, and puts it into a run that is walked again."""

import gc
import random

import numpy as np
import pytest
import torch
from small_world import fleet, task
from torch.utils._pytree import tree_leaves

from sfl_sim.methods import METHODS
from sfl_sim.ops import On, Value
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.training.contents import dump, load
from sfl_sim.training.executors import Eager
from sfl_sim.training.replay import CheckpointMismatch, Image, Replay


def rounds(method, memory, numbers):
    """Run some rounds on a clock of their own."""
    simulator = EventClock(fleet(3), memory, ORDERS["fcfs"])
    for number in numbers:
        simulator.run(method.round(number, range(3)), number)


def stored(image):
    """Store and load an image as a checkpoint does."""
    return Image(**load(dump(vars(image))))


def test_an_image_holds_what_is_alive_and_no_more():
    method, executor = METHODS["splitfed_v1"](task()), Eager()
    memory = Replay(executor)
    rounds(method, memory, [1])
    executor.finish()
    gc.collect()
    image = memory.image()
    assert len(image.states) == len(method.model())
    assert not image.results
    held = [one for one in tree_leaves(image.states) if isinstance(one, torch.Tensor) and one.dtype == torch.float64]
    numbers = sum(tensor.numel() for tensor in held)
    assert numbers == sum(part.weights.flat.numel() + part.weights.buffers.numel() for part in method.model())


def test_a_walk_along_other_operations_is_noticed():
    memory = Replay(Eager())
    rounds(METHODS["splitfed_v1"](task()), memory, [1])
    again = Replay(Eager())
    again.walk(stored(memory.image()))
    with pytest.raises(CheckpointMismatch):
        rounds(METHODS["splitnn"](task()), again, [1, 2])


class Halve:
    """A step on nothing, whose result is the half of a value."""

    name, aggregates = "halve", False

    def run(self, state, value):
        return value.load() / 2


def test_a_value_that_was_made_of_another_before_either_was_used_has_its_content():
    method = METHODS["fedavg"](task())

    def walk(memory):
        """One result, which another value takes over as its content."""
        first = Value("number", content=torch.tensor(8.0))
        half = Value("half", content=memory.run(On(0, Halve(), method.whole, first)))
        return Value("the same", content=half.content)

    memory = Replay(Eager())
    one = walk(memory)
    again = Replay(Eager())
    again.walk(stored(memory.image()))
    other = walk(again)
    assert again.run(On(0, Halve(), method.whole, other)) == one.content / 2 == 2.0


def test_numpy_s_and_python_s_generators_go_on_where_they_were():
    """Layers of a user's own may draw from them."""
    method, memory = METHODS["splitfed_v1"](task()), Replay(Eager())
    rounds(method, memory, [1])
    image = stored(memory.image())
    drawn = np.random.random(), random.random(), torch.rand(())  # noqa: NPY002
    again = Replay(Eager())
    again.walk(image)
    rounds(METHODS["splitfed_v1"](task()), again, [1])
    assert (np.random.random(), random.random(), torch.rand(())) == drawn  # noqa: NPY002
