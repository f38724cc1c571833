"""How clients and server optimise: rates, sizes of mini-batches and optimisers, as a scenario gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sfl_sim.build.registry import named
from sfl_sim.data.batches import CountPerClient
from sfl_sim.errors import ScenarioError, in_short, own_place
from sfl_sim.models.network import by_speed
from sfl_sim.scenario.sections import BySpeed, TrainSection
from sfl_sim.scenario.sections import ScheduleSection as ScheduleSection
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.profiles import per_client, read_table
from sfl_sim.training.optimisers import OPTIMISERS
from sfl_sim.training.schedules import SCHEDULES, Schedule, own_rates, torch_rates

OptimiserKind = str | Callable[..., torch.optim.Optimizer]


def optimisation(train: TrainSection, fleet: Fleet) -> dict[str, Any]:
    """Return the fields of a `Task` that say how its nodes optimise. Raises ScenarioError for what cannot be used."""
    rates = _of_clients(train.lr, fleet, "train.lr")
    own = train.server.model_dump(exclude_none=True) if train.server else {}
    if "optimizer" in own:
        own["optimizer"] = optimiser_kind(own["optimizer"], "train.server.optimizer")
    if isinstance(rates, list) and "lr" not in own:
        own["lr"] = None
    if train.server is not None and not own:
        raise ScenarioError("says nothing that is different", key="train.server", found={})
    return {
        "lr": rates[0] if isinstance(rates, list) else rates,
        "client_lr": rates if isinstance(rates, list) else (),
        "lr_decay": train.lr_decay,
        "lr_min": train.lr_min,
        "lr_schedule": _schedule(train.schedule, train.rounds) if train.schedule else None,
        "optimizer": optimiser_kind(train.optimizer, "train.optimizer"),
        "momentum": train.momentum,
        "weight_decay": train.weight_decay,
        "clip_norm": train.clip_norm,
        "server": own,
    }


def counts_of_clients(value: int | str | list[int] | BySpeed, fleet: Fleet, key: str) -> CountPerClient:
    """Return a whole number for all clients, or one for each. Raises ScenarioError for others."""
    found = _of_clients(value, fleet, key)
    if not isinstance(found, list):
        return int(found)
    for number in found:
        if number != int(number):
            raise ScenarioError("must be a whole number", key=key, found=number)
    return [int(number) for number in found]


def _of_clients(value: float | str | Sequence[float] | BySpeed, fleet: Fleet, key: str) -> float | list[float]:
    """Return the value of all clients, or one for each."""
    if isinstance(value, BySpeed):
        return by_speed(value.values, fleet.macs_per_s, f"{key}.values")
    if isinstance(value, str | list):
        found: list[float] = per_client(value, len(fleet.macs_per_s), key).tolist()
        return found
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
    try:
        optimiser = make([parameter], lr=0.1)
        parameter.grad = torch.ones(2)
        optimiser.step()
    except Exception as error:  # a user's function may raise anything
        problem = f"fails with {in_short(error)}{own_place(error)}; it must make a torch.optim.Optimizer"
        raise ScenarioError(problem, key=key, found=name) from error
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
        rates = torch_rates(name, options)
    schedule = Schedule(rates, rounds, section.warmup_rounds)
    try:
        found = [schedule(1.0, round) for round in (1, rounds)]
    except Exception as error:  # torch's schedulers check little, and a user's function may raise anything
        raise ScenarioError(f"fails with {in_short(error)}{own_place(error)}", key=key, found=name) from error
    if min(found) < 0:
        raise ScenarioError("gives a rate below 0", key=key, found=min(found))
    return schedule
