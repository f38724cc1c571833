"""Defences of what crosses the cut: clipping and noise, alone and before a codec; distance correlation."""

import math

import numpy as np
import pytest
import torch

from sfl_sim.rng import stream
from sfl_sim.training.codecs import Fp16, Int, SplitFC, TopK
from sfl_sim.training.defences import Noisy, distance_correlation, distances, unbiased_correlation

F32 = torch.float32
INNER = [None, Fp16(), Int(bits=4), TopK(keep=0.3), SplitFC(ratio=2.0)]


def draw():
    return stream(0, "test")


def through(codec, x):
    return codec.decode(codec.encode(x, draw()), tuple(x.shape), x.dtype)


def some(*shape):
    return torch.from_numpy(stream(0, "tensor").normal(size=shape)).float()


def test_long_samples_are_clipped_and_short_ones_are_not():
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert through(Noisy(clip=1.0), x).tolist() == [pytest.approx(row) for row in ([0.6, 0.8], [0.3, 0.4], [0, 0])]


@pytest.mark.parametrize(("clip", "std"), [(None, 0.5), (4.0, 2.0)])
def test_noise_is_measured_in_lengths_of_the_clip(clip, std):
    x = torch.zeros(100, 3, 10, 10)
    noise = through(Noisy(clip=clip, sigma=0.5), x)
    assert noise.mean() == pytest.approx(0, abs=4 * std / len(noise.flatten()) ** 0.5)
    assert noise.std() == pytest.approx(std, rel=0.02)
    assert len({tuple(row.flatten()[:4].tolist()) for row in noise}) == 100


@pytest.mark.parametrize("inner", INNER, ids=repr)
def test_noise_comes_before_the_codec_and_costs_no_byte(inner):
    x, noise = some(4, 3, 4, 4), Noisy(clip=2.0, sigma=0.1)
    both = noise.model_copy(update={"inner": inner})
    code = both.encode(x, draw())
    packed = both.pack(code, x.shape, F32)
    assert both.size_bytes(x.shape, F32) == len(packed)
    assert both.gradient_shape(x.shape, F32) == (inner.gradient_shape(x.shape, F32) if inner else x.shape)
    if inner is None or inner.samplewise or inner == Int(bits=4):  # which draw nothing
        noisy = through(noise, x)
        assert torch.equal(through(both, x), through(inner, noisy) if inner else noisy)


@pytest.mark.parametrize("inner", [None, TopK(keep=0.3)], ids=repr)
def test_the_gradient_passes_the_clip_as_a_constant_factor(inner):
    codec, x = Noisy(clip=1.0, sigma=0.2, inner=inner), some(3, 8).requires_grad_()
    code = codec.encode(x.detach(), draw())
    mask = inner.pull(torch.ones_like(code[1]), code[1:], x.shape) if inner else 1
    wanted = some(3, 8) * 0.5
    ((1 / x.detach().norm(dim=1)).clamp(max=1)[:, None] * x * mask * wanted).sum().backward()
    found = codec.pull(codec.select(wanted, code), code, tuple(x.shape))
    torch.testing.assert_close(found, x.grad)


@pytest.mark.parametrize("inner", INNER, ids=repr)
def test_requests_are_protected_too_each_with_noise_of_its_own(inner):
    codec, x = Noisy(sigma=1.0, inner=inner).for_inference(), torch.ones(5, 40)
    seen = codec.decode_each_alone(x)
    assert torch.equal(seen, codec.decode_each_alone(x))
    assert len(np.unique(seen.numpy(), axis=0)) == 5


def test_what_is_not_finite_is_seen():
    x = some(3, 8)
    x[0, 3], x[1, 2] = torch.nan, torch.inf
    seen = through(Noisy(clip=1.0, sigma=0.1), x)
    assert [bool(row.isfinite().all()) for row in seen] == [False, False, True]


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def unbiased(x, z):
    return unbiased_correlation(distances(x), distances(z))


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
    assert unbiased(x, z) == pytest.approx(-0.40825, abs=1e-5)
    assert math.isnan(unbiased(x[:3], z[:3]))


def test_what_is_scaled_and_moved_depends_wholly():
    x = normal("x", 9, 2, 3)
    for z in (x, 5 - 0.1 * x):
        assert float(distance_correlation(x, z)) == pytest.approx(1)
        assert unbiased(x, z) == pytest.approx(1)


def test_a_constant_depends_on_nothing():
    x, z = normal("x", 6, 3), torch.ones(6, 2, requires_grad=True)
    assert unbiased(x, z.detach()) == 0
    (gradient,) = torch.autograd.grad(distance_correlation(x, z), z)
    assert not gradient.any()


def test_the_unbiased_one_of_independent_samples_is_around_zero_and_the_other_one_is_not():
    pairs = [(normal(f"x{i}", 32, 100), normal(f"z{i}", 32, 100)) for i in range(50)]
    found = torch.tensor([unbiased(x, z) for x, z in pairs])
    assert abs(found.mean()) < 3 * found.std() / math.sqrt(50)
    assert all(distance_correlation(x, z) > 0.9 for x, z in pairs)


def test_the_gradient_is_that_of_small_changes():
    x, z = normal("x", 5, 3), normal("z", 5, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda each: distance_correlation(x, each), z)
