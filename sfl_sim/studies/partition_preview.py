"""Preview of the samples that the clients of a study would hold: its distinct partitions, without training."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from sfl_sim.build.setup import deal_data
from sfl_sim.data.partition import label_counts
from sfl_sim.report.pages.system import PartitionResult, Preview
from sfl_sim.scenario.concerns import concern_of, values_except
from sfl_sim.scenario.fields import Concern
from sfl_sim.scenario.load import Study, Variant
from sfl_sim.scenario.presets import expand
from sfl_sim.scenario.sections import Scenario

MAX_PARTITIONS = 6
NOT_DEALT = set(Concern) - {Concern.DEALING}


def preview(study: Study) -> Preview:
    """Return the distinct partitions of the variants of `study`: `MAX_PARTITIONS` of them, the first seed's first.

    Clients without samples are shown, although no run accepts them.

    Raises ScenarioError if the data or the partition cannot be used.
    """
    distinct: dict[str, Variant] = {}
    for variant in map(_expanded, study.variants):
        distinct.setdefault(_identity(variant.scenario), variant)
    variants = sorted(distinct.values(), key=lambda variant: variant.scenario.seed)
    shown = variants[:MAX_PARTITIONS]
    names = [_words(variant.scenario) for variant in shown]
    common = [word for word in names[0] if all(word in words for words in names)]
    partitions = [
        _partition(variant, [*(word for word in words if word not in common), f"seed {variant.scenario.seed}"])
        for variant, words in zip(shown, names, strict=True)
    ]
    return Preview(study.name, ", ".join(common), partitions, len(variants) - len(shown))


def _expanded(variant: Variant) -> Variant:
    with variant.places.locating():
        return replace(variant, scenario=expand(variant.scenario))


def _identity(scenario: Scenario) -> str:
    """Return a text that is equal for scenarios whose clients hold the same samples."""
    return json.dumps(values_except(scenario, NOT_DEALT), sort_keys=True)


def _partition(variant: Variant, name: list[str]) -> PartitionResult:
    with variant.places.locating():
        dataset, shares, _ = deal_data(variant.scenario, pixels=False)
    counts = label_counts(dataset.y_train.numpy(), shares, dataset.n_labels)
    group = "label" if dataset.goal.scores_labels else "group"
    table = pd.DataFrame(counts, columns=dataset.label_names)
    return PartitionResult(", ".join(name), table, len(dataset.y_train), group)


def _words(scenario: Scenario) -> list[str]:
    """Return the settings that decide the partition, in words: data, partition with its options, number of clients."""
    changed = scenario.data.model_dump(exclude={"name", "factory", "partition"}, exclude_defaults=True)
    data = {key: value for key, value in changed.items() if concern_of(f"data.{key}") is Concern.DEALING}
    how = scenario.data.partition.model_dump(exclude_none=True)
    kind = how.pop("kind")
    clients = [] if scenario.clients.count is None else [f"{scenario.clients.count} clients"]
    return [scenario.data.name or str(scenario.data.factory), *_settings(data), kind, *_settings(how), *clients]


def _settings(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]
