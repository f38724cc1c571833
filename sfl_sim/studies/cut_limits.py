"""Limits on cuts: the memory of the clients, and an accuracy that recorded runs must have reached."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sfl_sim.errors import ScenarioError
from sfl_sim.models.network import Network
from sfl_sim.scenario.concerns import Aside, differences
from sfl_sim.scenario.sections import ClientCuts, Scenario
from sfl_sim.store import is_whole
from sfl_sim.studies.trained import NOT_TRAINING, TrainedRun

MEMORY, ACCURACY, RUN = "--memory", "--accuracy", "--run"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_ASIDE: Aside = {*NOT_TRAINING, "seed", "model.cut"}
"""Keys in which a recorded run may differ from the scenario whose accuracy it shows."""


def read_bytes(text: str) -> int:
    """Return the bytes of 256MB, 1.5GB or 64000, with decimal units.

    Raises ScenarioError for anything else.
    """
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS or not float(match[1]):
        raise ScenarioError("is no size of a memory", file=MEMORY, found=text, allowed="such as 256MB, 1.5GB or 64000")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def check_accuracy(accuracy: float | None, runs: Sequence[Path]) -> None:
    """Check that the accuracy is a share, and that runs are given with it and not without it; or ScenarioError."""
    if accuracy is None and runs:
        raise ScenarioError("says nothing without an accuracy to reach: --accuracy 0.6", file=RUN, found=str(runs[0]))
    if accuracy is not None and not 0 < accuracy <= 1:
        raise ScenarioError("is a share of the test samples", file=ACCURACY, found=accuracy, allowed="above 0, up to 1")
    if accuracy is not None and not runs:
        raise ScenarioError("needs runs that tell what each cut reaches: --run FOLDER", file=ACCURACY, found=accuracy)


def recorded_accuracy(scenario: Scenario, network: Network, runs: Sequence[Path]) -> dict[int, float]:
    """Return the recorded final accuracy of `scenario` by the cut of all clients: median over seeds.

    System and seed may differ; variants whose cuts differ between clients or rounds do not count.

    Args:
        runs: folders of the runs.

    Raises ScenarioError if a folder contains no run, or if none has trained this scenario.
    """
    found: dict[int, list[float]] = {}
    nearest: dict[str, tuple[Any, Any]] | None = None
    for run in map(TrainedRun, runs):
        for variant in run.variants:
            cut, summary = variant.scenario.model.cut, run.summary_of(variant)
            differ = differences(_cut_at_1(variant.scenario), _cut_at_1(scenario), _ASIDE)
            if nearest is None or len(differ) < len(nearest):
                nearest = differ
            if differ or isinstance(cut, ClientCuts) or summary is None:
                continue
            if summary["accuracy"] is not None and is_whole(summary, variant.scenario.train.rounds):
                found.setdefault(network.cut_at(cut), []).append(summary["accuracy"])
    if nearest:
        key, (there, wanted) = next(iter(nearest.items()))
        problem = (
            f"{', '.join(map(str, runs))}: nothing was trained as the scenario says; what is nearest has {there!r}"
        )
        raise ScenarioError(problem, key=key, found=wanted)
    if not found:
        raise ScenarioError("has no accuracy of a cut that all clients share", file=RUN, found=str(runs[0]))
    return {cut: median(accuracies) for cut, accuracies in found.items()}


def _cut_at_1(scenario: Scenario) -> Scenario:
    """Return the scenario with a cut that does not follow the speed of the devices."""
    return scenario.model_copy(update={"model": scenario.model.model_copy(update={"cut": 1})})
