"""The method of a scenario, with its task: cuts, codecs, data and speeds of the clients."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from sfl_sim.build.clock import round_size, server_workers
from sfl_sim.build.network import build_network, starting
from sfl_sim.build.optimisation import build_loss, counts_of_clients, optimisation
from sfl_sim.build.registry import find_codec, find_cut_policy, find_method, method_options
from sfl_sim.build.tiers import build_tiers
from sfl_sim.data.batches import ClientData, Images, Rest, check_augmentable
from sfl_sim.data.loading import Dataset
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS, Method, Task
from sfl_sim.methods.chain import chain
from sfl_sim.methods.cut_policies import CutPolicy
from sfl_sim.methods.hierarchical import hierarchical
from sfl_sim.methods.seen import ObservedTimes
from sfl_sim.methods.wire import Wire
from sfl_sim.models.network import LASTING, Network, client_cuts, cuts_at
from sfl_sim.ops import SERVER
from sfl_sim.rng import stream
from sfl_sim.scenario.optional_sections import Noise
from sfl_sim.scenario.sections import ClientCuts, Scenario
from sfl_sim.store import places
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.links import BITS_PER_BYTE
from sfl_sim.training.codecs import Codec, Delta, Int, SplitFC
from sfl_sim.training.defences import Noisy

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
    net = net.with_settings(replace(net.forward_settings, loss=build_loss(train, dataset, shares, net, device)))
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
    """Return the form of a method that a scenario's servers ask for. Raises ScenarioError if it has none."""
    if not scenario.servers:
        return kind
    if not kind.tiered:
        able = [name for name, other in METHODS.items() if other.tiered]
        raise ScenarioError(f"{scenario.method.name} has one server", key="servers", allowed=f"with {', '.join(able)}")
    if scenario.clients.overcommit:
        problem = "cannot be given together with servers, each of which waits for clients of its own"
        raise ScenarioError(problem, key="clients.overcommit", found=scenario.clients.overcommit)
    chains = any(tier.cut is not None for tier in scenario.servers.values())
    return chain(kind, scenario.method.name) if chains else hierarchical(kind)


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
    data = dealt(scenario, shares, fleet, images or None, dataset.lengths)
    if data.lengths is not None and isinstance(find_codec(scenario.wire.up, "wire.up"), Delta):
        problem = "compares a sample with itself in an earlier round, in which its mini-batch was padded otherwise"
        raise ScenarioError(problem, key="wire.up", found="delta")
    if net.needs_batches_of_two:
        data.check_no_single()
    return data


def dealt(
    scenario: Scenario,
    shares: Sequence[Ints],
    fleet: Fleet,
    images: Images | None = None,
    lengths: Ints | None = None,
) -> ClientData:
    """Return which samples each client computes on, in which mini-batches, as the section `train` says."""
    train = scenario.train
    rest: Rest = "carry" if train.batches == "full" else "drop" if train.drop_last else "keep"
    return ClientData(
        shares,
        counts_of_clients(train.batch_size, fleet, "train.batch_size"),
        counts_of_clients(train.local_epochs, fleet, "train.local_epochs"),
        rest=rest,
        seed=scenario.seed,
        images=images,
        lengths=lengths,
    )


def _wire(scenario: Scenario, round_cuts: Sequence[int]) -> Wire:
    """Return the codecs of a run. Raises ScenarioError for one that cannot code what it is named for."""
    section = scenario.wire
    up, down, update = (find_codec(getattr(section, way), f"wire.{way}") for way in ("up", "down", "update"))
    if isinstance(down, Delta) or isinstance(update, Delta | SplitFC):
        way = "down" if isinstance(down, Delta) else "update"
        problem = "is a codec of smashed data alone"
        raise ScenarioError(problem, key=f"wire.{way}", found=getattr(section, way).kind, allowed="wire.up")
    if isinstance(update, Int) and update.per == "channel":
        problem = "a model's layers have no channels in common"
        raise ScenarioError(problem, key="wire.update.per", found="channel", allowed=["tensor"])
    privacy = scenario.privacy
    differing = {"data.augment": scenario.data.augment, "model.cut": round_cuts, "privacy.noise": privacy.noise}
    for key in [key for key, differs in differing.items() if isinstance(up, Delta) and differs]:
        problem = f"compares a sample with itself in an earlier round, from which {key} makes it differ"
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


def _cuts(scenario: Scenario, net: Network, fleet: Fleet) -> tuple[list[int], list[int], CutPolicy | None]:
    """Return the task's `cuts`, `round_cuts` and `cut_policy`."""
    cut, n_clients = scenario.model.cut, len(fleet.macs_per_s)
    if not isinstance(cut, ClientCuts):
        return [net.cut_at(cut)] * n_clients, [], None
    if cut.by in LASTING:
        rng = stream(scenario.seed, "client cuts")
        return client_cuts(net, cut.by, cut.values, macs_per_s=fleet.macs_per_s, rng=rng), [], None
    round_cuts = cuts_at(net, cut.values)
    return [max(round_cuts)] * n_clients, round_cuts, None if cut.by == "round" else find_cut_policy(cut.by)


class SecondsPerSample:
    """Estimated seconds per sample of a client: both passes of its part-1, and both directions of its links; without a
    split, both passes of the whole network.

    Links have their mean rates; latency, loading of samples, the optimiser's step, queues and jitter are left out.

    Attributes:
        asked: True once an estimate has been asked for, so that operations depend on the clients' speeds.
    """

    def __init__(self, network: Network, cuts: Sequence[int], data: ClientData, fleet: Fleet, wire: Wire) -> None:
        self.asked = False
        self._wire = wire
        self._part1 = cache(lambda cut: network.part(0, cut))
        self._cuts = cuts
        self._whole = len(network)
        self._data = data
        self._fleet = fleet

    def __call__(self, c: int) -> float:
        """Return the seconds per sample of client `c`."""
        self.asked = True
        batch_size, fleet = self._data.size(c), self._fleet
        part = self._part1(self._cuts[c] if self._cuts else self._whole)
        device_s = fleet.processors[c].seconds(part.work(batch_size, passes=3)._replace(updated=0))
        if not self._cuts:
            return device_s / batch_size
        up_bytes, down_bytes = self._wire.crossing_bytes(part, batch_size)
        links_s = up_bytes / fleet.uplinks[c].mean_bps + down_bytes / fleet.downlinks[c].mean_bps
        return (device_s + BITS_PER_BYTE * links_s) / batch_size
