"""The loss of a scenario, as it fits what the data ask to predict."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from sfl_sim.build.registry import named
from sfl_sim.data.loading import Dataset
from sfl_sim.errors import ScenarioError, in_short, own_place
from sfl_sim.goals import Goal
from sfl_sim.models.losses import LOSSES, ByMean, Loss
from sfl_sim.models.network import Network
from sfl_sim.scenario.sections import TrainSection

KEY = "train.loss"


def build_loss(train: TrainSection, dataset: Dataset, net: Network, device: torch.device | None) -> Loss:
    """Build the loss; weights of labels lie on `device`.

    Raises ScenarioError if the scenario's loss, or one of its options, does not fit the data.
    """
    goal = dataset.goal
    by_name = LOSSES[goal]
    name = train.loss or next(iter(by_name))
    of_others = {each for losses in LOSSES.values() for each in losses} - set(by_name)
    if name in of_others:
        problem = f"does not predict {goal}, as the data ask"
        raise ScenarioError(problem, key=KEY, found=name, allowed=list(by_name))
    function = named(name, by_name, KEY)
    if name not in by_name and not callable(function):
        raise ScenarioError("is no function", key=KEY, found=name)
    options = _options(train, dataset, name, net.dtype, device)
    if name not in by_name:
        _try(function, dataset, net)
        return ByMean(function)
    return ByMean(partial(function, **options)) if options else function


def _options(
    train: TrainSection, dataset: Dataset, name: str, dtype: torch.dtype, device: torch.device | None
) -> dict[str, Any]:
    """Return the arguments of torch's loss that the scenario's keys stand for; or raise ScenarioError."""
    goal = dataset.goal
    options: dict[str, Any] = {}
    if train.ignore_index is not None and goal not in (Goal.TOKENS, Goal.PIXELS):
        problem = "is for tokens and pixels; leave such samples out of the data"
        raise ScenarioError(problem, key="train.ignore_index", found=train.ignore_index)
    if train.label_smoothing:
        if name != "cross_entropy":
            problem = f"is for cross_entropy, and train.loss is {name}"
            raise ScenarioError(problem, key="train.label_smoothing", found=train.label_smoothing)
        options["label_smoothing"] = train.label_smoothing
    if train.class_weights is not None:
        if name not in ("cross_entropy", "bce"):
            problem = f"are for cross_entropy and bce, and train.loss is {name}"
            raise ScenarioError(problem, key="train.class_weights", found=train.class_weights)
        given = _weights(train.class_weights, dataset, train.ignore_index)
        weights = torch.tensor(given, dtype=dtype, device=device)
        options["pos_weight" if name == "bce" else "weight"] = weights
    return options


def _weights(given: str | list[float], dataset: Dataset, ignored: int | None) -> list[float]:
    n = len(dataset.answers)
    if isinstance(given, list):
        if len(given) != n:
            problem = f"needs one weight for each of {n} labels"
            raise ScenarioError(problem, key="train.class_weights", found=f"{len(given)} weights")
        return given
    targets = dataset.y_train if dataset.targets_train is None else dataset.targets_train
    if dataset.goal is Goal.LABEL_SET:
        having = targets.sum(dim=0, dtype=torch.float64)
        return ((len(targets) - having) / having.clamp(min=1)).tolist()
    counts = (dataset.x_train[:, 1:] if dataset.goal is Goal.TOKENS else targets).flatten().long().bincount(minlength=n)
    counts = counts[:n].double()
    if ignored is not None and ignored < n:
        counts[ignored] = 0
    return (counts.sum() / (n * counts.clamp(min=1))).tolist()


def _try(function: Any, dataset: Dataset, net: Network) -> None:
    """Try a user's own loss on outputs of a network for two samples; raises ScenarioError if it is no loss."""
    outputs = torch.zeros(2, *net.layers[-1].out_shape, dtype=net.dtype, requires_grad=True)
    targets = dataset.y_train if dataset.targets_train is None else dataset.targets_train
    targets = dataset.x_train[:2, 1:].long() if dataset.goal is Goal.TOKENS else targets[:2]
    try:
        mean = function(outputs[: len(targets)], targets)
    except Exception as error:  # a user's function may raise anything
        raise ScenarioError(f"fails with {in_short(error)}{own_place(error)}", key=KEY) from error
    if not (isinstance(mean, Tensor) and mean.ndim == 0 and mean.requires_grad):
        found = f"{type(mean).__name__} {tuple(mean.shape)}" if isinstance(mean, Tensor) else type(mean).__name__
        problem = "must give the mean over a mini-batch, a tensor () that depends on the outputs"
        raise ScenarioError(problem, key=KEY, found=found)
