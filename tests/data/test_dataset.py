"""Subsets with their owners, and targets other than labels with the groups by which clients differ all the same."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from torch.utils.data import TensorDataset

from sfl_sim.data.dataset import QUANTILES, groups
from sfl_sim.data.loading import load
from sfl_sim.data.own import as_dataset
from sfl_sim.errors import ScenarioError
from sfl_sim.goals import NO_LABEL, Goal


def test_a_subset_is_stratified_and_the_same_every_time():
    whole, subset, again = load("digits"), *(load("digits", train_samples=100, test_samples=50) for _ in range(2))
    assert torch.equal(subset.x_train, again.x_train)
    assert (len(subset.y_train), len(subset.y_test)) == (100, 50)
    share = torch.bincount(whole.y_train) * 100 / len(whole.y_train)
    assert (torch.bincount(subset.y_train) - share).abs().max() < 1
    assert torch.equal(subset.mean, whole.mean)


def test_samples_of_a_subset_keep_their_labels_and_owners():
    options = {"shape": (1, 6, 6), "samples": 1000, "owners": 9}
    whole, subset = load("synthetic", **options), load("synthetic", **options, train_samples=60, test_samples=40)
    for x, y, owners, all_x, all_y, all_owners in (
        (subset.x_train, subset.y_train, subset.owners, whole.x_train, whole.y_train, whole.owners),
        (subset.x_test, subset.y_test, subset.test_owners, whole.x_test, whole.y_test, whole.test_owners),
    ):
        known = {x.numpy().tobytes(): (y, owner) for x, y, owner in zip(all_x, all_y, all_owners, strict=True)}
        assert [known[image.numpy().tobytes()] for image in x] == list(zip(y, owners, strict=True))
    assert subset.owner_names == whole.owner_names


@pytest.mark.parametrize(("key", "wanted"), [("train_samples", 1439), ("test_samples", 360), ("test_samples", 0)])
def test_a_subset_larger_than_the_set_or_empty_is_refused(key, wanted):
    with pytest.raises(ScenarioError, match=f"data.{key}.*found {wanted}"):
        load("digits", **{key: wanted})


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)


@pytest.mark.parametrize(
    ("y", "goal", "shape", "names"),
    [
        (np.arange(6) % 3, Goal.LABEL, None, ("0", "1", "2")),
        (np.arange(6) / 7, Goal.NUMBERS, (6, 1), ("0",)),
        (np.ones((6, 2)) / 3, Goal.NUMBERS, (6, 2), ("0", "1")),
        (np.eye(6, 4), Goal.LABEL_SET, (6, 4), ("0", "1", "2", "3")),
        (np.eye(6, 4, dtype=bool), Goal.LABEL_SET, (6, 4), ("0", "1", "2", "3")),
        (np.arange(24).reshape(6, 2, 2) % 3, Goal.PIXELS, (6, 2, 2), ("0", "1", "2")),
    ],
)
def test_type_and_shape_of_labels_say_what_is_predicted(y, goal, shape, names):
    data = as_dataset((X, y, X, y))
    assert data.goal is goal
    assert data.answers == names
    assert (None if data.targets_train is None else tuple(data.targets_train.shape)) == shape


def test_a_torch_data_set_gives_masks_and_names():
    masks = torch.tensor([[[0, 1], [1, NO_LABEL]]] * 6)
    part = TensorDataset(torch.from_numpy(X), masks)
    part.classes = ["road", "sky", "never seen"]
    data = as_dataset((part, part))
    assert data.goal is Goal.PIXELS
    assert data.answers == ("road", "sky", "never seen")
    assert torch.equal(data.targets_train, masks.to(torch.uint8))


@pytest.mark.parametrize(
    ("y", "problem"),
    [
        (np.full((6, 1), np.inf), "targets that are not finite"),
        (np.full((6, 2, 2), NO_LABEL), "targets of no kind"),
        (np.full((6, 2, 2), 300), "targets of no kind"),
        (np.full((6, 3), 2), "targets of no kind"),
        (np.zeros((6, 2, 2, 2)), "targets of no kind"),
        (np.full((6, 2), "a"), "neither numbers nor texts"),
    ],
)
def test_targets_of_no_goal_are_one_line(y, problem):
    with pytest.raises(ScenarioError, match=f"data.factory: .*{problem}"):
        as_dataset((X, y, X, y))


def test_names_must_be_as_many_as_targets():
    part = TensorDataset(torch.from_numpy(X), torch.eye(6, 4))
    part.classes = ["a"]
    with refused("data.factory", found="1 classes"):
        as_dataset((part, part))


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=80))
def test_numbers_are_grouped_by_the_quantiles_of_training_samples(numbers):
    y = torch.tensor(numbers)[:, None]
    train, test, names = groups(y, y, ("it",))
    assert torch.equal(train, test)
    assert len(names) == int(train.max()) + 1 <= QUANTILES
    order = y[:, 0].argsort()
    assert (train[order].diff() >= 0).all()
    if len(set(numbers)) == len(numbers) >= QUANTILES:
        assert train.bincount().max() - train.bincount().min() <= 1


def test_sets_and_masks_are_grouped_by_their_rarest_label():
    sets = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 1], [1, 1, 1], [0, 0, 0]], dtype=torch.uint8)
    train, _, names = groups(sets, sets[:1], ("common", "b", "c"))
    assert [names[group] for group in train.tolist()] == ["b", "common", "c", "b", "none"]
    masks = torch.tensor([[[0, 0], [0, 1]], [[0, 0], [0, 0]], [[NO_LABEL] * 2] * 2], dtype=torch.uint8)
    train, test, names = groups(masks[:2], masks[2:], ("background", "cat"))
    assert [names[group] for group in (*train.tolist(), *test.tolist())] == ["cat", "background", "none"]


def test_a_label_that_is_nobody_s_rarest_is_no_group():
    sets = torch.tensor([[1, 1], [1, 0], [1, 1]], dtype=torch.uint8)[[0, 2]]
    assert groups(sets, sets, ("common", "rare"))[2] == ("common",) or groups(sets, sets, ("a", "b"))[2] == ("a",)


def test_shipped_data_sets_hold_what_they_say():
    pairs, masks, diabetes = load("digit_pairs"), load("digit_masks"), load("diabetes")
    assert set(pairs.targets_train.sum(dim=1).tolist()) == {1, 2}
    assert torch.equal(pairs.x_train, masks.x_train)
    seen = [set(mask.unique().tolist()) - {0} for mask in masks.targets_train[:50]]
    assert seen == [{label + 1 for label in flags.nonzero().flatten().tolist()} for flags in pairs.targets_train[:50]]
    assert len(diabetes.x_train) + len(diabetes.x_test) == 442
    assert diabetes.targets_train.mean().abs() < 1e-6
    assert diabetes.targets_train.std() == pytest.approx(1)


def test_a_part_of_a_data_set_keeps_its_targets():
    whole = load("diabetes")
    part = load("diabetes", train_samples=50, test_samples=10)
    places = [int((whole.x_train == row).all(dim=1).nonzero()[0]) for row in part.x_train]
    assert torch.equal(part.targets_train, whole.targets_train[places])
    assert torch.equal(part.y_train, whole.y_train[places])
    assert part.digest() != whole.digest()
