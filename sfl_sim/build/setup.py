"""Setup: what a variant with a seed begins with, before anything runs: data, its shares, and the simulated system."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sfl_sim.build.checks import check_targets
from sfl_sim.build.method import build_method
from sfl_sim.build.registry import find_model, named
from sfl_sim.data.dataset import with_std
from sfl_sim.data.download import own_path
from sfl_sim.data.loading import FOR_TIMING, KNOWN, Dataset, load
from sfl_sim.data.own import as_dataset, by_holder, read_indices
from sfl_sim.data.partition import (
    check_clients,
    check_none_empty,
    cyclic_clients,
    label_counts,
    label_order,
    partition,
    set_aside,
)
from sfl_sim.data.samples import Samples
from sfl_sim.data.testsets import client_test_sets
from sfl_sim.errors import calling_theirs
from sfl_sim.methods import Method
from sfl_sim.models.global_draws import drawing
from sfl_sim.models.zoo import predicts_tokens
from sfl_sim.rng import stream
from sfl_sim.scenario.data import Data, Indices, PartitionSection
from sfl_sim.scenario.own_code import is_object
from sfl_sim.scenario.presets import expand
from sfl_sim.scenario.sections import Scenario
from sfl_sim.system.fleet import Fleet, build_fleet
from sfl_sim.training.hardware import free

Ints = NDArray[np.int64]


class Setup:
    """Data, clients and system of a variant with a seed. Nothing changes them, so all that runs may share them.

    Args:
        scenario: without grid; `repeats` is ignored.
        pixels: False if nothing is trained, so that a published data set need not be on this machine.

    Attributes:
        scenario: with its presets expanded.
        shares: one array of indices into the training set for each client.
        validation: indices into the training set of the samples that are set aside; empty without `data.validation`.
        counts: (C, L) number of training samples by client and label.
        test_sets: one array of indices into the test set for each client; empty if all have the whole test set.
        pixels: as given.
        label_order: (L,) labels in the order of the cyclic list.
        cyclic: all clients in cyclic order, in which those of a label are neighbours.

    Raises ScenarioError if the scenario cannot be used.
    """

    def __init__(self, scenario: Scenario, *, pixels: bool) -> None:
        self.scenario = scenario = expand(scenario)
        self.pixels = pixels
        self.dataset, self.shares, self.validation = deal_data(scenario, pixels=pixels)
        check_none_empty(self.shares)
        check_targets(scenario, self.dataset)
        self.counts = label_counts(self.dataset.y_train.numpy(), self.shares, self.dataset.n_labels)
        self.test_sets = deal_tests(scenario, self.dataset, self.counts)
        self.label_order = label_order(self.dataset.n_labels, stream(scenario.seed, "label order"))
        self.cyclic = cyclic_clients(self.counts, self.label_order)
        self.fleet = fleet_of(scenario, len(self.shares))

    def method(self, device: torch.device | None) -> Method:
        """Return the method with its task, as it is before the first round; without a device, it has no weights.

        Raises ScenarioError if the scenario asks for something that the method cannot do.
        """
        return build_method(
            self.scenario, self.dataset, self.shares, counts=self.counts, fleet=self.fleet, device=device
        )


_last: list[tuple[Scenario, Setup]] = []


def setup_of(scenario: Scenario, *, pixels: bool) -> Setup:
    """Return the setup of `scenario`: that which was built last, if it was for this very object.

    A study of one trial asks three times: to check it, to run it, and to time its typical round again.
    """
    for built_for, setup in _last:
        if built_for is scenario and (setup.pixels or not pixels):
            return setup
    setup = Setup(scenario, pixels=pixels)
    _last[:] = [(scenario, setup)]
    return setup


def forget() -> None:
    """Load and deal data sets anew from now on: since the last study of this process, files may have changed."""
    n_clients = sum(len(setup.shares) for _, setup in _last)
    _last.clear()
    _fleets.clear()
    _load.cache_clear()
    _predicting_all.cache_clear()
    free(n_clients)


KEPT_FLEETS, FEW_CLIENTS = 32, 1000
"""How many fleets are kept, and of how many clients at most."""
_fleets: dict[tuple[object, ...], Fleet] = {}


def fleet_of(scenario: Scenario, n_clients: int) -> Fleet:
    """Return the fleet of a scenario. A what-if asks for the same one at every cut: a small one is drawn once."""
    sections = [scenario.clients, scenario.server, *scenario.servers.values()]
    key = n_clients, scenario.seed, *scenario.servers, *(section.model_dump_json() for section in sections)
    fleet = _fleets.get(key)
    if fleet is None:
        fleet = build_fleet(n_clients, scenario.seed, scenario.clients, scenario.server, scenario.servers)
        if n_clients <= FEW_CLIENTS:
            if len(_fleets) == KEPT_FLEETS:
                del _fleets[next(iter(_fleets))]
            _fleets[key] = fleet
    return fleet


def deal_data(scenario: Scenario, *, pixels: bool = True) -> tuple[Dataset, Sequence[Ints], Ints]:
    """Return the data set, the indices of each client's training samples, which may be none, and of validation samples.

    Without `pixels`, a published set that is not on this machine has black images (`sfl_sim.data.loading`), and so has
    `synthetic`.
    """
    dataset = dataset_of(scenario.data, pixels=pixels)
    if predicts_all(scenario):
        dataset = _predicting_all(dataset)
    owners = None if dataset.owners is None else dataset.owners.numpy()
    samples = Samples(dataset.y_train.numpy(), dataset.n_labels, owners)
    count, how = scenario.clients.count, scenario.data.partition
    if count is not None:
        check_clients(count, samples)
    holdings = _holdings(how, samples)
    shares = partition(how.kind, samples, count, stream(scenario.seed, "partition"), **holdings)
    wanted = scenario.data.validation
    if wanted is None:
        return dataset, shares, np.zeros(0, np.int64)
    return dataset, *set_aside(shares, stream(scenario.seed, "validation"), wanted.share, wanted.samples)


def predicts_all(scenario: Scenario) -> bool:
    """Return True if the next token is to be predicted at every position."""
    if scenario.data.targets is None:
        return scenario.model.factory is None and predicts_tokens(find_model(scenario.model))
    return scenario.data.targets == "all"


@lru_cache(maxsize=2)
def _predicting_all(dataset: Dataset) -> Dataset:
    return dataset.predicting_all()


def _holdings(how: PartitionSection, samples: Samples) -> dict[str, Any]:
    """Return the partition's options; of a user's own, the indices themselves."""
    if not isinstance(how, Indices):
        return how.model_dump(exclude={"kind"})
    key = "data.partition.file"
    is_named = is_object(how.file) or (":" in how.file and not own_path(how.file).exists())
    holdings = named(how.file, {}, key) if is_named else read_indices(how.file, key)
    if callable(holdings):
        with calling_theirs(key), drawing(torch.Generator().initial_seed()):  # as in `_load`
            holdings = list(holdings(samples.labels))
    return {"holdings": by_holder(holdings, len(samples), key)}


def deal_tests(scenario: Scenario, dataset: Dataset, counts: Ints) -> list[Ints]:
    """Return the indices of each client's test samples, empty for a global test; `counts` (C, L) as in `Setup`."""
    how = scenario.data.test
    samples = Samples(dataset.y_test.numpy(), dataset.n_labels)
    rng = stream(scenario.seed, "test sets")
    return client_test_sets(how.kind, samples, counts, rng, **how.model_dump(exclude={"kind"}))


def dataset_of(data: Data, *, pixels: bool = True) -> Dataset:
    """Return the data set, loaded once per process for all variants that want the same; `pixels` as in `deal_data`."""
    pixels = pixels or data.name not in {*KNOWN, *FOR_TIMING, "synthetic"}  # no other set is loaded twice
    return _load(pixels=pixels, **data.model_dump(exclude={"partition", "validation", "test", "augment", "targets"}))


@lru_cache(maxsize=2)
def _load(name: str | None, factory: str | None, std: tuple[float, ...] | None, **options: Any) -> Dataset:
    source = None if factory is None else named(factory, {}, "data.factory")
    with drawing(torch.Generator().initial_seed()):  # code of a user's own gives the same data in every process
        dataset = load(name or "own data", loader=None if factory is None else lambda: as_dataset(source), **options)
    return dataset if std is None else with_std(dataset, std)
