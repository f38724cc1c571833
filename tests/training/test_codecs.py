"""Codecs: golden values of docs/methods/codecs.md, declared bytes, and what holds for any tensor."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.rng import stream
from sfl_sim.training.codecs import CODECS, Bf16, Delta, Fp16, Int, RandTopK, SplitFC, TopK
from sfl_sim.training.codecs.splitfc import keep_probabilities, systematic_sample

F32 = torch.float32
EVERY = [
    Fp16(), Bf16(), *(Int(bits=b, per=per, rounding=rounding) for b in (2, 4, 8) for per in ("tensor", "channel")
    for rounding in ("nearest", "stochastic")), TopK(keep=0.1), TopK(keep=0.3, values="fp16"), TopK(keep=1.0),
    RandTopK(keep=0.2), RandTopK(keep=0.1, alpha=0.5, values="fp16"), SplitFC(ratio=4.0), SplitFC(ratio=2.0, bits=32),
    SplitFC(ratio=3.0, bits=2), Delta(), Delta(inner=Int()),
]  # fmt: skip


def draw(*ids):
    return stream(0, "test", *ids)


def through(codec, x, *ids):
    return codec.decode(codec.encode(x, draw(*ids)), tuple(x.shape), x.dtype)


def some(shape, seed=0, dtype=F32, relu=False):
    x = torch.from_numpy(stream(seed, "tensor").normal(size=shape)).to(dtype)
    return x.relu() if relu else x


def test_integers_by_hand():
    x = torch.tensor([[-1, 0, 0.4, 2]])
    from_zero, s, z = Int().encode(x, draw())
    assert ((from_zero + z).tolist(), float(s), int(z)) == ([[0, 85, 119, 255]], pytest.approx(3 / 255), 85)
    assert through(Int(), x).tolist() == [pytest.approx([-1, 0, 0.4, 2])]
    near = through(Int(), torch.tensor([[-1, 0.3, 0.011, 2]]))
    assert near[0, 1:3].tolist() == pytest.approx([0.3058824, 0.0117647], abs=1e-7)
    from_zero, s, z = Int(bits=2).encode(torch.tensor([[-1, 0.2, 0.6, 2]]), draw())
    assert ((from_zero + z).tolist(), float(s), int(z)) == ([[0, 1, 2, 3]], 1, 1)


LABELS = 64 * 8


@pytest.mark.parametrize(
    ("codec", "size_bytes"),
    [
        (Fp16(), 8_389_120),
        (Int(), 4_194_824),
        (Int(per="channel"), 4_195_328),
        (Int(bits=4), 2_097_672),
    ],
    ids=repr,
)
def test_bytes_of_resnets_activations(codec, size_bytes):
    assert codec.size_bytes((64, 64, 32, 32), F32) + LABELS == size_bytes


@pytest.mark.parametrize(
    ("numel", "k", "values", "places"),
    [(65_536, 655, 2_620, 1_310), (512, 51, 204, 58), (512, 60, 240, 64), (65_536, 4_097, 16_388, 8_192)],
)
def test_bytes_of_top_k_count_places_as_a_list_or_a_bitmap(numel, k, values, places):
    codec = TopK(keep=k / numel)
    assert codec.gradient_shape((3, numel), F32) == (3, k)
    assert codec.size_bytes((3, numel), F32) == 3 * (values + places)


def test_top_k_keeps_all_where_that_is_no_larger():
    assert TopK(keep=0.98).gradient_shape((2, 100), F32) == (2, 100)
    assert TopK(keep=0.98).size_bytes((2, 100), F32) == 2 * 400
    assert TopK(keep=0.96).gradient_shape((2, 100), F32) == (2, 96)


@pytest.mark.parametrize(
    ("spread", "kept"),
    [
        ((4, 2, 1, 1), (1, 0.5, 0.25, 0.25)),
        ((10, 1, 1, 0), (1, 0.5, 0.5, 0)),
        ((0, 0, 3, 0), (1 / 3, 1 / 3, 1, 1 / 3)),
        ((0, 0, 0, 0), (0.5, 0.5, 0.5, 0.5)),
    ],
)
def test_columns_are_kept_the_likelier_the_more_they_vary(spread, kept):
    assert keep_probabilities(np.array(spread, float), 2).tolist() == pytest.approx(kept)


def test_no_column_is_certain_where_none_stands_out():
    assert keep_probabilities(np.array([3.0, 3, 2, 1, 1]), 2).tolist() == pytest.approx([0.6, 0.6, 0.4, 0.2, 0.2])


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 9, allow_subnormal=False), min_size=1, max_size=40),
    st.floats(0, 1, exclude_max=True),
    st.data(),
)
def test_as_many_columns_are_sampled_as_are_asked_for(spread, u, data):
    n_columns = data.draw(st.integers(1, len(spread)))
    kept = keep_probabilities(np.array(spread), n_columns)
    assert kept.sum() == pytest.approx(n_columns)
    assert kept.max() <= 1
    chosen = systematic_sample(kept, u)
    assert len(set(chosen.tolist())) == n_columns


def test_columns_are_sampled_by_one_draw():
    kept = np.array([1, 0.5, 0.25, 0.25])
    assert [systematic_sample(kept, u).tolist() for u in (0.3, 0.6, 0.8)] == [[0, 1], [0, 2], [0, 3]]


@settings(max_examples=60)
@given(
    codec=st.sampled_from(EVERY),
    shape=st.one_of(
        st.tuples(st.integers(1, 5), st.integers(1, 40)),
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 7)),
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    ),
    relu=st.booleans(),
    seed=st.integers(0, 99),
)
def test_declared_bytes_are_packed_bytes(codec, shape, relu, seed):
    x = some(shape, seed, relu=relu)
    if isinstance(codec, Delta):  # a bit for each sample, and what is sent
        declared, codec = codec.size_bytes(shape, F32) - math.ceil(shape[0] / 8), codec.inner
        assert declared == (len(codec.pack(codec.encode(x, draw()), shape, F32)) if codec else x.nbytes)
        return
    code = codec.encode(x, draw(seed))
    packed = codec.pack(code, shape, F32)
    assert codec.size_bytes(shape, F32) == len(packed)
    received = codec.unpack(packed, shape, F32)
    heard = codec.decode(codec.as_overheard(code), shape, F32)
    torch.testing.assert_close(codec.decode(received, shape, F32), heard, rtol=0, atol=0, equal_nan=True)
    assert all(torch.equal(one, other) for one, other in zip(code, codec.encode(x, draw(seed)), strict=True))
    decoded = codec.decode(code, shape, F32)
    assert (decoded.shape, decoded.dtype) == (x.shape, F32)
    back = codec.select(x, code)
    assert tuple(back.shape) == codec.gradient_shape(shape, F32)
    assert codec.pull(back, code, shape).shape == x.shape


@pytest.mark.parametrize("codec", EVERY, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_zero_stays_zero_in_every_type(codec, dtype):
    x = some((6, 3, 4, 4), dtype=dtype, relu=True)
    decoded = through(codec, x)
    assert decoded.dtype == dtype
    assert (decoded[x == 0] == 0).all()
    assert (through(codec, torch.zeros_like(x)) == 0).all()


@pytest.mark.parametrize("codec", EVERY, ids=repr)
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_is_seen(codec, wrong):
    x = some((8, 20))
    x[3, 7] = wrong
    if wrong == math.inf and (isinstance(codec, Fp16) or getattr(codec, "values", "") == "fp16"):
        assert through(codec, x)[3, 7] == 65_504
    else:
        assert not through(codec, x).isfinite().all()


def test_numbers_beyond_the_range_of_float16_arrive_as_its_largest_ones():
    for dtype in (torch.float32, torch.float64):
        assert through(Fp16(), torch.tensor([[1e6, -1e6, 0.125]], dtype=dtype)).tolist() == [[65_504, -65_504, 0.125]]


@pytest.mark.parametrize("scale", [1, 0.25, 1024])
def test_values_on_the_grid_are_exact(scale):
    x = scale * torch.arange(-100, 156, dtype=F32).view(2, 128)
    assert torch.equal(through(Int(), x), x)


@settings(max_examples=30)
@given(st.sampled_from([2, 4, 8]), st.sampled_from(["tensor", "channel"]), st.integers(0, 999))
def test_coding_twice_is_coding_once(bits, per, seed):
    codec = Int(bits=bits, per=per)
    q, s, z = codec.encode(some((4, 3, 5, 5), seed), draw())
    again, s2, z2 = codec.encode(codec.decode((q, s, z), (4, 3, 5, 5), F32), draw())
    assert torch.equal(q, again)
    assert torch.equal(z, z2)
    torch.testing.assert_close(s, s2, rtol=1e-6, atol=0)


def test_stochastic_rounding_is_right_on_average():
    x = torch.tensor([[-1.0, 0.3, 0.77, 2.0]]).expand(10_000, 4)
    decoded = through(Int(bits=2, rounding="stochastic"), x)
    error = decoded.std(0) / math.sqrt(len(decoded))
    assert ((decoded.mean(0) - x[0]).abs() <= 4 * error + 1e-6).all()
    assert decoded[:, 1].unique().tolist() == [0, 1]


def test_a_channel_has_a_scale_of_its_own():
    x = torch.stack([some((4, 5, 5)), 100 * some((4, 5, 5), 1)], dim=1)
    fine = through(Int(bits=4, per="channel"), x) - x
    coarse = through(Int(bits=4), x) - x
    assert fine[:, 0].abs().max() < coarse[:, 0].abs().max() / 10


def test_of_equal_elements_top_k_keeps_the_first():
    x = torch.tensor([[0.0, 2, -2, 2, 0], [1, 0, 0, 0, 3]])
    assert through(TopK(keep=0.4), x).tolist() == [[0, 2, -2, 0, 0], [1, 0, 0, 0, 3]]


@settings(max_examples=40)
@given(st.integers(0, 999), st.integers(2, 60), st.floats(0.01, 0.9), st.booleans())
def test_top_k_is_the_k_largest(seed, numel, keep, relu):
    x, codec = some((3, numel), seed, relu=relu).round(decimals=1), TopK(keep=keep)
    k = codec.k((3, numel), F32)
    expected = torch.zeros_like(x)
    for row, out in zip(x.tolist(), expected, strict=True):
        for place in sorted(range(numel), key=lambda i: (-abs(row[i]), i))[:k]:
            out[place] = row[place]
    assert torch.equal(through(codec, x), expected)


def test_randtopk_without_chance_is_top_k():
    x = some((5, 50))
    assert torch.equal(through(RandTopK(keep=0.2, alpha=0.0), x), through(TopK(keep=0.2), x))
    assert torch.equal(through(RandTopK(keep=1.0), x), x)
    assert RandTopK(keep=0.2).for_inference() == TopK(keep=0.2)


def test_randtopk_takes_others_with_its_probability():
    """The first of k draws without replacement takes one of the others with probability alpha; here k = 1."""
    x = torch.tensor([[1.0, 2, 3, 10]]).expand(4_000, 4).contiguous()
    kept = through(RandTopK(keep=0.25, alpha=0.3), x).argmax(1)
    shares = torch.bincount(kept, minlength=4) / len(x)
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.1, 0.1, 0.7]), rtol=0, atol=4 * math.sqrt(0.21 / 4_000))


def test_splitfc_is_right_on_average():
    x = some((6, 8)) * torch.tensor([9.0, 5, 1, 1, 1, 1, 0.5, 0.5])
    codec = SplitFC(ratio=2.0, bits=32)
    decoded = torch.stack([through(codec, x, n) for n in range(400)])
    error = decoded.std(0) / math.sqrt(len(decoded))
    assert ((decoded.mean(0) - x).abs() <= 5 * error + 1e-5).all()
    assert ((decoded != 0).any(1).sum(1) == 4).all()


MASKS = [TopK(keep=0.3), RandTopK(keep=0.3), SplitFC(ratio=2.0, bits=32)]


@pytest.mark.parametrize("codec", MASKS, ids=repr)
def test_a_mask_passes_the_gradient_that_autograd_gives_with_the_mask_as_a_constant(codec):
    x = some((6, 20), dtype=torch.float64).requires_grad_()
    weights, code = some((6, 20), 1, torch.float64), codec.encode(x.detach(), draw())
    decoded = codec.decode(code, (6, 20), torch.float64)
    factor = torch.where(x.detach() == 0, 0, decoded / x.detach())
    ((factor * x).tanh() * weights).sum().backward()
    at_decoded = (1 - decoded.tanh() ** 2) * weights
    pulled = codec.pull(codec.select(at_decoded, code), code, (6, 20))
    torch.testing.assert_close(pulled, x.grad)


@pytest.mark.parametrize("codec", [codec.for_inference() for codec in EVERY if codec.for_inference()], ids=repr)
def test_at_inference_every_sample_is_a_message_of_its_own(codec):
    x = some((5, 3, 4, 4)) * torch.arange(1, 6).view(5, 1, 1, 1)
    one_by_one = torch.cat([through(codec, one[None]) for one in x])
    torch.testing.assert_close(codec.decode_each_alone(x), one_by_one)
    x = x.flatten(1)
    torch.testing.assert_close(codec.decode_each_alone(x), torch.cat([through(codec, one[None]) for one in x]))


def test_each_kind_of_codec_has_a_line_in_the_list():
    assert all(kind.__doc__ and len(kind.__doc__.split("\n")[0]) < 120 for kind in CODECS.values())
