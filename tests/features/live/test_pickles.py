"""Tensors cross as their elements, laid out in memory as they were."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from sfl_sim.features.live.pickles import read, written

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@given(shape=st.lists(st.integers(0, 4), max_size=4), dtype=st.sampled_from(TYPES), way=st.integers(0, 3))
def test_tensors_come_back_equal(shape, dtype, way):
    x = (100 * torch.randn(shape)).to(dtype)
    if way == 1 and x.dim() > 1:
        x = x.transpose(0, -1)
    if way == 2 and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    if way == 3 and x.dim():
        x = x[::2]  # has gaps, which do not travel
    found = read(written(x))
    assert found.dtype == dtype
    assert torch.equal(found, x)
    assert way == 3 or not x.numel() or found.stride() == x.stride()
    assert len(written(x)) < x.nbytes + 200
