"""Builders of an experiment's parts, each from the scenario and from the parts built before."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from sfl_sim.build.estimate import SecondsPerSample
from sfl_sim.build.initial import starting
from sfl_sim.build.losses import build_loss
from sfl_sim.build.optimisation import counts_of_clients, optimisation
from sfl_sim.build.registry import find_codec, find_cut_policy, find_method, find_model, find_order, method_options
from sfl_sim.build.tiers import build_tiers
from sfl_sim.data.batches import ClientData, Images, Rest, check_augmentable
from sfl_sim.data.loading import Dataset
from sfl_sim.errors import ScenarioError
from sfl_sim.goals import Goal
from sfl_sim.methods import METHODS, Method, Task
from sfl_sim.methods.chain import chain
from sfl_sim.methods.cut_policies import CutPolicy
from sfl_sim.methods.hierarchical import hierarchical
from sfl_sim.methods.seen import ObservedTimes
from sfl_sim.methods.wire import Wire
from sfl_sim.models.forward_settings import ForwardSettings, Graphs
from sfl_sim.models.lora import Lora
from sfl_sim.models.network import LASTING, Network, client_cuts, cuts_at
from sfl_sim.models.on_nan import OnNan
from sfl_sim.models.zoo import is_weightless, network
from sfl_sim.ops import SERVER
from sfl_sim.rng import stream
from sfl_sim.scenario.optional_sections import Noise
from sfl_sim.scenario.sections import ClientCuts, Clients, ModelSection, Scenario, StationSection, TrainSection
from sfl_sim.sim.clock import Clock, Plans
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.operations import Executor
from sfl_sim.sim.orders import OF_RUNS, check_burst, check_max_wait, usual_burst
from sfl_sim.store import places
from sfl_sim.system.fleet import Fleet
from sfl_sim.training.codecs import Codec, Delta, Int, SplitFC
from sfl_sim.training.defences import Noisy
from sfl_sim.training.executors import Eager, Timing
from sfl_sim.training.hardware import PRECISIONS

Ints = NDArray[np.int64]


def build_method(
    scenario: Scenario,
    dataset: Dataset,
    shares: Sequence[Ints],
    counts: Ints,
    fleet: Fleet,
    device: torch.device | None,
) -> Method:
    """Build the method with its task.

    Args:
        shares: one array of indices into the training set for each client.
        counts: (C, L) number of training samples by client and label.
        device: device of the weights; None in a timing-only run.
    """
    train = scenario.train
    kind = find_method(scenario.method.name)
    net = build_network(scenario, dataset)
    options = method_options(kind, scenario)
    cuts, round_cuts, cut_policy = _cuts(scenario, net, fleet) if kind.has("is_split", options) else ([], [], None)
    if net.lora and not kind.trains_part1:
        net = build_network(scenario, dataset, above=max(cuts))
    net = net.with_settings(replace(net.forward_settings, loss=build_loss(train, dataset, net, device)))
    if device is None:
        net = net.unweighted()
    elif scenario.model.init:
        net = starting(net, scenario.model.init)
    data = _client_data(scenario, dataset, shares, net=net, fleet=fleet, device=device)
    _check_error_feedback(scenario, round_cuts)
    wire = _wire(scenario, round_cuts)
    tiers = build_tiers(scenario, fleet, net, [*cuts, *round_cuts])
    task = Task(
        network=net, tiers=tiers, cuts=cuts, data=data, **optimisation(train, fleet),
        uniform_weights=train.agg_weights == "uniform",
        label_counts=counts, label_names=dataset.label_names, seed=scenario.seed, device=device,
        sample_s=SecondsPerSample(net, cuts, data=data, fleet=fleet, wire=wire),
        participants=round_size(scenario.clients.participation, len(shares)),
        round_cuts=round_cuts, cut_policy=cut_policy, method=scenario.method.name, wire=wire,
        seen=ObservedTimes(server_workers(scenario, next(iter(scenario.servers), places.SERVER))),
    )  # fmt: skip
    method = _with_tiers(kind, scenario)(task, options)
    _check_defences(scenario, method)
    if method.is_split:
        method.optimiser(1, SERVER)
    elif train.server:
        raise ScenarioError(f"{scenario.method.name} trains nothing at a main server", key="train.server")
    return method


def _with_tiers(kind: type[Method], scenario: Scenario) -> type[Method]:
    """Give the form of a method that a scenario's servers ask for. Raises ScenarioError if it has none."""
    if not scenario.servers:
        return kind
    if not kind.tiered:
        able = [name for name, one in METHODS.items() if one.tiered]
        raise ScenarioError(f"{scenario.method.name} has one server", key="servers", allowed=f"with {', '.join(able)}")
    if scenario.clients.overcommit:
        problem = "cannot be given together with servers, each of which waits for clients of its own"
        raise ScenarioError(problem, key="clients.overcommit", found=scenario.clients.overcommit)
    chains = any(tier.cut is not None for tier in scenario.servers.values())
    return chain(kind, scenario.method.name) if chains else hierarchical(kind)


def build_network(scenario: Scenario, dataset: Dataset, above: int = 0) -> Network:
    """Build the network, with adapters, if there are any, in the layers after the first `above`."""
    shape, precision = dataset.sample_shape, PRECISIONS[scenario.train.precision]
    tokens, targets = dataset.mean is None and not dataset.x_train.is_floating_point(), dataset.targets_train
    net = network(
        find_model(scenario.model), shape, len(dataset.answers), precision.weights,
        tokens=tokens, every_token=dataset.goal is Goal.TOKENS, lora=_lora(scenario, above),
        pixels=tuple(targets.shape[1:]) if targets is not None and dataset.goal is Goal.PIXELS else (),
    )  # fmt: skip
    if tokens and net.n_tokens is not None and dataset.largest_token >= net.n_tokens:
        problem = f"has an embedding of {net.n_tokens} tokens; the largest in the samples is {dataset.largest_token}"
        raise ScenarioError(problem, key="model", found=scenario.model.name or scenario.model.factory)
    label_bytes = None if targets is None else targets[0].nbytes
    return net.with_settings(_forward_settings(scenario.train, label_bytes))


def unpriced(network: Network) -> ScenarioError | None:
    """Return the warning that operations of a network have no price; None if all have."""
    names = sorted({name for layer in network.layers for name in layer.unpriced})
    if not names:
        return None
    problem = f"no price is known for {', '.join(names)}: counted as moved data; a module's method `macs` can tell it"
    return ScenarioError(problem, key="model")


def _lora(scenario: Scenario, above: int) -> Lora | None:
    """Return the settings of adapters, if there are any."""
    section = scenario.lora
    if section is None:
        return None
    return Lora(
        rank=section.rank, alpha=section.alpha, targets=tuple(section.targets), aggregate=section.aggregate,
        preinstalled=section.preinstalled, above=above,
    )  # fmt: skip


def check_can_train(model: ModelSection, device: torch.device | None) -> None:
    """Raise ScenarioError if a model that is known by its shapes alone shall train; `device` is None if nothing is."""
    if device is not None and model.factory is None and is_weightless(find_model(model)):
        raise ScenarioError(
            "is known by its shapes alone and cannot be trained: --timing-only, or sfl-sim whatif",
            key="model.path" if model.path else "model.name",
            found=model.path or model.name,
        )


def check_targets(scenario: Scenario, dataset: Dataset) -> None:
    """Check that samples have one label each where that is needed, and that the model knows their tokens.

    Raises ScenarioError if not.
    """
    model, n_answers = scenario.model, len(dataset.answers)
    are_tokens = dataset.mean is None and not dataset.x_train.is_floating_point()
    is_named = model.factory is model.path is None and not is_weightless(model.name)
    if are_tokens and is_named and dataset.largest_token >= n_answers:
        problem = f"knows {n_answers} tokens, one for each label; the largest in the samples is {dataset.largest_token}"
        raise ScenarioError(problem, key="model.name", found=model.name)
    wanted = {
        "report.snapshots": scenario.report.snapshots,
        "report.leakage": scenario.report.leakage,
        "serving": scenario.serving,
    }
    for key, section in wanted.items():
        if section is not None and dataset.goal is not Goal.LABEL:
            if dataset.goal is Goal.TOKENS:
                raise ScenarioError("needs one label for each sample (data.targets: last)", key=key)
            raise ScenarioError("needs one label for each sample", key=key, found=dataset.goal.value)
    if dataset.goal is Goal.NUMBERS and len(dataset.x_test) < 2:
        raise ScenarioError("needs two test samples, whose variance is explained", key="data.test_samples", found=1)
    if not dataset.goal.scores_labels:
        if scenario.data.test.kind != "global":
            raise ScenarioError("needs one label for each sample", key="data.test", found=dataset.goal.value)
        if why := find_method(scenario.method.name).needs_labels:
            problem = f"cannot predict {dataset.goal}: {why}"
            raise ScenarioError(problem, key="method.name", found=scenario.method.name)


def _forward_settings(train: TrainSection, label_bytes: int | None) -> ForwardSettings:
    return ForwardSettings(
        autocast=PRECISIONS[train.precision].autocast,
        graphs=Graphs(train.max_graphs),
        label_bytes=label_bytes,
    )


def _client_data(
    scenario: Scenario,
    dataset: Dataset,
    shares: Sequence[Ints],
    net: Network,
    fleet: Fleet,
    device: torch.device | None,
) -> ClientData:
    train, augment = scenario.train, scenario.data.augment
    if augment:
        check_augmentable(dataset)
    images = device and Images(
        dataset, device, net.dtype, channels_last=net.channels_last, augment=augment, ignored=train.ignore_index
    )
    rest: Rest = "carry" if train.batches == "full" else "drop" if train.drop_last else "keep"
    data = ClientData(
        shares,
        counts_of_clients(train.batch_size, fleet, "train.batch_size"),
        counts_of_clients(train.local_epochs, fleet, "train.local_epochs"),
        rest=rest,
        seed=scenario.seed,
        images=images or None,
    )
    if net.needs_batches_of_two:
        data.check_no_single()
    return data


def _wire(scenario: Scenario, round_cuts: Sequence[int]) -> Wire:
    """Choose the codecs. Raises ScenarioError for one that cannot code what it is named for."""
    section = scenario.wire
    up, down, update = (find_codec(getattr(section, way), f"wire.{way}") for way in ("up", "down", "update"))
    if isinstance(down, Delta) or isinstance(update, Delta | SplitFC):
        way = "down" if isinstance(down, Delta) else "update"
        raise ScenarioError(
            "is a codec of smashed data alone", key=f"wire.{way}", found=getattr(section, way).kind, allowed="wire.up"
        )
    if isinstance(update, Int) and update.per == "channel":
        raise ScenarioError(
            "a model's layers have no channels in common", key="wire.update.per", found="channel", allowed=["tensor"]
        )
    if isinstance(up, Delta) and scenario.data.augment:
        problem = "compares a sample with itself in an earlier round, and needs data.augment: false"
        raise ScenarioError(problem, key="wire.up", found="delta")
    if isinstance(up, Delta) and round_cuts:
        problem = "compares a sample with itself in an earlier round, where model.cut was another"
        raise ScenarioError(problem, key="wire.up", found="delta")
    privacy = scenario.privacy
    if isinstance(up, Delta) and privacy.noise:
        problem = "compares a sample with itself in an earlier round, where privacy.noise was another"
        raise ScenarioError(problem, key="wire.up", found="delta")
    up, down = _noisy(privacy.noise, up), _noisy(privacy.gradient_noise, down)
    return Wire(
        up, down, update, error_feedback=section.error_feedback, at_inference=section.at_inference,
        nopeek=privacy.nopeek, seed=scenario.seed,
    )  # fmt: skip


def _check_error_feedback(scenario: Scenario, round_cuts: Sequence[int]) -> None:
    """Raise ScenarioError if an update is of other numbers than the client's last one, whose error it would send."""
    if not scenario.wire.error_feedback:
        return
    lora, problem = scenario.lora, ""
    if lora and lora.aggregate in ("concat", "svd"):
        problem = f"adds what factors have lost to new ones: lora.aggregate {lora.aggregate} replaces them every round"
    if round_cuts:
        problem = "adds what layers have lost to other layers: model.cut changes between rounds"
    if problem:
        raise ScenarioError(problem, key="wire.error_feedback", found=True, allowed="false")


def _noisy(noise: Noise | None, codec: Codec | None) -> Codec | None:
    """Put noise, if any, before a codec."""
    return Noisy(clip=noise.clip, sigma=noise.sigma, inner=codec) if noise else codec


def _check_defences(scenario: Scenario, method: Method) -> None:
    """Check that the scenario's defences can defend something; otherwise raises ScenarioError."""
    net, cuts = method.task.network, method.task.cuts
    if scenario.privacy.nopeek and method.gets_gradients:
        if net.tokens:
            raise ScenarioError("has no distances between texts", key="privacy.nopeek", found=scenario.privacy.nopeek)
        if max(cuts) <= net.lowest:
            problem = "trains part-1, all of which is frozen: lora.targets name no matrix before the cut"
            raise ScenarioError(problem, key="privacy.nopeek", found=scenario.privacy.nopeek)


def check_rounds(scenario: Scenario, key: str, rounds: Sequence[int]) -> None:
    """Raise ScenarioError if `key` names a round after the last one."""
    last = scenario.train.rounds
    if max(rounds, default=0) > last:
        raise ScenarioError("no such round", key=key, found=max(rounds), allowed=f"1 to {last}")


def _cuts(scenario: Scenario, net: Network, fleet: Fleet) -> tuple[list[int], list[int], CutPolicy | None]:
    """Choose the task's `cuts`, `round_cuts` and `cut_policy`."""
    cut, n_clients = scenario.model.cut, len(fleet.macs_per_s)
    if not isinstance(cut, ClientCuts):
        return [net.cut_at(cut)] * n_clients, [], None
    if cut.by in LASTING:
        rng = stream(scenario.seed, "client cuts")
        return client_cuts(net, cut.by, cut.values, macs_per_s=fleet.macs_per_s, rng=rng), [], None
    round_cuts = cuts_at(net, cut.values)
    return [max(round_cuts)] * n_clients, round_cuts, None if cut.by == "round" else find_cut_policy(cut.by)


def build_executor(train: TrainSection, device: torch.device | None) -> Eager | Timing:
    """Build the executor; `device` is None in a timing-only run."""
    if device is None:
        return Timing()
    return Eager(OnNan(train.on_nan == "skip"))


def build_clock(
    scenario: Scenario,
    fleet: Fleet,
    executor: Executor,
    counts: Ints,
    *,
    more_workers: float = 1,
    plans: Plans | None = None,
    **settings: Any,
) -> Clock:
    """Build the clock of a scenario's server and a fleet.

    Args:
        counts: (C, L) number of training samples by client and label.
        more_workers: factor on the workers of all servers.
        plans: see `Clock`.
        settings: others of the `EventClock` than the scenario's.
    """
    server = scenario.server
    queue = _queueing(server, scenario.seed, "server", places.SERVER, more_workers)
    queues = {
        node: _queueing(tier, scenario.seed, f"servers.{name}", str(node), more_workers)
        for name, tier in scenario.servers.items()
        for node in fleet.tiers[name].nodes
    }
    events = EventClock(
        fleet,
        executor,
        queue.order,
        workers=queue.workers,
        burst=queue.burst,
        labels=counts.argmax(axis=1).tolist(),
        max_wait_s=queue.max_wait_s,
        recorded=queue.recorded,
        queues=queues,
        seed=scenario.seed,
        include_model_exchange=server.include_model_exchange,
        **{"dropouts": _dropouts(scenario.clients, fleet), **settings},
    )
    return Clock(events, plans)


def _queueing(server: StationSection, seed: int, key: str, node: str, more_workers: float) -> Queueing:
    """Make the settings of a server's queue; `key` is that of its section, `node` its name in records."""
    burst = burst_of(server)
    check_burst(server.order, burst, key)
    check_max_wait(server.order, server.max_wait_s, key)
    return Queueing(
        find_order(server.order, f"{key}.order"),
        more_workers * _number(server.workers),
        burst=burst,
        max_wait_s=float("inf") if server.max_wait_s is None else server.max_wait_s,
        recorded=_recorded_turns(server, seed, f"{key}.recorded", node),
    )


def _recorded_turns(server: StationSection, seed: int, key: str, node: str) -> dict[int, list[int]]:
    """Read, by round, which clients' jobs a run's server has served one after another; none if nobody asks.

    Raises ScenarioError if there is no such run, or several of this seed.
    """
    if server.order not in OF_RUNS:
        return {}
    found = server.recorded
    if found is None:
        raise ScenarioError(f"is needed by order: {server.order}", key=key, allowed="the folder of a run")
    try:
        columns = ["variant", "seed", "round", "node", "client", "started_s", "macs"]
        rows = pd.read_parquet(os.path.expanduser(found), columns=columns)
    except (OSError, ValueError) as error:
        raise ScenarioError("holds no operations of a run", key=key, found=found) from error
    rows = rows[(rows["seed"] == seed) & (rows["node"] == node) & (rows["client"] >= 0) & (rows["macs"] > 0)]
    if rows["variant"].nunique() != 1:
        several = ", ".join(rows["variant"].unique()) or "none"
        problem = f"needs one variant with jobs at the {node} and seed {seed}, has {several}"
        raise ScenarioError(problem, key=key, found=found)
    by_round = rows.sort_values("started_s", kind="stable").groupby("round")["client"]
    return {number: clients.tolist() for number, clients in by_round}  # type: ignore[misc]


def server_workers(scenario: Scenario, name: str = places.SERVER) -> float:
    """Return the number of jobs that a server of the scenario runs at the same time; infinity if unlimited."""
    return _number(scenario.servers.get(name.rstrip("0123456789"), scenario.server).workers)


def burst_of(server: StationSection) -> float:
    """Return the number of jobs that a server runs of a client in a row; infinity for all."""
    return usual_burst(server.order) if server.burst is None else _number(server.burst)


def _number(value: float | str) -> float:
    return float("inf") if value in ("all", "unlimited") else float(value)


def _dropouts(clients: Clients, fleet: Fleet) -> Dropouts:
    availability = clients.availability
    n = round_size(clients.participation, len(fleet.macs_per_s))
    wanted = n if clients.overcommit else float("inf")
    if availability is None:
        return Dropouts(wanted=wanted)
    deadline_s = float("inf") if availability.deadline_s is None else availability.deadline_s
    return Dropouts(availability.lost, fleet.presence, deadline_s, wanted)


def round_size(participation: float, n_clients: int) -> int:
    """Return the number of participants of a round: `participation * n_clients`, rounded, but 1 at least."""
    return max(1, int(participation * n_clients + 0.5))
