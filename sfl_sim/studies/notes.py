"""Notes: what was understood of a scenario where a user may have meant something else, and what has no effect in it."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from sfl_sim.build.checks import stations
from sfl_sim.build.network import unpriced
from sfl_sim.data.batches import Images
from sfl_sim.data.dataset import Dataset
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.goals import Goal
from sfl_sim.models.losses import LOSSES
from sfl_sim.models.part import sample_work
from sfl_sim.system.availability import KEY as LOGS
from sfl_sim.system.availability import n_logs
from sfl_sim.system.cost import KEY, MACS
from sfl_sim.system.network import scaled_trace

LEAST_HELD = 0.9
"""Share of the training samples; a note tells if clients hold less."""
GLANCE = 20
"""Number of samples, or of clients, that are enough to see what all are like."""
CALL_MACS = 240_000
"""MACs of MobileNet-V2 in whose time a phone calls a layer: the least of five fits to whole networks, to 1,800,000 in
torch. Where weights read and idle channels have prices, too, a call costs less (research/results/fidelity.md)."""
SUM_TO_1 = 1e-2
"""Difference from 1 up to which shares sum up to it: they may have been rounded."""
LEAST_SHARE = 0.1
"""Share of the time on links of a mini-batch; shorter calls hardly matter."""


def notes(experiment: Experiment, trained: bool) -> Iterator[ScenarioError]:
    """Generate the notes on an experiment, errors with key and sentence that are told and not raised.

    Args:
        trained: whether weights matter.

    Raises ScenarioError if a user's own network cannot be trained.
    """
    scenario = experiment.scenario
    yield from _of_data(experiment)
    yield from _of_clients(experiment)
    yield from filter(None, (unpriced(experiment.method.task.network), scaled_trace(scenario.clients.network)))
    if trained and scenario.model.factory is not None:
        yield from _of_outputs(experiment)
    if (method := experiment.method).idea_off:
        problem = f"does what {method.like} does: {method.idea_off}"
        yield ScenarioError(problem, key="method.name", found=scenario.method.name)
    yield from _idle_workers(experiment)
    yield from of_calls(experiment)


def _of_data(experiment: Experiment) -> Iterator[ScenarioError]:
    """Generate the notes on samples, and on what is to be predicted of them."""
    dataset, targets = experiment.dataset, experiment.dataset.targets_train
    key = "data.name" if experiment.scenario.data.factory is None else "data.factory"
    if targets is not None and dataset.goal is Goal.NUMBERS and (labels := _like_labels(targets)):
        problem = f"has floating labels: numbers are predicted, and none of {len(labels)} labels, as for whole numbers"
        yield ScenarioError(problem, key=key, found=labels[:5])
    if targets is not None and dataset.goal is Goal.NUMBERS and targets.shape[1] > 1 and _are_shares(targets):
        problem = "has numbers with the sum 1 for each sample: numbers are predicted; y.argmax(1) would be labels"
        yield ScenarioError(problem, key=key)
    if targets is not None and dataset.goal is Goal.LABEL_SET and (targets.sum(dim=1) == 1).all():
        problem = "has a set of exactly one label for each sample: sets are predicted; y.argmax(1) would be labels"
        yield ScenarioError(problem, key=key)
    if experiment.scenario.data.factory is None:
        return
    some = dataset.x_train[:GLANCE]
    if some.ndim == 4 and some.is_floating_point() and some.max() > 1 and (some == some.byte()).all():
        problem = "has floating images that go into the network as they are; uint8 would be normalised"
        yield ScenarioError(problem, key=key, found=f"{some.min():g} to {some.max():g}")
    seen, looked_at = _trained_on(dataset)
    if 2 * seen > looked_at:
        yield ScenarioError(f"{seen} of {looked_at} test samples looked at are training samples as well", key=key)


def _like_labels(targets: Tensor) -> list[float]:
    """Return the different targets (N, K) in their order if they count from 0 or 1 on, or are -1 and 1; else none."""
    values: list[float] = np.unique(targets.numpy()).tolist() if targets.shape[1] == 1 else []
    n = len(values)
    return values if n > 1 and values in ([-1, 1], [*range(n)], [*range(1, n + 1)]) else []


def _are_shares(targets: Tensor) -> bool:
    """Return whether targets (N, K) are shares of a whole, as the probabilities of labels are."""
    return bool((targets >= 0).all() and (targets.sum(dim=1) - 1).abs().max() < SUM_TO_1)


def _trained_on(dataset: Dataset) -> tuple[int, int]:
    """Count the test samples that are training samples, too, among so many that are looked at."""
    train, test = dataset.x_train.flatten(1), dataset.x_test.flatten(1)
    looked_at = test[:: -(-len(test) // GLANCE)]
    places = slice(None, None, -(-train.shape[1] // GLANCE))
    seen = 0
    for sample in looked_at:
        near = (train[:, places] == sample[places]).all(dim=1)
        seen += bool((train[near] == sample).all(dim=1).any())
    return seen, len(looked_at)


def _of_clients(experiment: Experiment) -> Iterator[ScenarioError]:
    """Generate the notes on what clients hold, who takes part, and when."""
    task, n_clients = experiment.method.task, len(experiment.shares)
    logs = n_logs(experiment.scenario.clients.availability)
    if logs is not None and logs < n_clients:
        problem = f"has logs of {logs} clients for {n_clients}: they are drawn again, each time a day later"
        yield ScenarioError(problem, key=LOGS)
    held = (experiment.counts.sum() + len(experiment.setup.validation)) / len(experiment.dataset.y_train)
    if held < LEAST_HELD:
        yield ScenarioError(f"{1 - held:.0%} of the training samples belong to no client", key="data.partition")
    if len(unheld := np.flatnonzero(experiment.counts.sum(axis=0) == 0)):
        names = ", ".join(experiment.dataset.label_names[label] for label in unheld)
        yield ScenarioError(f"no client holds a sample of {names}", key="data.partition")
    if all(map(task.data.falls_short, range(n_clients))):
        most = max(map(len, experiment.shares))
        problem = f"is more than any client holds: its mini-batch is all its samples, {most} at most"
        yield ScenarioError(problem, key="train.batch_size", found=experiment.scenario.train.batch_size)
    if task.participants == 1:
        key = "clients.count" if n_clients == 1 else "clients.participation"
        yield ScenarioError("one client takes part in each round: nothing is averaged", key=key)


def _of_outputs(experiment: Experiment) -> Iterator[ScenarioError]:
    """Generate the note that a user's own network ends with a softmax or a sigmoid, and its loss wants what is before.

    The outputs of a softmax are not negative and have the sum 1. Those of a sigmoid are between 0 and 1, also with
    weights ten times as large, which none of a linear layer are.
    """
    dataset, network = experiment.dataset, experiment.method.task.network
    whole = network.functional().weights
    loss = experiment.scenario.train.loss or next(iter(LOSSES[dataset.goal]))
    if dataset.goal is Goal.NUMBERS or loss not in LOSSES[dataset.goal]:
        return
    images = Images(dataset, torch.device("cpu"), network.dtype, channels_last=network.channels_last, augment=False)
    x = images.prepare(images.x[:GLANCE])
    outputs = whole(x, training=False).float()
    whole.flat.mul_(10)
    larger = whole(x, training=False)
    sums = outputs.sum(dim=1 if dataset.goal is Goal.PIXELS else -1)
    endings = {
        "softmax": [outputs >= 0, (sums - 1).abs() < 1e-2],
        "sigmoid": [outputs > 0, outputs < 1, larger >= 0, larger <= 1],
    }
    seen = [ending for ending, signs in endings.items() if all(bool(sign.all()) for sign in signs)]
    if seen:
        problem = f"ends with a {seen[0]}, and {loss} wants the scores before it, of any size: leave it out"
        yield ScenarioError(problem, key="model.factory", found=network.name)


def _idle_workers(experiment: Experiment) -> Iterator[ScenarioError]:
    """Generate the notes on workers of which training keeps no more than one busy, and why.

    `unlimited` only says that nobody waits, and requests to a trained model use all workers.
    """
    scenario, method = experiment.scenario, experiment.method
    for key, station, trains, in_turn in stations(scenario):
        why = ""
        if not (method.is_split and trains):
            why = f"{scenario.method.name} trains nothing there"
        elif method.shares_server_model and in_turn:
            why = f"{scenario.method.name} changes one model there, one job after the other"
        if why and not scenario.serving and station.workers not in (1, "unlimited"):
            yield ScenarioError(f"more than one has no effect: {why}", key=f"{key}.workers")


def of_calls(experiment: Experiment) -> Iterator[ScenarioError]:
    """Generate the note that calls of layers take drawn devices longer than the MACs, which alone are priced.

    Rates of one's own, and those scaled as if the network were larger, are taken as they are. No note where most
    devices' calls of a mini-batch are short beside its activations, or its part of the model, on the link.
    """
    fleet, method, task = experiment.fleet, experiment.method, experiment.method.task
    compute = experiment.scenario.clients.compute
    if fleet.cost != MACS or compute.profile is None or compute.scale != 1:
        return
    few, hidden = [], 0
    clients = range(min(GLANCE, len(experiment.shares)))
    for client in clients:
        layers = task.network.layers[: task.cuts[client] if method.is_split else None]
        work, size = sample_work(layers), task.data.size(client)
        macs_a_call = size * work.macs / work.n_ops if work.n_ops else math.inf
        few.append(macs_a_call)
        elements: float = layers[-1].out_numel * size
        if not method.is_split:
            elements = sum(layer.parameters for layer in layers) / max(task.data.n_batches(client), 1)
        link_s = 32 * elements * sum(1 / links.mean_bps[client] for links in (fleet.uplinks, fleet.downlinks))
        calls_s = 3 * work.n_ops * CALL_MACS / fleet.macs_per_s[client]  # forward once, backward as twice forward
        hidden += calls_s < LEAST_SHARE * (link_s + 2 * fleet.latency_s[client])
    least = min(few)
    if least < CALL_MACS and hidden <= len(clients) / 2:
        problem = (
            f"prices MACs alone, {least:,.0f} for a call of a layer, while the call itself takes a phone as long as "
            f"{CALL_MACS:,}: calls take {CALL_MACS / least:.1f} times what is priced"
        )
        yield ScenarioError(problem, key=KEY, found=fleet.cost, allowed="phones, or a runtime")
