"""A small network with exits at unequal depths, and methods trained on it."""

from math import inf

from small_world import fleet, task
from torch import nn

from sfl_sim.methods import METHODS
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.orders import ORDERS
from sfl_sim.training.executors import Eager, Timing

EXACT = 1e-10
WITH_EXITS = ["harmony", "multiexit", "splitgp"]
PLAIN = {"inner_steps": 0, "csa_weight": 0.0, "quantise": False}
"""HARMONY without all that makes it so."""
WORK = {"samples": [7, 6, 4, 6], "cuts": [1, 3, 2, 3], "momentum": 0.5, "weight_decay": 1e-2, "local_epochs": 2}
COMINGS = [[0, 1, 2], [3, 0], [1, 2, 3]]
"""Participants by round."""


def deep(shape, n_labels):
    """Five layers, the front three with batch norm; the first exits are on feature maps, the last on a vector."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 3, 3, padding=1), nn.BatchNorm2d(3), nn.ELU()),
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ELU()),
        nn.Sequential(nn.Conv2d(4, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Flatten()),
        nn.Sequential(nn.Linear(2 * shape[1] * shape[2], 6), nn.Tanh()),
        nn.Linear(6, n_labels),
    )


def deep_task(**settings):
    return task(**{"build": deep, **WORK, **settings})


def trained(name, work, comings=COMINGS, after_round=lambda method: None, **options):
    """The method after as many rounds and the last download."""
    method = METHODS[name](work, METHODS[name].Options(**options))
    simulator = EventClock(fleet(len(work.data)), Eager() if work.device else Timing(), Queueing(ORDERS["fcfs"], inf))
    for number, clients in enumerate(comings, 1):
        simulator.run(method.round(number, clients), number)
        after_round(method)
    simulator.run(method.finish(), len(comings))
    return method
