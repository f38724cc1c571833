"""Subsets: stratified, the same every time, and with their owners."""

import pytest
import torch

from sfl_sim.data.loading import load
from sfl_sim.errors import ScenarioError


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
