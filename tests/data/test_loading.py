"""Data sets by name: which options each has, and what the clock needs of published ones without their pixels."""

import inspect
import re

import numpy as np
import pytest
import torch
from refusals import refused
from small_partitions import samples_of

from sfl_sim.build.setup import dataset_of
from sfl_sim.data.loading import DATASETS, KNOWN, load
from sfl_sim.data.partition import PARTITIONS, label_counts, partition
from sfl_sim.data.samples import Samples
from sfl_sim.engine.experiment import Experiment
from sfl_sim.rng import stream
from sfl_sim.runs.news import silent
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.data import Data
from sfl_sim.scenario.load import parse
from sfl_sim.studies.partition_preview import preview
from sfl_sim.studies.train import check, run_study


def test_unknown_name_lists_the_known_ones():
    with refused("data.name", found="cifar", says="'cifar10'"):
        load("cifar")


@pytest.mark.parametrize("option", [{"path": "x"}, {"image_size": 8}, {"root": "x"}, {"superclasses": False}])
def test_an_option_of_another_data_set_is_refused(option):
    with refused(f"data.{next(iter(option))}"):
        load("digits", **option)


def test_every_option_of_a_data_set_is_a_key_of_scenarios():
    options = {option for loader in DATASETS.values() for option in inspect.signature(loader).parameters}
    common = {"name", "factory", "train_samples", "test_samples", "augment", "std", "partition", "validation", "test",
              "targets"}  # fmt: skip
    assert options - {"pixels"} == Data.model_fields.keys() - common


def test_the_defaults_of_a_scenario_fit_every_data_set():
    given = Data().model_dump(exclude={"name", "partition", "test", "augment", "std"})
    assert load("digits", **given).n_labels == 10
    assert load(
        "synthetic",
        **given,
    ).x_train.shape == (10_000, 3, 32, 32)


def test_a_shape_is_a_list_of_whole_numbers():
    assert Data(shape=[3, 8, 8]).shape == (3, 8, 8)
    for wrong in ([3, 8, 8.0], "3x8x8", [0]):
        with pytest.raises(ValueError, match="shape"):
            Data(shape=wrong)


CIFAR = {
    "data": {"name": "cifar10", "train_samples": 600, "partition": {"kind": "dirichlet", "by": "class_plain"}},
    "clients": {"count": 4},
    "train": {"rounds": 1},
}


@pytest.fixture(autouse=True)
def nothing_is_downloaded(monkeypatch):
    def refuse(*_):
        raise ConnectionError("no network")

    monkeypatch.setattr("sfl_sim.data.download._fetch_from", refuse)


@pytest.mark.parametrize("name", KNOWN)
def test_the_shapes_and_sizes_are_those_of_the_published_set(name):
    numbers = [int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", DATASETS[name].__doc__.split(":")[1])]
    data = load(name, pixels=False)
    assert [len(data.y_train), len(data.y_test), *data.x_train.shape[2:]] == numbers[:4]
    assert data.x_train.shape[1] == (3 if "colour" in DATASETS[name].__doc__ else 1)


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_the_label_counts_are_those_of_the_published_set(name, staged_data):
    real, known = load(name, root=staged_data), load(name, pixels=False)
    assert real.y_train.bincount().equal(known.y_train.bincount())
    assert real.y_test.bincount().equal(known.y_test.bincount())
    assert real.x_train.shape == known.x_train.shape


def test_the_superclasses_of_cifar_100_are_of_equal_size():
    assert load("cifar100", superclasses=True, pixels=False).y_train.bincount().tolist() == [2500] * 20


@pytest.mark.parametrize("kind", sorted(PARTITIONS.keys() - {"natural", "indices"}))
def test_a_partition_of_the_same_samples_in_another_order_is_as_large(kind):
    def dealt(samples):
        options = {"min_size": 2} if kind in ("dirichlet", "quantity_skew") else {}
        parts = partition(kind, samples, 4, stream(3, "partition"), **options)
        return label_counts(samples.labels, parts, samples.n_labels)

    shuffled = samples_of([90, 40, 70, 55])
    one, other = dealt(shuffled), dealt(Samples(np.sort(shuffled.labels), 4, None))
    assert np.array_equal(one.sum(axis=1), other.sum(axis=1))
    if kind not in ("iid", "quantity_skew"):
        assert np.array_equal(one, other)


def test_the_clock_needs_no_pixels_and_walks_the_same_timeline(staged_data):
    def timeline(root):
        run = Experiment(parse(CIFAR | {"data": CIFAR["data"] | {"root": str(root)}}).variants[0].scenario, device=None)
        for _ in run.rounds():
            pass
        return run.timeline_digest

    assert timeline(staged_data) == timeline(staged_data / "nothing here")


@pytest.mark.usefixtures("without_pages")
def test_runs_and_previews_of_time_and_partitions_need_no_pixels(tmp_path):
    outcome = run_study(parse(CIFAR), tmp_path / "run", Settings(timing_only=True), silent)
    assert outcome.status == "complete"
    assert preview(parse(CIFAR)).partitions


def test_what_trains_needs_pixels_and_says_so_before_it_begins():
    study = parse(CIFAR)
    check(study)
    with refused("data.name"):
        check(study, torch.device("cpu"))
    with refused("data.name", says="data.download"):
        dataset_of(study.base.data.model_copy(update={"download": False}))


def test_fewer_samples_of_a_set_without_content_take_no_memory_either():
    data = load("tokens", pixels=False, samples=1_000, train_samples=900, test_samples=100)
    assert (len(data.x_train), len(data.y_train), len(data.x_test)) == (900, 900, 100)
    assert {data.x_train.untyped_storage().nbytes(), data.x_test.untyped_storage().nbytes()} == {1}
