"""Costs of each layer, and the Pareto-optimal cuts."""

import pytest
import torch

from sfl_sim.build.layer_table import USUAL, layer_table, usual_data
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


@pytest.mark.parametrize("name", [*USUAL, "mobilenet_v1"])
def test_a_model_takes_the_data_that_it_is_shown_with(name):
    shape, n_labels = usual_data(name)
    assert network(name, shape, n_labels).layers[-1].out_shape[-1] == n_labels
