"""Memory that a client needs for training, compared with torch's profile of its allocations."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from sfl_sim.build.layer_table import usual_data
from sfl_sim.models.forward_settings import ForwardSettings
from sfl_sim.models.network import Network
from sfl_sim.models.zoo import network
from sfl_sim.training.memory import client_memory_bytes

CPU = torch.device("cpu")
BATCH = 5


def mlp(shape, n_labels):
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 6), nn.Tanh()), nn.Flatten(), nn.Linear(6, 2))


@pytest.fixture(scope="module")
def small():
    return Network("small", mlp, (1, 1, 4), 2)


@pytest.mark.parametrize("moments", [0, 1, 2])
def test_client_memory_by_hand(small, moments):
    """Linear keeps its input, Tanh its output, which is that of the layer; what flows back is as large."""
    parameters = (4 * 8 + 8) + (8 * 6 + 6)
    numbers = (2 + moments) * parameters + BATCH * (4 + 8 + 6) + BATCH * 6
    assert client_memory_bytes(small, 2, BATCH, moments) == 4 * numbers


def test_a_client_that_never_trains_holds_its_weights_and_one_layer_at_a_time(small):
    parameters = (4 * 8 + 8) + (8 * 6 + 6)
    assert client_memory_bytes(small, 2, BATCH, 2, trains=False) == 4 * (parameters + BATCH * (8 + 6))


def test_a_view_costs_nothing(small):
    flat, not_flat = (client_memory_bytes(small, cut, BATCH, 0) for cut in (3, 2))
    assert flat == not_flat


@pytest.mark.parametrize("name", ["cnn8", "mobilenet_v2", "resnet8", "char_transformer"])
@pytest.mark.parametrize("depth", [0.2, 0.6])
def test_activations_are_what_torch_allocates_and_does_not_free(name, depth):
    shape, n_labels = usual_data(name)
    net = network(name, shape, n_labels)
    cut = net.cut_at(depth)
    part1, _ = net.split(cut, seed=0, device=CPU)
    x = torch.zeros(BATCH, *shape, dtype=torch.int64 if len(shape) == 1 else net.dtype)
    _ = part1.weights.leaves  # and a gradient as large as the weights, before the account begins
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as account:
        smashed = part1.weights.forward(x)
    held = sum(event.self_cpu_memory_usage for event in account.key_averages())
    passed = part1.weights._saved  # which no client would keep, nor two copies of x: what a checkpoint needs
    held -= passed.draws.nbytes + passed.state[0].nbytes
    weights_and_gradient = part1.part.size_bytes + part1.part.n_parameters * net.dtype.itemsize
    held += weights_and_gradient + smashed.nbytes
    assert client_memory_bytes(net, cut, BATCH, 0) == pytest.approx(held, abs=16)


def test_half_as_wide_activations_take_less_but_their_weights_are_kept_twice():
    net = network("cnn_small", *usual_data("cnn_small"))
    narrow = net.with_settings(ForwardSettings(autocast=torch.bfloat16))
    one, many = ([client_memory_bytes(n, 2, b, 0) for n in (narrow, net)] for b in (1, 256))
    assert one[0] > 0.5 * one[1]
    assert 0.5 * many[1] < many[0] < 0.8 * many[1]


def test_counting_draws_no_random_numbers():
    net = Network("drops", lambda *_: nn.Sequential(nn.Linear(4, 2), nn.Dropout(), nn.Flatten()), (1, 1, 4), 2)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    client_memory_bytes(net, 2, BATCH, 0)
    assert torch.rand(1) == expected


@pytest.mark.parametrize("name", ["cnn_small", "gpt2"])
def test_a_network_that_shares_its_layers_takes_as_much(name):
    """`gpt2` is known by its shapes alone, so its layers are measured without numbers."""
    net = network(name, *usual_data(name)) if name == "cnn_small" else network(name, (16,), 50_257)
    shared = net.unweighted()
    shared.split(1, seed=0, device=None)
    needs = [client_memory_bytes(each, 1, 2, 0) for each in (net, shared, shared)]
    assert len(set(needs)) == 1
    assert not any(layer._forward_hooks for layer in shared.part(0, 1).skeleton)


@pytest.mark.parametrize("name", ["cnn_patches", "lenet5", "mobilenet_v1"])
def test_a_layer_runs_with_its_input_and_output_in_memory(name):
    """Also where autograd keeps less: the patches of cnn_patches are a quarter of the image that they are made of."""
    net = network(name, (3, 32, 32), 10)
    for cut in range(1, len(net) + 1):
        trains, passes = (client_memory_bytes(net, cut, 8, 0, keeps_graphs=graphs) for graphs in (True, False))
        assert trains >= client_memory_bytes(net, cut, 8, 0, trains=False)
        assert trains >= passes - 2 * 8 * net.layers[cut - 1].out_numel * 4
