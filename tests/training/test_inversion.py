"""Inversion by a trained decoder: it takes any shape at the cut, and learns what is there to be learned."""

import pytest
import torch

from sfl_sim.rng import stream
from sfl_sim.training.inversion import decoder, invert


@pytest.mark.parametrize("sample", [(1, 8, 8), (3, 32, 32), (3, 28, 20)])
@pytest.mark.parametrize(
    "features", [(3, 32, 32), (16, 7, 5), (8, 1, 1), (40,), (17, 12), (16, 12), (10, 4), (2, 2, 2, 2)]
)
def test_any_features_become_an_image(features, sample):
    drawn = decoder(features, sample)(torch.randn(2, *features))
    assert drawn.shape == (2, *sample)
    assert 0 <= drawn.min() <= drawn.max() <= 1


def test_features_grow_until_they_are_as_large_as_the_image():
    sizes = [layer.size for layer in decoder((16, 5, 4), (1, 28, 20)) if isinstance(layer, torch.nn.Upsample)]
    assert sizes == [(10, 8), (20, 16), (28, 20), (28, 20)]


def test_features_become_numbers_and_tokens():
    assert decoder((6, 2, 2), (5,))(torch.randn(3, 6, 2, 2)).shape == (3, 5)
    assert decoder((7, 4), (7,), n_tokens=9)(torch.randn(3, 7, 4)).shape == (3, 7, 9)
    assert decoder((6,), (7,), n_tokens=9)(torch.randn(3, 6)).shape == (3, 7, 9)


def test_tokens_are_laid_out_as_the_image_was_without_the_class_token():
    tokens = torch.arange(5.0)[None, :, None]
    fold = decoder((5, 1), (1, 4, 4))[0]
    assert fold(tokens).tolist() == [[[[1, 2], [3, 4]]]]


def test_what_crosses_whole_is_drawn_better_than_the_mean_image():
    x = torch.from_numpy(stream(0, "x").random((96, 1, 4, 4), dtype="float32"))
    known, unknown = x[:64], x[64:]
    drawn = invert(5 * known - 2, known, 5 * unknown - 2, epochs=30, seed=0)
    assert ((drawn - unknown) ** 2).mean() < 0.5 * ((known.mean(0) - unknown) ** 2).mean()
    again = invert(5 * known - 2, known, 5 * unknown - 2, epochs=30, seed=0)
    assert torch.equal(drawn, again)


def test_tokens_are_read_from_their_vectors():
    words = torch.from_numpy(stream(0, "words").integers(5, size=(200, 6)))
    vectors = torch.from_numpy(stream(0, "vectors").normal(size=(5, 8))).float()[words]
    read = invert(vectors[:150], words[:150], vectors[150:], epochs=200, seed=0, n_tokens=5)
    assert (read == words[150:]).float().mean() > 0.95


def test_no_draw_of_anyone_else_is_taken():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    invert(torch.rand(8, 4), torch.rand(8, 3), torch.rand(2, 4), epochs=1, seed=0)
    torch.manual_seed(3)
    assert torch.equal(before, torch.get_rng_state())
