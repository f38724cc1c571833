"""How clients and server optimise: the loss, rates, sizes of mini-batches and optimisers, as a scenario gives them."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfl_sim.build.catalogue import unknown_option
from sfl_sim.build.registry import named
from sfl_sim.data.batches import CountPerClient, Images
from sfl_sim.data.loading import Dataset
from sfl_sim.data.samples import Ints
from sfl_sim.errors import ScenarioError, calling_theirs
from sfl_sim.goals import Goal
from sfl_sim.models.losses import LOSSES, ByMean, Loss
from sfl_sim.models.network import Network, by_speed
from sfl_sim.scenario.fields import quantity
from sfl_sim.scenario.sections import BySpeed, ScheduleSection, TrainSection
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.profiles import per_client, read_table
from sfl_sim.training.optimisers import OPTIMISERS
from sfl_sim.training.schedules import SCHEDULES, Schedule, own_rates, torch_rates

OptimiserKind = str | Callable[..., torch.optim.Optimizer]
KEY = "train.loss"
NO_OPTIONS = ("optimizer", "last_epoch")
"""Arguments of torch's schedulers that a scenario has no say in."""


def build_loss(
    train: TrainSection, dataset: Dataset, shares: Sequence[Ints], net: Network, device: torch.device | None
) -> Loss:
    """Build the loss; weights of labels lie on `device`, and follow from the `shares` that clients train with.

    Raises ScenarioError if the scenario's loss, or one of its options, does not fit the data.
    """
    by_name = LOSSES[dataset.goal]
    name = train.loss or next(iter(by_name))
    is_ours = name in by_name
    if not is_ours and any(name in losses for losses in LOSSES.values()):
        problem = f"does not predict {dataset.goal}, as the data ask"
        raise ScenarioError(problem, key=KEY, found=name, allowed=list(by_name))
    function = named(name, by_name, KEY)
    if not callable(function):
        raise ScenarioError("is no function", key=KEY, found=name)
    options = _options(train, dataset, shares, name, net.dtype, device)
    if not is_ours:
        _try(function, dataset, net, train.ignore_index)
    return ByMean(partial(function, **options)) if options or not is_ours else function


def _options(
    train: TrainSection,
    dataset: Dataset,
    shares: Sequence[Ints],
    name: str,
    dtype: torch.dtype,
    device: torch.device | None,
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
        given = _weights(train.class_weights, dataset, shares, train.ignore_index)
        weights = torch.tensor(given, dtype=dtype, device=device)
        options["pos_weight" if name == "bce" else "weight"] = weights
    return options


def _weights(given: str | list[float], dataset: Dataset, shares: Sequence[Ints], ignored: int | None) -> list[float]:
    n = len(dataset.answers)
    if isinstance(given, list):
        if len(given) != n:
            problem = f"needs one weight for each of {n} labels"
            raise ScenarioError(problem, key="train.class_weights", found=f"{len(given)} weights")
        return given
    trained = torch.from_numpy(np.concatenate(shares))
    targets = (dataset.y_train if dataset.targets_train is None else dataset.targets_train)[trained]
    if dataset.goal is Goal.LABEL_SET:
        having = targets.sum(dim=0, dtype=torch.float64)
        return ((len(targets) - having) / having.clamp(min=1)).tolist()
    answers = dataset.x_train[trained, 1:] if dataset.goal is Goal.TOKENS else targets
    counts = answers.flatten().long().bincount(minlength=n)[:n].double()
    if ignored is not None and ignored < n:
        counts[ignored] = 0
    return (counts.sum() / (n * counts.clamp(min=1))).tolist()


def _try(function: Any, dataset: Dataset, net: Network, ignored: int | None) -> None:
    """Try a user's own loss on outputs of a network for two samples; raises ScenarioError if it is no loss."""
    outputs = torch.zeros(2, *net.layers[-1].out_shape, dtype=net.dtype, requires_grad=True)
    images = Images(dataset, torch.device("cpu"), net.dtype, channels_last=False, augment=False, ignored=ignored)
    targets = images.targets(images.x[:2], images.y[:2])
    with calling_theirs(KEY):
        mean = function(outputs[: len(targets)], targets)
    if not (isinstance(mean, Tensor) and mean.ndim == 0 and mean.requires_grad):
        found = f"{type(mean).__name__} {tuple(mean.shape)}" if isinstance(mean, Tensor) else type(mean).__name__
        problem = "must give the mean over a mini-batch, a tensor () that depends on the outputs"
        raise ScenarioError(problem, key=KEY, found=found)


def optimisation(train: TrainSection, fleet: Fleet) -> dict[str, Any]:
    """Return the fields of a `Task` that say how its nodes optimise. Raises ScenarioError for what cannot be used."""
    rates = _of_clients(train.lr, fleet, "train.lr")
    of_server = train.server.model_dump(exclude_none=True) if train.server else {}
    if "optimizer" in of_server:
        of_server["optimizer"] = optimiser_kind(of_server["optimizer"], "train.server.optimizer")
    if isinstance(rates, list):
        of_server.setdefault("lr", None)
    if train.server is not None and not of_server:
        raise ScenarioError("says nothing that is different", key="train.server", found={})
    least = min(filter(None, [*(rates if isinstance(rates, list) else [rates]), of_server.get("lr")]))
    if train.lr_min > least:
        problem = "must be at most the least rate of train.lr and train.server.lr"
        raise ScenarioError(problem, key="train.lr_min", found=train.lr_min, allowed=f"up to {least:g}")
    return {
        "lr": rates[0] if isinstance(rates, list) else rates,
        "client_lr": rates if isinstance(rates, list) else (),
        **{key: getattr(train, key) for key in ("lr_decay", "lr_min", "momentum", "weight_decay", "clip_norm")},
        "lr_schedule": _schedule(train.schedule, train.rounds) if train.schedule else None,
        "optimizer": optimiser_kind(train.optimizer, "train.optimizer"),
        "server": of_server,
    }


def counts_of_clients(value: int | str | list[int] | BySpeed, fleet: Fleet, key: str) -> CountPerClient:
    """Return a whole number for all clients, or one for each. Raises ScenarioError for others."""
    counts = _of_clients(value, fleet, key)
    if not isinstance(counts, list):
        return int(counts)
    for count in counts:
        if count != int(count):
            raise ScenarioError("must be a whole number", key=key, found=count)
    return [int(count) for count in counts]


def _of_clients(value: float | str | Sequence[float] | BySpeed, fleet: Fleet, key: str) -> float | list[float]:
    """Return the value of all clients, or one for each."""
    if isinstance(value, BySpeed):
        return by_speed(value.values, fleet.macs_per_s, f"{key}.values")
    if isinstance(value, str | list):
        values: list[float] = per_client(value, len(fleet.macs_per_s), key).tolist()
        return values
    return value  # type: ignore[return-value]


def largest_batch(train: TrainSection) -> int:
    """Return the samples of the largest mini-batch of any client."""
    size = train.batch_size
    if isinstance(size, str):
        return int(read_table(Path(size), ["batch_size"], "train.batch_size").numbers("batch_size").max())
    return int(max(size.values if isinstance(size, BySpeed) else size if isinstance(size, list) else [size]))


def one_batch_size(train: TrainSection, key: str) -> int:
    """Return the size of all clients' mini-batches, which `key` needs; raises ScenarioError if clients differ."""
    if not isinstance(train.batch_size, int):
        raise ScenarioError("needs one train.batch_size for all clients", key=key)
    return train.batch_size


def optimiser_kind(name: str, key: str) -> OptimiserKind:
    """Return an optimiser's name, or a user's own function, which is tried on a parameter; or raise ScenarioError."""
    if name in OPTIMISERS:
        return name
    make: OptimiserKind = named(name, {}, key)
    if not callable(make):
        raise ScenarioError("is no function", key=key, found=name)
    parameter = torch.zeros(2, requires_grad=True)
    with calling_theirs(key, name, "; it must make a torch.optim.Optimizer"):
        optimiser = make([parameter], lr=0.1)
        parameter.grad = torch.ones(2)
        optimiser.step()
    return make


def _schedule(section: ScheduleSection, rounds: int) -> Schedule:
    """Return the schedule of a section. Raises ScenarioError for an unknown kind, or options that it refuses."""
    name, options, key = section.kind, section.options, "train.schedule"
    if name not in SCHEDULES:
        if ":" not in name:
            raise ScenarioError("is no schedule", key=f"{key}.kind", found=name, allowed=list(SCHEDULES))
        factor = named(name, {}, f"{key}.kind")
        rates = own_rates(factor)
        if options:
            raise ScenarioError("a schedule of your own takes no options", key=f"{key}.{next(iter(options))}")
    else:
        able = [each for each in inspect.signature(SCHEDULES[name]).parameters if each not in NO_OPTIONS]
        if unknown := next((option for option in options if option not in able), None):
            raise unknown_option(name, f"{key}.{unknown}", able)
        rates = torch_rates(name, {option: quantity(value, option) for option, value in options.items()})
    schedule = Schedule(rates, rounds, section.warmup_rounds)
    with calling_theirs(key, name):  # or torch's schedulers, which check little
        by_round = [schedule(1.0, round) for round in range(1, rounds + 1)]
    for round, rate in enumerate(by_round, 1):
        if not rate >= 0:  # NaN, too
            raise ScenarioError("gives a rate below 0", key=key, found=f"{rate} in round {round}")
    return schedule
