"""Loads a scenario's data set and deals its samples to the clients."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfl_sim.build.registry import find_model, named
from sfl_sim.data.dataset import with_std
from sfl_sim.data.known import FOR_TIMING, KNOWN
from sfl_sim.data.loading import Dataset, load
from sfl_sim.data.own import as_dataset, read_indices
from sfl_sim.data.partition import check_clients, partition
from sfl_sim.data.samples import Samples
from sfl_sim.data.testsets import client_test_sets
from sfl_sim.models.zoo import predicts_tokens
from sfl_sim.rng import stream
from sfl_sim.scenario.data import Data, Indices, PartitionSection
from sfl_sim.scenario.own_code import find_object, is_object
from sfl_sim.scenario.sections import Scenario

Ints = NDArray[np.int64]


def deal_data(scenario: Scenario, *, pixels: bool = True) -> tuple[Dataset, list[Ints]]:
    """Give the data set, and each client's training samples by the scenario's partition; a client may get none.

    Without `pixels`, a published set that is not on this machine has black images (`sfl_sim.data.known`), and so has
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
    return dataset, partition(how.kind, samples, count, stream(scenario.seed, "partition"), **_holdings(how))


def predicts_all(scenario: Scenario) -> bool:
    """Return True if the next token is to be predicted at every position."""
    if scenario.data.targets is None:
        return scenario.model.factory is None and predicts_tokens(find_model(scenario.model))
    return scenario.data.targets == "all"


@lru_cache(maxsize=2)
def _predicting_all(dataset: Dataset) -> Dataset:
    return dataset.predicting_all()


def _holdings(how: PartitionSection) -> dict[str, Any]:
    """Return the partition's options; of a user's own, the indices themselves."""
    if not isinstance(how, Indices):
        return how.model_dump(exclude={"kind"})
    key = "data.partition.file"
    holdings = find_object(how.file, key) if is_object(how.file) else read_indices(how.file, key)
    return {"holdings": holdings}


def deal_tests(scenario: Scenario, dataset: Dataset, counts: Ints) -> list[Ints]:
    """Give each client's test samples; `counts` (C, L) are training samples by label. Empty for a global test."""
    how = scenario.data.test
    samples = Samples(dataset.y_test.numpy(), dataset.n_labels)
    rng = stream(scenario.seed, "test sets")
    return client_test_sets(how.kind, samples, counts, rng, **how.model_dump(exclude={"kind"}))


def dataset_of(data: Data, *, pixels: bool = True) -> Dataset:
    """Load the data set, once per process for all variants that want the same; `pixels` as in `deal_data`."""
    pixels = pixels or data.name not in {*KNOWN, *FOR_TIMING, "synthetic"}  # no other set is loaded twice
    return _load(pixels=pixels, **data.model_dump(exclude={"partition", "test", "augment", "targets"}))


def forget_data() -> None:
    """Load data sets anew from now on."""
    _load.cache_clear()
    _predicting_all.cache_clear()


@lru_cache(maxsize=2)
def _load(name: str | None, factory: str | None, std: tuple[float, ...] | None, **options: Any) -> Dataset:
    source = None if factory is None else named(factory, {}, "data.factory")
    dataset = load(name or "own data", loader=None if factory is None else lambda: as_dataset(source), **options)
    return dataset if std is None else with_std(dataset, std)
