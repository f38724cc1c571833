"""Checks that hold for every data set."""

import pytest
import torch


def assert_well_formed(data):
    """Types and shapes, every label in both parts, owners as they were promised."""
    parts = [(data.x_train, data.y_train, data.owners), (data.x_test, data.y_test, data.test_owners)]
    for x, y, owners in parts:
        assert x.dtype is torch.uint8
        assert x.is_contiguous()
        assert y.dtype is torch.int64
        assert len(x) == len(y)
        assert set(y.tolist()) == set(range(data.n_labels))
        if owners is not None:
            assert owners.dtype is torch.int64
            assert owners.shape == y.shape
            assert set(owners.tolist()) == set(range(len(data.owner_names)))
        if data.mean is None:
            assert data.std is None
            assert x.max() < data.n_labels  # tokens
        else:
            assert data.mean.shape == data.std.shape == x.shape[1:2]


def assert_normalised_by_mean_and_std(data):
    """The constants are those of the training images."""
    value = torch.arange(256) / 255
    for channel, mean, std in zip(data.x_train.unbind(1), data.mean.tolist(), data.std.tolist(), strict=True):
        share = torch.bincount(channel.flatten(), minlength=256) / channel.numel()
        assert float((share * value).sum()) == pytest.approx(mean, abs=1e-4)
        assert float((share * (value - mean) ** 2).sum()) == pytest.approx(std**2, abs=1e-4)
