"""Early exits: HARMONY's Table 1 as docs/methods/harmony.md#models reconstructs it, to the unit."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from sfl_sim.errors import ScenarioError
from sfl_sim.models.heads import exit_cuts, exit_head, exit_network
from sfl_sim.models.zoo import network

CPU = torch.device("cpu")


def parameters(layers):
    return sum(layer.parameters for layer in layers)


@pytest.mark.parametrize(
    ("name", "sample", "n_labels", "phi", "head", "full"),
    [
        ("cnn8", (1, 28, 28), 10, (18_816, 387_840), (5_770, 23_050), 3_868_170),  # FashionMNIST
        ("vgg11_bn", (3, 32, 32), 10, (76_032, 962_304), (5_130, 10_250), 9_231_114),  # CIFAR-10
        ("mobilenet_v2", (3, 32, 32), 100, (928, 239_360), (3_300, 6_500), 2_351_972),  # CIFAR-100
        ("resnet50", (3, 64, 64), 200, (84_544, 884_800), (51_400, 102_600), 23_917_832),  # Tiny ImageNet
        ("vit_s16", (3, 224, 224), 100, (3_920_256, 11_018_112), (39_268, 39_268), 21_704_164),  # printed as 21704.2k
    ],
)
def test_the_sizes_are_those_of_harmonys_table_1(name, sample, n_labels, phi, head, full):
    net = network(name, sample, n_labels)
    cuts = exit_cuts(net)
    assert parameters(net.layers) == full
    fronts = [parameters(net.layers[:cut]) for cut in cuts]
    heads = [exit_head(net, cut) for cut in cuts]
    sizes = [sum(p.numel() for p in module.parameters()) for module in heads]
    assert (min(fronts), max(fronts)) == phi
    assert (min(sizes), max(sizes)) == head
    assert all(earlier < later for earlier, later in pairwise(cuts))


def test_clients_leave_between_harmonys_smallest_and_largest_front_end():
    assert exit_cuts(network("mobilenet_v2", (3, 32, 32), 10)) == (1, 5, 6, 7, 8, 9, 10, 11)
    assert exit_cuts(network("resnet50", (3, 32, 32), 10)) == (3, 4, 5, 6, 7)


def test_there_are_no_exits_but_those_of_the_paper():
    net = network("cnn8", (1, 8, 8), 10)
    with pytest.raises(ScenarioError) as refused:
        exit_network(net, 5)
    assert (refused.value.key, refused.value.found, refused.value.allowed) == ("model.cut", 5, ["2", "3", "4"])


def test_the_latency_example_counts_a_vgg_client_of_two_convolutions():
    """Golden values: |phi| + |h| = 81,162 and |theta| = 9,155,082 (docs/methods/README.md#golden-values)."""
    net = network("vgg11_bn", (3, 32, 32), 10)
    phi, head = exit_network(net, 2).split(2, seed=0, device=None)
    assert phi.part.n_parameters + head.part.n_parameters == 81_162
    _, theta = net.split(2, seed=0, device=None)
    assert theta.part.n_parameters == 9_155_082


@pytest.mark.parametrize(("name", "sample"), [("cnn8", (1, 8, 8)), ("vit_s16", (1, 8, 8))])
def test_a_client_answers_from_the_front_end_of_the_whole_network(name, sample):
    net = network(name, sample, 10)
    cut = exit_cuts(net)[0]
    small = exit_network(net, cut)
    assert [layer.name for layer in small.layers] == [*(layer.name for layer in net.layers[:cut]), "exit"]
    phi, head = small.split(cut, seed=7, device=CPU)
    front, _ = net.split(cut, seed=7, device=CPU)
    assert torch.equal(phi.weights.flat, front.weights.flat)
    assert not head.part.first, "the head gives the gradient at its input"
    features = phi.weights(torch.randn(2, *sample), training=False)
    assert head.weights(features, training=False).shape == (2, 10)
    assert small.layers[-1].macs > 0


def test_a_users_own_model_has_plain_exits_whatever_its_name():
    def cnn8(input_shape, n_labels):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, n_labels))

    assert exit_cuts(network(cnn8, (1, 8, 8), 10)) == (1, 2)


def test_the_last_layer_of_a_vision_transformer_takes_the_class_token_alone():
    net = network("vit_s16", (3, 32, 32), 100)
    assert net.layers[-2].out_shape == (384,)
    assert net.layers[-1].parameters == 39_268


def test_other_models_have_a_plain_exit_after_every_layer_but_the_last():
    net = network("lenet5", (1, 28, 28), 10)
    assert exit_cuts(net) == (1, 2, 3, 4)
    assert [parameters(exit_network(net, cut).layers[-1:]) for cut in (2, 3)] == [16 * 9 * 10 + 10, 120 * 10 + 10]
    assert exit_network(net, 2).layers[-1].out_shape == (10,)


def test_a_model_without_exits_names_those_that_have_some():
    net = network("char_transformer", (8,), 10)
    with pytest.raises(ScenarioError) as refused:
        exit_cuts(net)
    assert (refused.value.key, refused.value.found) == ("model.name", "char_transformer")


def test_a_vision_transformers_head_reads_the_class_token_alone():
    net = network("vit_s16", (1, 8, 8), 3)
    cut = exit_cuts(net)[0]
    head = exit_head(net, cut)
    features = torch.randn(2, *net.layers[cut - 1].out_shape)
    changed = features.clone()
    changed[:, 1:] = 0
    assert torch.equal(head(features), head(changed))
