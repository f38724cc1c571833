"""The executors: the same timeline with and without training, and prices that are the real sizes."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small_world import CASES, simulate, task, tensors, worlds

from sfl_sim.models.zoo import network
from sfl_sim.ops import Value
from sfl_sim.testing import check_timing_only
from sfl_sim.training.evaluate import evaluate
from sfl_sim.training.executors import Eager, Timing

CPU = torch.device("cpu")


@settings(max_examples=20)
@given(
    case=st.sampled_from(CASES),
    world=worlds(st.lists(st.integers(1, 12), min_size=2, max_size=4), cut=st.integers(1, 2)),
)
def test_a_timing_only_run_walks_the_timeline_of_the_training_run(case, world):
    assume(world.settings["cut"] in (getattr(case.options, "tiers", None) or (1, 2)))  # clients of DTFL begin in a tier
    check_timing_only(case, world)


def test_two_runs_are_equal_to_the_bit():
    (one, *_), (other, *_) = (simulate("splitfed_v2", task(), order="random_job") for _ in range(2))
    assert all(torch.equal(tensor, tensors(other)[name]) for name, tensor in tensors(one).items())


def test_a_number_that_was_not_trained_is_read_as_none():
    assert Timing().read(Value("norm")) is None
    assert Eager().read(Value("norm", content=torch.tensor(2.5))) == 2.5


def test_evaluation_counts_by_label_and_leaves_no_trace():
    net = network("mobilenet_v1", (3, 32, 32), 3)
    parts = net.split(5, seed=0, device=CPU)
    x = torch.randint(0, 256, (7, 3, 32, 32), dtype=torch.uint8)
    y = torch.tensor([0, 0, 1, 1, 1, 0, 1])
    before = [tensor.clone() for part in parts for _, tensor in part.weights.named_tensors()]
    torch.manual_seed(0)
    found = evaluate(parts, x, y, 3, lambda x: x.float() / 255)
    drawn = torch.rand(1)
    after = [tensor for part in parts for _, tensor in part.weights.named_tensors()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert drawn.item() == _first_draw()
    assert found.samples.tolist() == [3, 4, 0]
    assert np.isnan(found.by_label[2])
    logits = parts[1].weights(parts[0].weights(x.float() / 255, training=False), training=False)
    assert found.accuracy == float((logits.argmax(1) == y).float().mean())
    assert found.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, y)), rel=1e-5)


def _first_draw():
    torch.manual_seed(0)
    return torch.rand(1).item()
