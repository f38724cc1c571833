"""Tensors cross as their elements, laid out in memory as they were."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from live_nodes import Touch

from sfl_sim.features.live.pickles import ForeignCode, read, written
from sfl_sim.methods import METHODS
from sfl_sim.models.forward_settings import Graphs
from sfl_sim.testing import USUAL, cases_of

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


def test_a_tensor_without_content_crosses_as_its_shape():
    x = torch.empty((10_000, 1000), device="meta").t()
    found = read(data := written(x))
    assert len(data) < 1000
    assert (found.device.type, found.shape, found.stride()) == ("meta", x.shape, x.stride())


def test_what_has_a_name_crosses_as_that():
    known = {"thing": torch.arange(100_000.0)}
    thing = known["thing"]
    data = written([thing, 5], lambda obj: ("thing", 3) if obj is thing else None)
    assert len(data) < 100
    asked = []
    assert read(data, lambda name: asked.append(name) or thing) == [thing, 5]
    assert asked == [("thing", 3)]


def test_weights_cross_as_their_elements_and_compute_the_same():
    state = cases_of(METHODS["splitfed_v2"])[0].method(USUAL.work()).part1
    weights = state.content
    found = read(written(weights), allow_code=True)
    assert torch.equal(found.flat, weights.flat)
    assert found.flat.data_ptr() != weights.flat.data_ptr()


def test_every_process_counts_its_own_graphs():
    assert read(written(Graphs(3))).limit == 3
    assert read(written(Graphs(None))).limit == Graphs(None).limit


@pytest.mark.parametrize(
    "name", ["builtins.eval", "builtins.exec", "builtins.getattr", "os.system", "posix.system", "subprocess.Popen",
             "importlib.import_module", "sfl_simulator.anything", "live_nodes.Touch"]
)  # fmt: skip
def test_a_message_names_no_code_but_the_simulator_s_own(name):
    module, _, function = name.rpartition(".")
    with pytest.raises(ForeignCode) as raised:
        read(f"c{module}\n{function}\n.".encode())
    assert name in raised.value.problem
    assert "--allow-code" in raised.value.problem


@pytest.mark.parametrize("own", [{1, 2}, frozenset("ab"), slice(1, 5, 2), complex(1, 2), range(3), bytearray(b"x")])
def test_plain_objects_need_no_permission(own):
    assert read(pickle.dumps(own)) == own


def test_with_permission_a_step_of_one_s_own_crosses():
    assert isinstance(read(written(Touch()), allow_code=True), Touch)
