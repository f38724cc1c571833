"""Loads a scenario's data set and deals its samples to the clients."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfl_sim.data.dataset import with_std
from sfl_sim.data.datasets import Dataset, load
from sfl_sim.data.partition import check_clients, partition
from sfl_sim.data.samples import Samples
from sfl_sim.data.testsets import client_test_sets
from sfl_sim.rng import stream
from sfl_sim.scenario.data import Data
from sfl_sim.scenario.sections import Scenario

Ints = NDArray[np.int64]


def deal_data(scenario: Scenario, *, pixels: bool = True) -> tuple[Dataset, list[Ints]]:
    """Give the data set, and each client's training samples by the scenario's partition; a client may get none.

    Without `pixels`, a published set that is not on this machine has black images (`sfl_sim.data.known`).
    """
    dataset = dataset_of(scenario.data, pixels=pixels)
    owners = None if dataset.owners is None else dataset.owners.numpy()
    samples = Samples(dataset.y_train.numpy(), dataset.n_labels, owners)
    count, how = scenario.clients.count, scenario.data.partition.model_dump()
    if count is not None:
        check_clients(count, samples)
    return dataset, partition(how.pop("kind"), samples, count, stream(scenario.seed, "partition"), **how)


def deal_tests(scenario: Scenario, dataset: Dataset, counts: Ints) -> list[Ints]:
    """Give each client's test samples; `counts` (C, L) are training samples by label. Empty for a global test."""
    how = scenario.data.test.model_dump()
    samples = Samples(dataset.y_test.numpy(), dataset.n_labels)
    return client_test_sets(how.pop("kind"), samples, counts, stream(scenario.seed, "test sets"), **how)


def dataset_of(data: Data, *, pixels: bool = True) -> Dataset:
    """Load the data set, once per process for all variants that want the same; `pixels` as in `deal_data`."""
    return _load(pixels=pixels, **data.model_dump(exclude={"partition", "test", "augment"}))


@lru_cache(maxsize=2)
def _load(std: tuple[float, ...] | None, **options: Any) -> Dataset:
    dataset = load(**options)
    return dataset if std is None else with_std(dataset, std)
