"""Language models: published sizes, next tokens from earlier ones alone, and prices without weights."""

import math

import numpy as np
import pytest
import torch

from sfl_sim.errors import ScenarioError
from sfl_sim.models.language import Gpt2, gpt_small
from sfl_sim.models.network import Network
from sfl_sim.models.zoo import network
from sfl_sim.training.memory import client_memory_bytes


@pytest.mark.parametrize(
    ("name", "length", "n_tokens", "sizes"),
    [
        # parameters of embedding, block, all (with one matrix for embedding and head); dense and attention MACs of a
        # block; MACs of the head
        ("gpt_small", 80, 80, (20_480, 198_272, 1_210_368, 15_728_640, 1_638_400, 819_200)),
        ("gpt2", 512, 50_257, (39_383_808, 7_087_872, 124_439_808, 3_623_878_656, 402_653_184, 19_761_856_512)),
        ("llama_3_2_1b", 512, 128_256, (262_668_288, 60_821_504, 1_235_814_400, 31_138_512_896, 1_073_741_824,
                                        134_486_163_456)),
        ("qwen_2_5_0_5b", 512, 151_936, (136_134_656, 14_912_384, 494_032_768, 7_633_633_280, 469_762_048,
                                         69_700_943_872)),
        ("gemma_3_270m", 512, 262_144, (167_772_160, 5_573_632, 268_098_176, 2_852_126_720, 536_870_912,
                                        85_899_345_920)),
    ],
)  # fmt: skip
def test_parameters_and_products_are_those_of_the_publications_to_the_unit(name, length, n_tokens, sizes):
    if not name.startswith("gpt"):
        pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[hf]'")
    net = network(name, (length,), n_tokens)
    embedding, *blocks, head = net.layers
    assert [layer.name for layer in net.layers] == ["embedding", *(f"block{i + 1}" for i in range(len(blocks))), "head"]
    whole = sum(layer.parameters for layer in net.layers) - n_tokens * embedding.out_shape[-1]
    (costs,) = {(block.parameters, block.macs_by_kind["dense"], block.macs_by_kind["attention"]) for block in blocks}
    assert (embedding.parameters, costs[0], whole, *costs[1:], head.macs) == sizes
    assert head.out_shape == (length, n_tokens)
    assert {block.n_ops for block in blocks} == {7 if name.startswith("gpt") else 8}
    assert not any(layer.buffers for layer in net.layers), "tables of angles are no state"


def test_a_score_depends_on_earlier_tokens_alone():
    torch.manual_seed(0)
    model = Gpt2(11, positions=6, dim=8, heads=2, blocks=2, ff=12)((6,), 11).double()
    x = torch.randint(11, (3, 6))
    changed = x.clone()
    changed[:, 4] = (x[:, 4] + 1) % 11
    before, after = model(x), model(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(dim=-1).all()


def test_of_the_last_token_alone_the_head_computes_one_position():
    every, last = (network("gpt_small", (12,), 20, every_token=every) for every in (True, False))
    assert last.layers[-1].out_shape == (20,)
    assert last.layers[-1].macs == every.layers[-1].macs / 12
    x = torch.randint(20, (2, 12))
    whole, short = (net.split(seed=0, device=torch.device("cpu"))[0].weights for net in (every, last))
    assert torch.allclose(whole(x, training=False)[:, -1], short(x, training=False), atol=1e-6)


def test_shapes_alone_give_the_prices_and_the_memory_of_real_weights():
    real, shapes = (Network("gpt", gpt_small, (20,), 30, weightless=weightless) for weightless in (False, True))
    assert real.layers == shapes.layers
    needed = np.array([[client_memory_bytes(net, cut, 4, 2) for cut in (1, 3, 8)] for net in (real, shapes)])
    assert (needed[0] == needed[1]).all()


@pytest.mark.parametrize(
    ("name", "shape", "n_tokens", "limit"),
    [("gpt2", (1025,), 100, "1024"), ("gpt2", (8,), 50_258, "50257"), ("gpt_small", (3, 8, 8), 10, "(length,)")],
)
def test_samples_that_do_not_fit_are_refused(name, shape, n_tokens, limit):
    with pytest.raises(ScenarioError) as refused:
        network(name, shape, n_tokens)
    assert limit in refused.value.problem


def test_initial_weights_of_gpt_small_are_as_uncertain_as_can_be():
    (whole,) = network("gpt_small", (12,), 20).split(seed=0, device=torch.device("cpu"))
    logits = whole.weights(torch.randint(20, (4, 12)), training=False)
    entropy = torch.special.entr(logits.softmax(dim=-1)).sum(dim=-1)
    assert torch.allclose(entropy, torch.full_like(entropy, math.log(20)), atol=0.1)
