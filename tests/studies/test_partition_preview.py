"""The preview shows the distinct partitions of a study, and they are those of its runs."""

import numpy as np
import pytest

from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import parse
from sfl_sim.studies.partition_preview import MAX_PARTITIONS, preview

DATA = {"name": "digits", "train_samples": 200, "partition": {"kind": "dirichlet", "alpha": 1.0, "min_size": 1}}


def previewed(**more):
    return preview(parse({"data": DATA, **more}, "tiny"))


def test_variants_that_share_a_partition_share_its_picture():
    found = previewed(repeats=2, grid={"data.partition.alpha": [1.0, 9.0], "train.lr": [0.1, 0.2], "data.test": [
        {"kind": "global"}, {"kind": "out_of_client"}]})  # fmt: skip
    assert found.name == "tiny"
    assert found.common == "digits, train_samples=200, dirichlet, by=class, min_size=1"
    assert [p.name for p in found.partitions] == [
        "alpha=1.0, seed 0",
        "alpha=9.0, seed 0",
        "alpha=1.0, seed 1",
        "alpha=9.0, seed 1",
    ]
    assert found.left_out == 0


def test_they_are_what_the_runs_will_have():
    study = parse({"data": DATA, "repeats": 2, "clients": {"count": 4}})
    for shown, variant in zip(preview(study).partitions, study.variants, strict=True):
        assert np.array_equal(shown.counts, Experiment(variant.scenario, None).counts)
        assert shown.n_samples == 200


def test_many_are_cut_to_a_handful_with_every_variant_before_a_second_seed():
    found = previewed(repeats=5, grid={"clients.count": [2, 3]})
    assert len(found.partitions) == MAX_PARTITIONS
    assert found.left_out == 10 - MAX_PARTITIONS
    assert [len(p.counts) for p in found.partitions] == [2, 3] * 3
    assert [p.name for p in found.partitions[:3]] == ["2 clients, seed 0", "3 clients, seed 0", "2 clients, seed 1"]


def test_empty_clients_are_shown_and_what_cannot_be_dealt_is_refused_with_its_place():
    data = {**DATA, "partition": {"kind": "dirichlet", "alpha": 0.01, "min_size": 0}}
    (shown,) = previewed(data=data).partitions
    assert (shown.counts.sum(axis=1) == 0).any()
    with pytest.raises(ScenarioError, match="4 clients share") as failure:
        previewed(data={**DATA, "partition": {"kind": "quantity_skew", "min_size": 999}}, clients={"count": 4})
    assert failure.value.key == "data.partition.min_size"


def test_numbers_have_groups_in_the_place_of_labels():
    assert previewed().group == "label"
    assert previewed(data={"name": "diabetes"}, clients={"count": 4}).group == "group"


def test_owners_become_clients():
    data = {"name": "synthetic", "shape": [1, 8, 8], "samples": 300, "owners": 12, "partition": {"kind": "natural"}}
    (shown,) = previewed(data=data).partitions
    assert len(shown.counts) == 12
    assert shown.counts.sum(axis=None) == 300
