"""Compiled training: one compilation a part, whoever's weights it is lent, and the same numbers up to rounding."""

from dataclasses import replace

import pytest
import torch
from small_world import batch_norm_net, distance, simulate, task
from torch._dynamo.testing import CompileCounterWithBackend

from sfl_sim.errors import ScenarioError
from sfl_sim.models.forward_settings import ForwardSettings
from sfl_sim.models.graphs import Graphs
from sfl_sim.training.hardware import check_compiler

CPU = torch.device("cpu")
NETWORKS = 5
"""Number of networks of two parts each: more than the 8 compilations of one code object that torch allows."""


def plain_task():
    """Three clients, batch norm, momentum, whole mini-batches of 4 and an incomplete one."""
    return task([8, 8, 7], build=batch_norm_net, momentum=0.9)


def compiled_task(max_graphs=None):
    work = plain_task()
    return replace(
        work, network=work.network.with_settings(ForwardSettings(compiled_batch=4, graphs=Graphs(max_graphs)))
    )


@pytest.fixture
def counter(monkeypatch):
    """Backend of torch.compile without the C++ compiler, which takes 20 s if nothing is cached."""
    counter, compile_ = CompileCounterWithBackend("aot_eager"), torch.compile

    def counted(function, options, **how):
        return compile_(function, backend=counter, **how)

    monkeypatch.setattr(torch, "compile", counted)
    return counter


@pytest.mark.parametrize("max_graphs", [None, 1])
def test_a_part_is_compiled_once_and_trains_as_the_plain_one(max_graphs, counter):
    """One compilation serves all replicas and rounds, with running statistics and recomputed forward passes."""
    found, *_ = simulate("splitfed_v2", compiled_task(max_graphs))
    assert counter.frame_count == 2
    usual, *_ = simulate("splitfed_v2", plain_task())
    assert distance(usual, found) < 1e-12


def test_any_number_of_networks_in_one_process_is_compiled(counter):
    for _ in range(NETWORKS):
        simulate("splitfed_v2", compiled_task(), rounds=1)
    assert counter.frame_count == 2 * NETWORKS


def test_incomplete_batches_and_evaluation_are_not_worth_a_compilation(counter):
    (whole,) = compiled_task().split()
    x = torch.rand(4, 1, 4, 4, dtype=torch.float64)
    whole.weights(x[:3], training=True)
    whole.weights(x, training=False)
    assert counter.frame_count == 0


def test_a_missing_compiler_is_one_line(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\n\nSet TORCHDYNAMO_VERBOSE=1 for more")

    monkeypatch.setattr(torch, "compile", fails)
    check_compiler.cache_clear()
    with pytest.raises(ScenarioError, match=r"torch\.compile does not work here: .* compiler found \("):
        check_compiler(CPU)
