"""Distance correlation: golden values and identities of docs/methods/leakage.md."""

import math

import pytest
import torch

from sfl_sim.rng import stream
from sfl_sim.training.dependence import distance_correlation, unbiased_distance_correlation


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def normal(name, *shape):
    return torch.from_numpy(stream(0, name).normal(size=shape))


@pytest.mark.parametrize(
    ("x", "z", "wanted"),
    [((0, 1, 2, 3), (0, 1, 4, 9), 0.96846), ((0, 1, 2, 3, 4), (1, 0, 2, 0, 1), 0.43280)],
)
def test_by_hand(x, z, wanted):
    assert float(distance_correlation(column(*x), column(*z))) == pytest.approx(wanted, abs=1e-5)


def test_the_unbiased_one_by_hand():
    x, z = column(0, 1, 2, 3, 4), column(1, 0, 2, 0, 1)
    assert unbiased_distance_correlation(x, z) == pytest.approx(-0.40825, abs=1e-5)
    assert math.isnan(unbiased_distance_correlation(x[:3], z[:3]))


def test_what_is_scaled_and_moved_depends_wholly():
    x = normal("x", 9, 2, 3)
    for z in (x, 5 - 0.1 * x):
        assert float(distance_correlation(x, z)) == pytest.approx(1)
        assert unbiased_distance_correlation(x, z) == pytest.approx(1)


def test_a_constant_depends_on_nothing():
    x, z = normal("x", 6, 3), torch.ones(6, 2, requires_grad=True)
    assert unbiased_distance_correlation(x, z.detach()) == 0
    (gradient,) = torch.autograd.grad(distance_correlation(x, z), z)
    assert not gradient.any()


def test_the_unbiased_one_of_independent_samples_is_around_zero_and_the_other_one_is_not():
    pairs = [(normal(f"x{i}", 32, 100), normal(f"z{i}", 32, 100)) for i in range(50)]
    found = torch.tensor([unbiased_distance_correlation(x, z) for x, z in pairs])
    assert abs(found.mean()) < 3 * found.std() / math.sqrt(50)
    assert all(distance_correlation(x, z) > 0.9 for x, z in pairs)


def test_the_gradient_is_that_of_small_changes():
    x, z = normal("x", 5, 3), normal("z", 5, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda each: distance_correlation(x, each), z)
