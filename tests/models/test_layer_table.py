"""What each layer costs, and which cuts are worth a thought."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfl_sim.models.layer_table import USUAL, layer_table, pareto_cuts, usual_data
from sfl_sim.models.zoo import network


def test_a_cut_costs_what_the_parts_on_its_sides_cost():
    net = network("resnet18", (3, 32, 32), 10)
    table = layer_table(net).set_index("layer")
    for cut in (1, 4, 11):
        part1, part2 = net.split(cut, seed=0, device=None)
        assert table["macs"][:cut].sum() == part1.part.macs
        assert table["parameters"][cut:].sum() == part2.part.n_parameters
        assert table["activation_bytes"][cut] == part1.part.out_numel * 4
    assert table["out_shape"][4] == "64x32x32"


def test_activations_have_the_type_that_goes_over_the_wire():
    single, double = (layer_table(network("lenet5", (1, 28, 28), 10, d)) for d in (torch.float32, torch.float64))
    assert (double["activation_bytes"] == 2 * single["activation_bytes"]).all()


def test_the_last_layer_leaves_no_cut():
    assert not layer_table(network("cnn_small", (1, 8, 8), 10))["pareto"].iloc[-1]


def test_only_the_depthwise_layers_that_shrink_the_image_are_worth_a_cut_of_mobilenet():
    """A pointwise layer after them doubles the channels, and a layer that keeps the size only adds work."""
    table = layer_table(network("mobilenet_v1", (3, 32, 32), 10))
    assert table.loc[table["pareto"], "name"].tolist() == ["dw1", "dw2", "dw4", "dw6", "dw12"]


COSTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=8)


@given(COSTS)
def test_a_cut_is_pareto_unless_another_is_better_in_one_cost_and_no_worse_in_the_other(costs):
    def beats(one, other):
        return one != other and one[0] <= other[0] and one[1] <= other[1]

    macs, sizes = zip(*costs, strict=True)
    found = pareto_cuts(macs, sizes)
    assert found.tolist() == [not any(beats(other, cut) for other in costs) for cut in costs]


@given(COSTS)
def test_whatever_cut_somebody_likes_there_is_a_pareto_cut_that_is_no_worse(costs):
    costs = np.array(costs)
    pareto = costs[pareto_cuts(*costs.T)]
    assert all((pareto <= cut).all(axis=1).any() for cut in costs)


@pytest.mark.parametrize("name", [*USUAL, "mobilenet_v1"])
def test_a_model_takes_the_data_that_it_is_shown_with(name):
    shape, n_labels = usual_data(name)
    assert network(name, shape, n_labels).layers[-1].out_shape == (n_labels,)
