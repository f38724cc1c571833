"""Adapters of low rank: what they compute, which weights get them, and what they cost."""

import json

import pytest
import torch
from small_world import CPU, attention_net
from torch import nn

from sfl_sim.errors import ScenarioError
from sfl_sim.models.hugging_face import HuggingFace
from sfl_sim.models.lora import Adapter, Lora, adapt
from sfl_sim.models.network import Network
from sfl_sim.models.price import NO_WORK, price_of
from sfl_sim.models.replica import Replica
from sfl_sim.models.transformer import char_transformer
from sfl_sim.training.memory import client_memory_bytes

ALL = ("q", "k", "v", "o", "ff1", "ff2")


def small(lora=None, build=attention_net, dtype=torch.float64):
    return Network("small", build, (1, 4, 4), 3, dtype, lora=lora)


def with_random_b(module):
    for name, parameter in module.named_parameters():
        if name.endswith(".B"):
            nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("training", [True, False])
def test_with_b_of_zero_the_model_is_the_frozen_one(training):
    """To the bit; in training, torch chooses between kernels for products by whether a weight awaits a gradient."""
    x = torch.rand(5, 1, 4, 4, dtype=torch.float64)
    for cut in range(1, 5):
        adapted = small(Lora(targets=ALL)).split(cut, seed=3, device=CPU)
        plain = small().split(cut, seed=3, device=CPU)
        with torch.no_grad():
            found, expected = x, x
            for part, frozen in zip(adapted, plain, strict=True):
                found, expected = part.weights(found, training), frozen.weights(expected, training)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-15 if training else 0)


@pytest.mark.parametrize(
    ("module", "x", "low_rank"),
    [
        (nn.Linear(6, 5), torch.rand(3, 6), lambda x, a, b: x @ a.T @ b.T),
        (
            nn.Conv2d(4, 6, 3, padding=1, stride=2),
            torch.rand(2, 4, 8, 8),
            lambda x, a, b: nn.functional.conv2d(
                nn.functional.conv2d(x, a.view(2, 4, 3, 3), padding=1, stride=2), b.view(6, 2, 1, 1)
            ),
        ),
    ],
    ids=["linear", "convolution"],
)
def test_the_merged_call_is_the_unmerged_one(module, x, low_rank):
    module, x = module.double(), x.double()
    before = module(x)
    net = nn.Sequential(module)
    adapt(net, Lora(rank=2, alpha=6.0, targets=("0",)))
    adapter = with_random_b(net)[0].parametrizations.weight[0]
    unmerged = before + 3.0 * low_rank(x, adapter.A, adapter.B)
    torch.testing.assert_close(net(x), unmerged, rtol=1e-12, atol=1e-12)


def test_an_adapter_of_a_joint_projection_changes_its_own_rows():
    net = nn.Sequential(nn.MultiheadAttention(8, 2))
    before = net[0].in_proj_weight.detach().clone()
    adapt(net, Lora(rank=2, alpha=2.0))
    with_random_b(net)
    change = net[0].in_proj_weight - before
    q, v = net[0].parametrizations.in_proj_weight
    torch.testing.assert_close(change, torch.cat([q.B @ q.A, torch.zeros(8, 8), v.B @ v.A]))


def test_training_b_on_the_identity_is_training_the_whole_matrix():
    """W0 = 0, A = I frozen and s = 1, so that W = B."""
    torch.manual_seed(0)
    x, y = torch.rand(8, 5, dtype=torch.float64), torch.rand(8, 3, dtype=torch.float64)
    full = nn.Linear(5, 3, bias=False).double()
    adapted = nn.Sequential(nn.Linear(5, 3, bias=False)).double()
    adapt(adapted, Lora(rank=5, alpha=5.0, targets=("0",), aggregate="ffa"))
    with torch.no_grad():
        full.weight.zero_()
        adapted[0].parametrizations.weight.original.zero_()
        adapted[0].parametrizations.weight[0].A.copy_(torch.eye(5))
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    for model, weights in ((full, full.parameters()), (adapted, trained)):
        optimiser = torch.optim.SGD(weights, 0.5)
        for _ in range(4):
            optimiser.zero_grad()
            (model(x) - y).square().mean().backward()
            optimiser.step()
    torch.testing.assert_close(adapted[0].weight, full.weight, rtol=1e-12, atol=1e-12)
    assert not torch.equal(full.weight, torch.zeros(3, 5))


def adapted_names(*targets, **settings):
    net = char_transformer((6,), 10)
    adapt(net, Lora(targets=targets, **settings))
    return {name.partition(".parametrizations.")[0] for name, p in net.named_parameters() if p.requires_grad}


def test_targets_are_names_within_blocks():
    blocks = {f"block{i}" for i in range(1, 7)}
    assert adapted_names("q", "v") == {f"{block}.self_attn" for block in blocks}
    assert adapted_names("o") == {f"{block}.self_attn.out_proj" for block in blocks}
    assert adapted_names("ff1", "ff2") == {f"{block}.linear{i}" for block in blocks for i in (1, 2)}
    assert adapted_names("head") == {"head.1"}
    assert adapted_names("block3.ff2", "block5.q") == {"block3.linear2", "block5.self_attn"}
    assert adapted_names("q", above=5) == {"block5.self_attn", "block6.self_attn"}


def test_an_unknown_target_is_told_with_the_names_that_there_are():
    with pytest.raises(ScenarioError) as refused:
        adapted_names("q", "query")
    assert (refused.value.key, refused.value.found) == ("lora.targets", "query")
    assert {"ff1", "ff2", "k", "o", "q", "v", "block1"} <= {*refused.value.allowed}


@pytest.mark.parametrize(
    ("aggregate", "backward", "n_trained", "n_spared"),
    [("separate", 12_288, 2 * 4 * 768, 1), ("ffa", 12_288 - 4 * 768, 4 * 768, 2)],
)
def test_a_map_of_768_by_768_costs_what_the_chain_rule_says(aggregate, backward, n_trained, n_spared):
    """A factor A that is not trained needs no gradient."""
    net = nn.Sequential(nn.Linear(768, 768, bias=False, device="meta"))
    adapt(net, Lora(rank=4, targets=("0",), aggregate=aggregate))
    layer, _ = price_of(net, torch.zeros(1, 1, 768, device="meta"))
    assert layer.macs == 589_824 + 6_144
    assert layer.twice.macs - layer.spared.macs == 589_824 + backward
    assert (layer.n_ops, layer.spared.n_ops) == (3, n_spared)  # the low-rank products are calls of their own
    assert (layer.parameters, layer.frozen) == (n_trained, 2 * 4 * 768 + 768 * 768 - n_trained)


@pytest.mark.parametrize(
    ("dim", "length", "frozen_macs", "scores", "low_rank", "frozen", "adapters"),
    [
        (768, 512, 3_623_878_656, 402_653_184, 6_291_456, 7_087_872, 4 * 4 * 768),  # a block of GPT-2 small
        (128, 80, 15_728_640, 1_638_400, 163_840, 198_272, 2_048),
    ],
)
def test_a_transformer_block_costs_what_is_worked_out_by_hand(
    dim, length, frozen_macs, scores, low_rank, frozen, adapters
):
    net = nn.Sequential(nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True, device="meta"))
    adapt(net, Lora(rank=4))
    layer, _ = price_of(net, torch.zeros(1, length, dim, device="meta"))
    assert layer.spared.macs == frozen_macs
    assert layer.macs == frozen_macs + scores + low_rank
    assert layer.twice.macs - layer.spared.macs == frozen_macs + 2 * scores + 2 * low_rank
    assert (layer.frozen, layer.parameters) == (frozen, adapters)


@pytest.mark.parametrize(
    ("convolution", "by_hand"),
    [
        (nn.Conv2d(32, 32, 3, padding=1, groups=32), 4 * 32 * 9 + 4 * 32),
        (nn.Conv2d(32, 64, 3, padding=1, groups=4), 4 * 32 * 9 + 4 * 64),
        (nn.Conv2d(32, 32, 3, padding=1), 4 * 32 * 9 + 4 * 32),
        (nn.ConvTranspose2d(4, 8, 3), 4 * 4 + 4 * 8 * 9),
        (nn.ConvTranspose2d(8, 4, 3), 4 * 8 + 4 * 4 * 9),
    ],
)
def test_the_first_factor_runs_on_the_inputs_of_every_group(convolution, by_hand):
    """At each of 64 pixels; in a convolution 4 channels of 32 / groups * 9 products for each group, then n_out of 4."""
    net = nn.Sequential(convolution.to("meta"))
    x = torch.zeros(1, convolution.in_channels, 8, 8, device="meta")
    plain, _ = price_of(net, x)
    adapt(net, Lora(rank=4, targets=("0",)))
    assert price_of(net, x)[0].macs - plain.macs == 64 * by_hand


def test_a_step_costs_twice_the_forward_pass_unless_something_is_frozen():
    plain, adapted = small().part(1, 3), small(Lora()).part(1, 3)
    assert plain.work(5, passes=2)._replace(updated=0) == plain.work(10, passes=1).called(2)
    forward, backward, both = (adapted.work(5, passes) for passes in (1, 2, 3))
    assert both.macs == forward.macs + backward.macs
    assert forward.macs < backward.macs < 2 * forward.macs


def test_below_the_first_trained_layer_there_is_no_backward_pass():
    net = small(Lora(targets=("block2.q", "block3.v")))
    below, above = net.part(0, 2), net.part(2, 5)
    assert below.work(4, passes=2) == NO_WORK
    assert below.work(4, passes=3) == below.work(4, passes=1)
    assert above.first, "nobody needs the gradient at its input"
    assert not net.part(3, 5).first
    part1, part2 = net.split(2, seed=0, device=CPU)
    x = part1.weights.forward(torch.rand(4, 1, 4, 4, dtype=torch.float64))
    assert part1.weights.awaiting_gradient is None or not part1.weights.awaiting_gradient.requires_grad
    assert part2.weights(x, training=True).requires_grad


def test_replicas_share_what_is_frozen_and_send_their_adapters_alone():
    part1, _ = small(Lora(rank=2)).split(3, seed=0, device=CPU)
    copy = part1.snapshot()
    assert copy.weights.frozen is part1.weights.frozen
    assert copy.weights.flat.data_ptr() != part1.weights.flat.data_ptr()
    assert part1.size_bytes == 8 * 2 * 2 * 2 * (8 + 8)  # two blocks with q and v, A and B
    assert part1.part.n_frozen == sum(p.numel() for p in attention_net((1, 4, 4), 3)[:3].parameters())


def test_a_client_holds_frozen_weights_once_and_no_moments_for_them():
    full, lora = (small(settings, dtype=torch.float32) for settings in (None, Lora(rank=2)))
    trained = 2 * 2 * 2 * (8 + 8)
    frozen = sum(layer.frozen for layer in lora.layers[:3])
    with_adam, with_sgd = (client_memory_bytes(lora, 3, 4, moments) for moments in (2, 0))
    assert with_adam - with_sgd == 4 * 2 * trained
    assert client_memory_bytes(full, 3, 4, 2) - with_adam > 4 * (4 * frozen - 4 * trained - frozen)


def test_a_client_that_trains_nothing_holds_one_layer_at_a_time():
    net = small(Lora(targets=("block3.q",)), dtype=torch.float32)
    frozen = sum(layer.frozen for layer in net.layers[:3])
    assert client_memory_bytes(net, 3, 5, 2) == 4 * frozen + 5 * 4 * (4 * 8 + 4 * 8)


def test_adapters_are_drawn_after_the_weights_that_they_adapt():
    plain, adapted = (small(lora).split(seed=1, device=CPU)[0] for lora in (None, Lora()))
    expected = dict(plain.weights.named_tensors())
    kept = {n.replace("parametrizations.", "").replace(".original", ""): t for n, t in adapted.weights.named_tensors()}
    assert all(torch.equal(kept[name], tensor) for name, tensor in expected.items())
    drawn = [module for module in adapted.part.skeleton.modules() if isinstance(module, Adapter)]
    assert len(drawn) == 6


def test_every_merge_draws_other_adapters():
    (whole,) = small(Lora(targets=ALL, aggregate="concat")).split(seed=3, device=CPU)
    first = Replica.averaged([whole], [1.0])
    second = Replica.averaged([first], [1.0])
    place = whole.part.adapters[0].a
    drawn = [dict(replica.weights.named_tensors())[place] for replica in (whole, first, second)]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_adapters_learn_what_those_of_peft_learn(tmp_path):
    """Three steps of SGD in float64, beside the library that most people fine-tune with."""
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install '.[test]'")
    pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[hf]'")
    sizes = {"model_type": "llama", "vocab_size": 11, "hidden_size": 8, "num_attention_heads": 4,
             "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 12}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    build = HuggingFace(str(tmp_path / "config.json"))
    net = Network("small", build, (6,), 11, torch.float64, tokens=True, lora=Lora(rank=2, alpha=3.0))
    (ours,) = net.split(seed=3, device=CPU)
    (plain,) = Network("small", build, (6,), 11, torch.float64, tokens=True).split(seed=3, device=CPU)
    module = build((6,), 11).double()
    module.load_state_dict(dict(plain.weights.named_tensors()))
    theirs = peft.get_peft_model(module, peft.LoraConfig(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj"]))
    adapters = {name: tensor for name, tensor in theirs.named_parameters() if tensor.requires_grad}
    pairs = list(zip(adapters.values(), ours.part.views(ours.weights.flat), strict=True))
    for their, our in pairs:
        their.data.copy_(our)
    x, y = torch.randint(11, (3, 4, 6)), torch.randint(11, (3, 4, 6))
    for tokens, labels in zip(x, y, strict=True):
        ours.weights.grad.zero_()
        for scores in (ours.weights(tokens, training=True), theirs(tokens)):
            nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten()).backward()
        ours.weights.flat.sub_(ours.weights.grad, alpha=0.5)
        for their, _ in pairs:
            their.data.sub_(their.grad, alpha=0.5)
            their.grad = None
    assert all(our.std() > 0 for _, our in pairs)
    for their, our in pairs:
        torch.testing.assert_close(their.data, our, rtol=1e-12, atol=1e-14)
