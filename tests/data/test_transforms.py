import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.data.transforms import crop_flip, normalise, random_crop_flip
from sfl_sim.rng import stream

MEAN, STD = torch.tensor([0.49, 0.48, 0.45]), torch.tensor([0.25, 0.24, 0.26])


def images(n, channels=3, height=8, width=8, seed=0):
    pixels = stream(seed, "images").integers(1, 256, (n, channels, height, width), dtype=np.uint8)
    return torch.from_numpy(pixels)


@pytest.mark.parametrize("channels_last", [False, True])
def test_normalise_is_torchvisions_in_the_wanted_layout(channels_last):
    x = images(5)
    got = normalise(x, MEAN, STD, torch.float32, channels_last)
    want = reference.normalize(reference.to_dtype(x, torch.float32, scale=True), MEAN.tolist(), STD.tolist())
    torch.testing.assert_close(got, want)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert got.is_contiguous(memory_format=layout)


def test_normalise_keeps_double_precision():
    x = images(5)
    got = normalise(x, MEAN.double(), STD.double(), torch.float64, channels_last=False)
    want = (x.double() / 255 - MEAN.double().view(3, 1, 1)) / STD.double().view(3, 1, 1)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-14)


@settings(max_examples=40)
@given(
    n=st.integers(1, 6), channels=st.sampled_from([1, 3]), height=st.integers(1, 9), width=st.integers(1, 9),
    padding=st.integers(0, 4), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_crop_and_flip_equal_torchvision_image_by_image(n, channels, height, width, padding, seed):
    x = images(n, channels, height, width, seed)
    rng = stream(seed, "augment")
    top, left = torch.from_numpy(rng.integers(2 * padding + 1, size=(2, n)))
    mirrored = torch.from_numpy(rng.random(n) < 0.5)
    for i, got in enumerate(crop_flip(x, padding, top, left, np.flatnonzero(mirrored))):
        padded = reference.pad(x[i], [padding] * 4)
        want = reference.crop(padded, int(top[i]), int(left[i]), height, width)
        assert torch.equal(got, reference.horizontal_flip(want) if mirrored[i] else want)


def test_random_crop_flip_reaches_every_offset_and_both_directions():
    pattern = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4)
    variants = random_crop_flip(pattern.expand(2000, 1, 4, 4), 2, stream(0, "augment"))
    assert len({tuple(image.flatten().tolist()) for image in variants}) == 5 * 5 * 2
    unshifted = (variants == pattern).all(dim=(1, 2, 3)).sum() + (variants == pattern.flip(-1)).all(dim=(1, 2, 3)).sum()
    assert 50 < unshifted < 120  # 1 in 25 of 2,000


def test_random_crop_flip_is_drawn_from_its_generator_and_leaves_its_input_alone():
    x = images(20)
    before = x.clone()
    first, again, other = (random_crop_flip(x, 2, stream(seed, "augment")) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(x, before)
    assert first.dtype is torch.uint8
