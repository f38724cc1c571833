"""The first step: a round of few clients with a mini-batch each, which shows before a run what would end it."""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from math import inf
from pathlib import Path
from traceback import StackSummary, extract_tb
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfl_sim.build.setup import Setup
from sfl_sim.data.batches import ClientData
from sfl_sim.data.partition import label_counts
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import DeadlockError, NonFiniteError, ScenarioError, in_short, own_place
from sfl_sim.models.on_nan import OnNan
from sfl_sim.ops import On
from sfl_sim.scenario.load import value_of
from sfl_sim.scenario.sections import Scenario, Stop
from sfl_sim.training.executors import Eager
from sfl_sim.training.hardware import PRECISIONS
from sfl_sim.training.process import own_process

N_CLIENTS = 2
"""Clients that take the step: with one, nothing would be averaged, stacked or waited for."""
N_TESTED = 8
"""Test samples for the models that come out; all of them where a user's own metric may know their number."""
CLIENT_S, OP_S, MACS_PER_S = 1e-4, 1e-3, 5e9
"""Estimates by which a step is left out before anybody notices it: seconds of Python for what a method keeps of a
client, and for an operation; and MACs a second of a core in depthwise convolutions (mobilenet_v1; dense ones: 17e9)."""
BLAMED: Sequence[tuple[str, str, str]] = [
    ("", "", ""),
    ("training/", "", "method.name"),
    ("methods/", "", "method.name"),
    ("methods/wire.py", "", "wire"),
    ("training/coded.py", "", "wire"),
    ("training/codecs/", "", "wire"),
    ("training/optimisers.py", "", "train.optimizer"),
    ("sim/event_clock.py", "policy", "server.order"),
    ("sim/station.py", "take", "server.order"),
    ("data/", "", "data"),
    ("models/", "", "model"),
    ("models/losses.py", "", "train.loss"),
    ("models/part.py", "loss", "train.loss"),
]
"""Files of ours, a function of theirs, and the key that has named what failed in there; the last one that fits."""


def first_step(built: Experiment, device: torch.device, within_s: float = inf) -> float:
    """Take the first step of an experiment that was built without a device; gives what is left of `within_s`.

    Two clients go through a whole round with as much as a mini-batch each, and training ends: what the run would do
    then is done, with few test samples, except for attacks and a user's `on_round_end`. Neither `built` nor this
    process changes. A step that is likely to take longer ends before the first operation for which no time is left, and
    then no other step begins. Nor is there a step where jobs are served as in another run, since whole rounds are.

    Raises ScenarioError, with the key of what is at fault, for whatever would end the run.
    """
    scenario = built.setup.scenario
    if any(section.recorded for section in (scenario.server, *scenario.servers.values())):
        return within_s
    setup = _small(built.setup, built.method.data)
    asks_all = built.method.has_exits or setup.scenario.serving or setup.scenario.report.representations
    tested_s = len(setup.dataset.y_test) * built.method.task.network.macs / MACS_PER_S
    left_s = within_s - tested_s - len(setup.shares) * (OP_S if asks_all else CLIENT_S)
    if left_s < 0:
        return 0.0
    executor = _Limited(OnNan(setup.scenario.train.on_nan == "skip"), left_s)
    with own_process(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run says it
        PRECISIONS[setup.scenario.train.precision].activate()
        try:
            experiment = Experiment(setup.scenario, device, executor, setup=setup)
            participation = experiment.walk.participation
            participation.size = min(participation.size, N_CLIENTS)
            with suppress(NonFiniteError, DeadlockError):  # that of the run may have other numbers, and more clients
                next(experiment.rounds())
        except _TooLongError:
            return 0.0
        except ScenarioError:
            raise
        except (Exception, SystemExit) as error:  # a user's code may raise anything
            key = _blamed(extract_tb(error.__traceback__), setup.scenario)
            problem = f"the first step fails with {in_short(error)}{own_place(error)}"
            raise ScenarioError(problem, key=key, found=value_of(setup.scenario, key)) from error
    return executor.left_s


class _TooLongError(Exception):
    """The next operation is likely to take longer than what is left."""


class _Limited(Eager):
    """Runs each step immediately, until those that have run are likely to have taken `left_s`."""

    def __init__(self, on_nan: OnNan, left_s: float) -> None:
        super().__init__(on_nan)
        self.left_s = left_s

    def run(self, op: On) -> Any:
        likely_s = OP_S + op.step.work(op.state, *op.args).macs / MACS_PER_S
        if likely_s > self.left_s:
            raise _TooLongError
        self.left_s -= likely_s
        return super().run(op)


def _small(setup: Setup, data: ClientData) -> Setup:
    """Return the setup with up to a mini-batch for each client, few test samples, and a training that ends at once."""
    scenario, dataset = setup.scenario, setup.dataset
    sizes = [min(data.size(c), data.samples(c)) for c in range(len(data))]
    n_tested = len(dataset.y_test) if scenario.report.metrics else N_TESTED
    small = copy(setup)
    train = scenario.train.model_copy(update={"stop": Stop(time_s=1e-9), "on_round_end": None})
    report = scenario.report.model_copy(update={"leakage": None})
    small.scenario = scenario.model_copy(update={"train": train, "report": report})
    picked = _spread(dataset.y_train, N_CLIENTS * max(sizes)), _spread(dataset.y_test, n_tested)
    small.dataset = dataset.picked(*picked)
    of_size = [{size: np.arange(end - size, end) for size in sizes} for end in (max(sizes), len(picked[0]))]
    small.shares = [of_size[client % N_CLIENTS][size] for client, size in enumerate(sizes)]  # other labels, if they can
    small.counts = label_counts(small.dataset.y_train.numpy(), small.shares, dataset.n_labels)
    small.validation = setup.validation[:0]
    small.test_sets = [np.arange(len(small.dataset.y_test)) for _ in setup.test_sets]
    return small


def _spread(samples: Tensor, n: int) -> Tensor:
    """Return the indices of up to `n` samples, from the first to the last: often they are sorted by their labels."""
    return torch.linspace(0, len(samples) - 1, min(n, len(samples))).long()


def _blamed(frames: StackSummary, scenario: Scenario) -> str:
    """Return the key of what has failed, by the innermost of our own functions that is to blame for something."""
    root, key = Path(__file__).parents[1], "method.name"
    for frame in frames:
        file = Path(frame.filename)
        where = file.relative_to(root).as_posix() if file.is_relative_to(root) else ""
        *_, blamed = (key for begins, name, key in BLAMED if where.startswith(begins) and name in ("", frame.name))
        key = blamed or key
    if key == "wire":
        coded = [way for way in ("up", "down", "update") if getattr(scenario.wire, way)]
        return f"wire.{coded[0]}" if len(coded) == 1 else "wire"
    if key in ("model", "data"):
        return f"{key}.{'name' if getattr(scenario, key).factory is None else 'factory'}"
    return key
