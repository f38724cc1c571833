"""Calibration: finds the settings that train a scenario fastest on this machine, by short alternating measurements."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from typing import Any

import torch

from sfl_sim.build.optimisation import largest_batch
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import Method
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import Study
from sfl_sim.scenario.sections import Scenario, Train
from sfl_sim.studies.paired_times import alternate, quartiles
from sfl_sim.studies.train import check
from sfl_sim.training.alternatives import replicas_by_name
from sfl_sim.training.hardware import keep_freed_memory, pick_device, threads_for
from sfl_sim.training.precision import PRECISIONS

WORTH = 0.95
"""Ratio to the time of the scenario's own settings below which a choice is proposed."""
COMPARISON_S = 5.0
"""Approximate seconds of a comparison of two settings, with `MIN_PAIRS` to `MAX_PAIRS` pairs of rounds."""
MIN_PAIRS, MAX_PAIRS = 3, 10
CPU_ROUND_MACS = 1e11
"""Maximum of MACs of a measured round on a CPU, by fewer participants and mini-batches: a second on two cores."""
MAX_STEPS = 64
"""Maximum of mini-batches of a measured round."""


@dataclass(frozen=True)
class Choice:
    """Settings that differ from the scenario's: keys of its section `train`, and threads."""

    train: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None

    @property
    def flags(self) -> str:
        """The choice as options of the command line."""
        sets = [f"--set train.{key}={str(value).lower()}" for key, value in self.train.items()]
        return " ".join(sets + ([] if self.threads is None else [f"--threads {self.threads}"]))

    def __add__(self, other: Choice) -> Choice:
        return Choice({**self.train, **other.train}, self.threads or other.threads)


@dataclass(frozen=True)
class Finding:
    """Measurement of a choice; the scenario's own settings are the empty choice.

    Attributes:
        ratio, upper: median and upper quartile of the time relative to the scenario's own settings.
        step_s: wall seconds per mini-batch of one client, its forward, backward and optimiser steps on both sides: that
            of the scenario's own settings, a median over all comparisons, times the ratio.
        exact: True if the weights after a round are equal to the bit.
        refusal: the reason why it cannot be chosen, without numbers then; None if it can.
    """

    choice: Choice
    ratio: float = 1.0
    upper: float = 1.0
    step_s: float = 0.0
    exact: bool = True
    refusal: str | None = None

    @property
    def pays(self) -> bool:
        """True if the choice is clearly faster."""
        return self.refusal is None and self.ratio < WORTH and self.upper < 1


def calibrate(study: Study, settings: Settings, notify: Callable[[str], None]) -> list[Finding]:
    """Compare the first variant's settings with every other choice, and with all profitable choices combined.

    The measured rounds have the scenario's model, cut and method, but fewer participants and mini-batches, and no
    evaluation.

    Args:
        notify: called with the flags of the next choice.

    Raises ScenarioError for a timing-only run, and if the study cannot be used.
    """
    if settings.timing_only:
        raise ScenarioError("a timing-only run computes nothing", key="--calibrate")
    device = pick_device(settings.device)
    check(study, device)
    keep_freed_memory()
    scenario = study.variants[0].scenario
    notify("the settings as they are")
    usual = _Trial(scenario, device, settings.threads)
    findings, usual_s = [Finding(Choice())], [usual.timed_s()]
    for choice in _choices(scenario.train, device, usual.threads):
        notify(choice.flags)
        findings.append(_compare(usual, choice, usual_s))
    together = reduce(Choice.__add__, _fastest(findings), Choice())
    if together.flags and all(together != finding.choice for finding in findings):
        notify(together.flags)
        findings.append(_compare(usual, together, usual_s))
    step_s = statistics.median(usual_s) / usual.steps
    return [replace(finding, step_s=step_s * finding.ratio) for finding in findings]


def proposal(findings: list[Finding]) -> Finding | None:
    """Return the fastest of the choices that are clearly faster; None without any."""
    return min((finding for finding in findings if finding.pays), key=lambda finding: finding.ratio, default=None)


def _choices(train: Train, device: torch.device, threads: int) -> Iterator[Choice]:
    """Generate all choices that differ in one setting from the scenario's own."""
    if threads > 1:
        yield Choice(threads=1)
    offered = {
        "precision": ("float32", "bf16", "tf32") if device.type == "cuda" else ("float32", "bf16"),
        "compile": (False, True),
    }
    for key, values in offered.items():
        yield from (Choice({key: value}) for value in values if value != getattr(train, key))


def _fastest(findings: list[Finding]) -> list[Choice]:
    """List the fastest choice for each setting, of those that are clearly faster."""
    paying = sorted((finding for finding in findings if finding.pays), key=lambda finding: -finding.ratio)
    return list({tuple(finding.choice.train): finding.choice for finding in paying}.values())


def _compare(usual: _Trial, choice: Choice, usual_s: list[float]) -> Finding:
    """Measure a choice; the seconds of the usual settings' rounds join `usual_s`."""
    try:
        other = usual.with_(choice)
    except ScenarioError as error:
        return Finding(choice, refusal=error.problem)
    pairs = int(COMPARISON_S / (usual.timed_s() + other.timed_s()))
    theirs_s, ours_s = alternate(usual, other, min(max(pairs, MIN_PAIRS), MAX_PAIRS))
    usual_s += theirs_s
    _, ratio, upper = quartiles(ours_s, theirs_s)
    return Finding(choice, ratio, upper, exact=other.learned_as(usual))


class _Trial:
    """A trial of short rounds; each call trains one, with the given settings."""

    def __init__(self, scenario: Scenario, device: torch.device, threads: int) -> None:
        self.scenario, self.device, self._available = scenario, device, threads
        always = scenario.clients.model_copy(update={"availability": None})  # a measured round needs its clients
        self._experiment = Experiment(scenario.model_copy(update={"clients": always}), device)
        self._experiment.check_device(device)
        self.threads = threads_for(self._experiment.batch_macs, threads)
        self._clients = self._cut_down()
        self.steps = sum(self._experiment.method.data.n_batches(c) for c in self._clients)
        self._numbers = count(1)
        torch.manual_seed(scenario.seed)
        self._experiment.walk.set_up()
        self()  # compiles, and loads libraries
        model = replicas_by_name(self._experiment.method.model())
        self._learned = [replica.weights.flat.clone() for replica in model.values()]

    def with_(self, choice: Choice) -> _Trial:
        """Make another trial of the same scenario. Raises ScenarioError if the choice is not possible."""
        train = self.scenario.train.model_copy(update=dict(choice.train))
        return _Trial(self.scenario.model_copy(update={"train": train}), self.device, choice.threads or self._available)

    def learned_as(self, other: _Trial) -> bool:
        """Return True if the first round gave the same bits."""
        pairs = zip(self._learned, other._learned, strict=True)
        return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)

    def __call__(self) -> None:
        torch.set_num_threads(self.threads)
        PRECISIONS[self.scenario.train.precision].activate()
        self._experiment.walk.round(next(self._numbers), self._clients)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed_s(self) -> float:
        """Measure the seconds of a call."""
        began_s = time.perf_counter()
        self()
        return time.perf_counter() - began_s

    def _cut_down(self) -> list[int]:
        """Reduce the first round's participants and mini-batches to those of a measured round; gives the clients."""
        experiment, budget = self._experiment, MAX_STEPS
        if self.device.type == "cpu":
            budget = min(budget, max(2, int(CPU_ROUND_MACS / (3 * experiment.batch_macs))))
        drawn = experiment.walk.participation.draw(1, experiment.setup.cyclic)
        clients = list(experiment.method.choose(1, drawn))[:budget]
        method = experiment.method
        samples = largest_batch(self.scenario.train) * max(1, budget // len(clients))
        data = replace(method.data, shares=[share[:samples] for share in method.data.shares], local_epochs=1)
        kind: type[Method] = type(method)
        experiment.walk.replace_method(kind(replace(method.task, data=data), method.options))
        return clients
