"""Contents of values are stored and read again to the bit, and in the same memory layout."""

from pickle import UnpicklingError

import numpy as np
import pytest
import torch
from torch import nn

from sfl_sim.training.contents import Unstorable, dump, load, storable


def through_a_file(content):
    """Store and load a content as a checkpoint does."""
    return load(dump(storable(content)))


def assert_same(found, tensor):
    assert found.dtype == tensor.dtype
    assert torch.equal(found.nan_to_num(7), tensor.nan_to_num(7))
    assert found.stride() == tensor.stride()
    assert found.data_ptr() % 64 == 0


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),  # kernels round otherwise in another layout
        torch.randn(3, 1, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(5, 6).t(),
        torch.randn(4, dtype=torch.float64)[1:],
        torch.tensor(float("nan")),
        torch.randn(7).bfloat16(),
        torch.arange(6, dtype=torch.uint8).reshape(2, 3),
        torch.tensor([True, False]),
        torch.empty(0, 3),
    ],
)
def test_a_tensor_is_found_with_its_type_its_bits_and_its_layout(tensor):
    assert_same(through_a_file(tensor), tensor)


def test_a_part_of_a_larger_tensor_comes_without_the_rest():
    column = torch.randn(400, 500)[:, 1]
    assert torch.equal(through_a_file(column), column)
    assert len(dump(storable(column))) < 400 * 500


def test_collections_are_found_as_they_were():
    x = torch.randn(3)
    content = {"a": (x, [None, 1, 0.1, "text", True]), 2: [x + 1], "v": (x, None, x > 0)}
    found = through_a_file(content)
    assert list(found) == ["a", 2, "v"]
    assert isinstance(found["a"], tuple)
    assert found["a"][1] == content["a"][1]
    assert found["a"][0] is found["v"][0]  # one tensor stays one
    assert torch.equal(found[2][0], x + 1)
    assert found["v"][1] is None


def test_graphs_and_what_nobody_knows_are_refused():
    with pytest.raises(Unstorable, match="graph"):
        storable((nn.Linear(2, 2)(torch.ones(2)),))
    with pytest.raises(Unstorable, match="type object"):
        storable([object()])


class Evil:
    def __reduce__(self):
        return print, ("it ran",)


def test_bytes_that_name_code_run_none_of_it(capsys):
    with pytest.raises(UnpicklingError):
        load(dump([Evil()]))
    assert capsys.readouterr().out == ""


def test_numbers_of_numpy_are_plain_ones():
    assert through_a_file([np.float64(0.1), True, 3]) == [0.1, True, 3]
