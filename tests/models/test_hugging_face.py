"""Models from folders in Hugging Face's format, against the library that writes them."""

import json
import os

import pytest
import torch

from sfl_sim.errors import ScenarioError
from sfl_sim.models.hugging_face import HuggingFace
from sfl_sim.models.zoo import network

GPT2 = {"vocab_size": 29, "n_positions": 16, "n_embd": 12, "n_head": 3, "n_layer": 2}
LLAMA = {
    "vocab_size": 29, "max_position_embeddings": 64, "hidden_size": 16, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 20,
}  # fmt: skip
GEMMA = LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 64}
STRETCHED = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 16}  # fmt: skip


def write(folder, kind, config):
    """Store a small model with random weights as `save_pretrained` does; gives the model."""
    reason = "transformers is not installed: pip install '.[test]'"
    transformers = pytest.importorskip("transformers", reason=reason)
    torch.manual_seed(1)
    config_of = getattr(transformers, f"{kind}{'Text' if kind == 'Gemma3' else ''}Config")
    model_of = getattr(transformers, f"{kind}{'LMHeadModel' if kind == 'GPT2' else 'ForCausalLM'}")
    model = model_of(config_of(**config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("GPT2", GPT2),
        ("Llama", LLAMA),
        ("Llama", LLAMA | {"rope_parameters": STRETCHED, "tie_word_embeddings": True, "head_dim": 8}),
        ("Qwen2", LLAMA),
        ("Gemma3", GEMMA),
        ("Gemma3", GEMMA | {"sliding_window": 3, "num_hidden_layers": 7}),
    ],
)
def test_logits_are_those_of_transformers(tmp_path, kind, config):
    theirs = write(tmp_path, kind, config)
    net = network(HuggingFace(str(tmp_path)), (9,), 29)
    (whole,) = net.split(seed=0, device=torch.device("cpu"))
    x = torch.randint(29, (2, 9))
    with torch.no_grad():
        wanted, found = theirs(x).logits, whole.weights(x, training=False)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert wanted.std() > 0.1


def test_weights_are_the_same_at_every_cut(tmp_path):
    write(tmp_path, "GPT2", GPT2)
    net = network(HuggingFace(str(tmp_path)), (9,), 29)
    x = torch.randint(29, (2, 9))
    found = []
    for cut in range(1, len(net)):
        front, back = net.split(cut, seed=cut, device=torch.device("cpu"))
        found.append(back.weights(front.weights(x, training=False), training=False))
    assert all(torch.equal(found[0], each) for each in found)


def folder_with(tmp_path, **config):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **GPT2} | config))
    return tmp_path


def test_a_config_alone_gives_prices_and_no_weights(tmp_path):
    config = folder_with(tmp_path) / "config.json"
    net = network(HuggingFace(str(config)), (9,), 29)
    assert net.weightless
    assert sum(layer.parameters for layer in net.layers) == 29 * 12 * 2 + 16 * 12 + 2 * (12 * 12**2 + 13 * 12) + 24


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": "bert"}, "is no such model (found 'bert'; allowed: gpt2, llama, qwen2, gemma3_text)"),
        ({"activation_function": "relu"}, "has another activation_function (found 'relu'"),
        ({"model_type": ["gpt2"]}, "is no such model"),
        ({"n_embd": None}, "needs a size n_embd (found 'None'; allowed: 1 to 1000000000)"),
        ({"n_head": True}, "needs a size n_head (found 'True'"),
        ({"n_layer": 0}, "needs a size n_layer (found '0'"),
        ({"vocab_size": 10**18}, "needs a size vocab_size"),
        ({"layer_norm_epsilon": float("nan")}, "needs a number layer_norm_epsilon (found 'nan'; allowed: above 0)"),
        (
            {"model_type": "llama", **LLAMA, "rms_norm_eps": 1e-5, "rope_scaling": {"rope_type": "yarn"}},
            "has rotary angles of another kind (found 'yarn'",
        ),
        ({"model_type": "qwen2", **LLAMA, "rms_norm_eps": 1e-6, "use_sliding_window": True}, "has another use_sliding"),
        (
            {"model_type": "gemma3_text", **GEMMA, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 9},
            "has another scale of its scores (found 9.0; allowed: 8)",
        ),
        (
            {"model_type": "gemma3_text", **GEMMA, "rms_norm_eps": 1e-6, "layer_types": ["full_attention"] * 2},
            "has local blocks in another order",
        ),
    ],
)
def test_other_models_are_refused_in_one_line(tmp_path, config, problem):
    with pytest.raises(ScenarioError) as refused:
        network(HuggingFace(str(folder_with(tmp_path, **config))), (9,), 29)
    assert str(refused.value).startswith(f"model.path: {problem}")


def test_a_folder_without_its_config_is_refused(tmp_path):
    with pytest.raises(ScenarioError, match=r"model\.path: cannot be read: .*No such file"):
        network(HuggingFace(str(tmp_path)), (9,), 29)


def test_weights_that_are_missing_are_noticed_before_anything_trains(tmp_path):
    from safetensors.torch import save_file

    save_file({"wte.weight": torch.zeros(29, 12)}, folder_with(tmp_path) / "model.safetensors")
    with pytest.raises(ScenarioError, match=r"has no such weights as its config\.json says"):
        network(HuggingFace(str(tmp_path)), (9,), 29)


def test_a_pipe_is_not_waited_for_and_heads_share_their_keys_evenly(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ScenarioError, match=r"model\.path: cannot be read: .*no regular file"):
        _ = HuggingFace(str(tmp_path)).sizes
    (tmp_path / "uneven.json").write_text(json.dumps(LLAMA | {"model_type": "llama", "num_key_value_heads": 3}))
    with pytest.raises(ScenarioError, match=r"model\.path: .*num_key_value_heads does not divide .*found '4 and 3'"):
        _ = HuggingFace(str(tmp_path / "uneven.json")).sizes
