"""The data sets by name, and which options each of them has."""

import inspect

import pytest

from sfl_sim.data.loading import DATASETS, load
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.data import Data


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ScenarioError, match=r"allowed: digits, .*tiny_imagenet.*did you mean 'cifar10'"):
        load("cifar")


@pytest.mark.parametrize("option", [{"path": "x"}, {"image_size": 8}, {"root": "x"}, {"superclasses": False}])
def test_an_option_of_another_data_set_is_refused(option):
    with pytest.raises(ScenarioError, match="not an option of digits") as failure:
        load("digits", **option)
    assert failure.value.key == f"data.{next(iter(option))}"


def test_every_option_of_a_data_set_is_a_key_of_scenarios():
    options = {option for loader in DATASETS.values() for option in inspect.signature(loader).parameters}
    common = {"name", "factory", "train_samples", "test_samples", "augment", "std", "partition", "test", "targets"}
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
