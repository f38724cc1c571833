"""Language models over transformers: the numbers of the whole model at every cut, published sizes, clear refusals."""

import json
import os
import sys

import pytest
import torch

from sfl_sim.errors import ScenarioError
from sfl_sim.models.hugging_face import FAMILIES, HuggingFace
from sfl_sim.models.lora import Lora, adapt, matrices
from sfl_sim.models.zoo import network

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[hf]'")

CPU = torch.device("cpu")
GPT2 = {"vocab_size": 29, "n_positions": 16, "n_embd": 12, "n_head": 3, "n_layer": 2}
LLAMA = {
    "vocab_size": 29, "max_position_embeddings": 64, "hidden_size": 16, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "intermediate_size": 20, "pad_token_id": 0,
}  # fmt: skip
STRETCHED = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 16}  # fmt: skip
CASES = [
    ("gpt2", GPT2),
    ("llama", LLAMA),
    ("llama", LLAMA | {"rope_parameters": STRETCHED, "tie_word_embeddings": True, "head_dim": 8}),
    ("mistral", LLAMA),
    ("mistral", LLAMA | {"sliding_window": 3}),
    ("mistral", LLAMA | {"sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]}),
    *((kind, LLAMA | {"sliding_window": 3}) for kind in ("llama", "olmo2")),  # where transformers reads no window
    ("gpt2", GPT2 | {"sliding_window": 3, "layer_types": ["sliding_attention"] * 2}),
    ("olmo2", LLAMA),
    ("qwen2", LLAMA),
    ("qwen2", LLAMA | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    ("qwen3", LLAMA),
    ("smollm3", LLAMA | {"num_hidden_layers": 4}),
    ("gemma3_text", LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 5, "sliding_window": 64}),
    ("gemma3_text", LLAMA | {"sliding_window": 3, "num_hidden_layers": 7}),
]


def write(folder, kind, config):
    """Store a small model with random weights as `save_pretrained` does; gives the model."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    return model.eval()


def parts_of(folder, *cuts):
    return network(HuggingFace(str(folder)), (9,), 29).split(*cuts, seed=0, device=CPU)


def scores(parts, x):
    for part in parts:
        x = part.weights(x, training=False)
    return x


@pytest.mark.parametrize(("kind", "config"), CASES)
def test_scores_and_gradients_are_those_of_transformers_to_the_bit(tmp_path, kind, config):
    theirs = write(tmp_path, kind, config)
    x = torch.randint(29, (2, 9))
    wanted = theirs(x).logits
    assert wanted.std() > 0.1
    for cut in range(1, len(theirs.base_model.get_submodule("h" if kind == "gpt2" else "layers")) + 2):
        assert torch.equal(scores(parts_of(tmp_path, cut), x), wanted)
    (whole,) = parts_of(tmp_path)
    assert whole.part.n_buffers == 0
    wanted.square().sum().backward()
    whole.weights(x, training=True).square().sum().backward()
    gradients = dict(zip(whole.part.names, whole.part.views(whole.weights.grad), strict=True))
    for name, parameter in theirs.base_model.named_parameters():
        stack, _, rest = name.partition(".")
        if stack in ("h", "layers"):
            number, _, inside = rest.partition(".")
            ours = gradients[f"block{int(number) + 1}.block.{inside}"]
            wanted = parameter.grad.T if ".c_" in name and name.endswith("weight") else parameter.grad
            assert torch.equal(ours, wanted), name


def test_every_family_is_compared():
    assert {kind for kind, _ in CASES} == {*FAMILIES}


def test_a_config_decides_neither_the_kernel_of_attention_nor_types_dropout_or_code(tmp_path):
    """With the kernel `eager`, transformers would add masks of True and False to scores as numbers."""
    write(tmp_path, "gemma3_text", LLAMA | {"sliding_window": 3})
    x = torch.randint(29, (2, 9))
    plain = scores(parts_of(tmp_path), x)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"attn_implementation": "eager", "_attn_implementation": "eager", "dtype": "bfloat16",
               "attention_dropout": 0.5, "auto_map": {"AutoModelForCausalLM": "theirs.Model"}}  # fmt: skip
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").rename(copy / "model.safetensors")
    (whole,) = parts_of(copy)
    assert torch.equal(scores([whole], x), plain)
    assert torch.equal(whole.weights(x, training=True), plain)


def test_targets_are_the_same_names_in_every_family(tmp_path):
    def adapted(kind, config, *targets):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **config}))
        net = HuggingFace(str(tmp_path))((9,), 29)
        adapt(net, Lora(targets=targets))
        names = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
        return {name.partition(".parametrizations.")[0] for name in names if name.startswith("block1.")}

    assert adapted("llama", LLAMA, "q", "ff3") == {"block1.block.self_attn.q_proj", "block1.block.mlp.up_proj"}
    assert adapted("gpt2", GPT2, "q", "v") == {"block1.block.attn.c_attn"}
    rows = [matrix.rows for matrix in matrices(HuggingFace(str(tmp_path))((9,), 29)) if matrix.is_meant_by("block1.k")]
    assert rows == [slice(12, 24)]
    assert adapted("gpt2", GPT2, "o") == {"block1.block.attn.c_proj"}
    assert adapted("gpt2", GPT2, "ff1", "ff2") == {"block1.block.mlp.c_fc", "block1.block.mlp.c_proj"}


def test_a_config_alone_gives_prices_and_no_weights(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", **GPT2}))
    net = network(HuggingFace(str(config)), (9,), 29)
    assert net.weightless
    assert sum(layer.parameters for layer in net.layers) == 29 * 12 * 2 + 16 * 12 + 2 * (12 * 12**2 + 13 * 12) + 24


def refusal(path):
    with pytest.raises(ScenarioError) as refused:
        network(HuggingFace(str(path)), (9,), 29)
    return refused.value


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"model_type": "bert"}, "bert"),
        ({"model_type": ["gpt2"]}, ["gpt2"]),
        ({"model_type": "gemma3_text", **LLAMA, "final_logit_softcapping": 30.0}, 30.0),
        ({"model_type": "gemma3_text", **LLAMA, "use_bidirectional_attention": True}, True),
    ],
)
def test_other_models_are_refused(tmp_path, config, found):
    (tmp_path / "config.json").write_text(json.dumps(config))
    error = refusal(tmp_path)
    assert (error.key, error.found) == ("model.path", found)


@pytest.mark.parametrize("sizes", [{"n_embd": None}, {"n_layer": "two"}, {"vocab_size": 10**18}, {"n_head": 5}])
def test_sizes_that_make_no_model_are_refused(tmp_path, sizes):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **GPT2, **sizes}))
    assert refusal(tmp_path).key.startswith("model")


def test_a_folder_without_its_config_is_refused_and_a_pipe_is_not_waited_for(tmp_path):
    for path in (tmp_path / "nowhere", tmp_path / ("x" * 5000), "~no_such_user/model"):
        assert refusal(path).found == str(path)
    assert refusal(tmp_path).found == str(tmp_path / "config.json")
    os.mkfifo(tmp_path / "config.json")
    assert refusal(tmp_path).key == "model.path"


def test_weights_that_are_missing_are_noticed_before_anything_trains(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **GPT2}))
    save_file({"wte.weight": torch.zeros(29, 12)}, tmp_path / "model.safetensors")
    assert "wpe" in refusal(tmp_path).problem


def test_without_transformers_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **LLAMA}))
    monkeypatch.setitem(sys.modules, "transformers", None)
    error = refusal(tmp_path)
    assert error.key == "model.name"
    assert "sfl-sim[hf]" in error.problem
