"""GPT-2, Llama, Qwen 2 and Gemma 3 models in Hugging Face's format, from a folder on this machine.

Only the numbers in `config.json` and `*.safetensors` are read: no code, no pickles, nothing from the network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from sfl_sim.errors import ScenarioError, in_short
from sfl_sim.models.language import Gemma, Gpt2, Llama
from sfl_sim.models.layers import Shape

KEY = "model.path"


@dataclass(frozen=True)
class HuggingFace:
    """A language model of `SIZES` from a folder in Hugging Face's format; from its config.json alone, for timing.

    Attributes:
        path: the folder, or the file config.json.
    """

    path: str

    def __str__(self) -> str:
        return self.path

    @property
    def config(self) -> Path:
        """The file that names the sizes."""
        path = Path(self.path).expanduser()
        return path / "config.json" if path.is_dir() else path

    @property
    def weight_files(self) -> list[Path]:
        """The files with weights, none if the path is that of a config.json."""
        path = Path(self.path).expanduser()
        return sorted(path.glob("*.safetensors")) if path.is_dir() else []

    @property
    def has_weights(self) -> bool:
        """False if the model is known by its shapes alone."""
        return bool(self.weight_files)

    @property
    def sizes(self) -> Gpt2 | Llama:
        """The sizes in config.json. Raises ScenarioError if it cannot be read or is of another kind of model."""
        try:
            if self.config.exists() and not (self.config.is_file() and self.config.stat().st_size):
                raise OSError("is no regular file, or empty")  # a pipe would block, as the kernel's log does
            config = json.loads(self.config.read_text(encoding="utf-8"))
            kind = config.get("model_type")
            if kind not in [*SIZES]:  # of any type
                raise ScenarioError("is no such model", key=KEY, found=kind, allowed=SIZES)
            return SIZES[kind](config)
        except ScenarioError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ScenarioError(f"cannot be read: {in_short(error)}", key=KEY, found=str(self.config)) from error

    def __call__(self, shape: Shape, n_labels: int) -> nn.Sequential:
        """Make the layers, with drawn weights."""
        return self.sizes(shape, n_labels)

    def fill(self, model: nn.Sequential) -> None:
        """Set the weights of `model` to those in the folder; of one on the meta device, compare shapes alone.

        Raises ScenarioError if weights are missing, or have other shapes.
        """
        weights: dict[str, Tensor] = {}
        shapes_alone = next(model.parameters()).is_meta
        try:
            for file in self.weight_files:
                with safe_open(file, "pt") as archive:
                    for name in archive.keys():  # noqa: SIM118  (it is no mapping)
                        shape = archive.get_slice(name).get_shape()
                        tensor = torch.empty(shape, device="meta") if shapes_alone else archive.get_tensor(name)
                        weights.update(_renamed(name, tensor, is_gemma=isinstance(self.sizes, Gemma)))
            wanted = model.state_dict()
            if (tied := "head.linear.weight") not in weights:
                weights[tied] = weights[
                    "embedding.token.weight" if isinstance(self.sizes, Gpt2) else "embedding.weight"
                ]
            model.load_state_dict({name: weights[name].to(wanted[name].dtype) for name in wanted})
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            problem = f"has no such weights as its config.json says: {in_short(error)}"
            raise ScenarioError(problem, key=KEY, found=self.path) from error


def _gpt2(config: Mapping[str, Any]) -> Gpt2:
    _check(config, activation_function=["gelu_new", "gelu_pytorch_tanh"], scale_attn_weights=[True],
           scale_attn_by_inverse_layer_idx=[False], add_cross_attention=[False])  # fmt: skip
    dim = _count(config, "n_embd")
    return Gpt2(
        vocabulary=_count(config, "vocab_size"),
        positions=_count(config, "n_positions"),
        dim=dim,
        heads=_count(config, "n_head"),
        blocks=_count(config, "n_layer"),
        ff=_count(config, "n_inner", 4 * dim),
        eps=_positive(config, "layer_norm_epsilon", 1e-5),
    )


def _llama(config: Mapping[str, Any]) -> Llama:
    _check(config, hidden_act=["silu"], attention_bias=[False], mlp_bias=[False])
    return _llama_of(config, config.get("rope_parameters") or config.get("rope_scaling") or {})


def _qwen2(config: Mapping[str, Any]) -> Llama:
    _check(config, hidden_act=["silu"], use_sliding_window=[False])
    angles = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return replace(_llama_of(config, angles), biased=True)


def _gemma3(config: Mapping[str, Any]) -> Gemma:
    _check(config, hidden_activation=["gelu_pytorch_tanh"], attention_bias=[False], attn_logit_softcapping=[None],
           final_logit_softcapping=[None], use_bidirectional_attention=[False, None])  # fmt: skip
    angles = config.get("rope_parameters") or {}
    angles = {} if "rope_theta" in angles else angles
    llama = _llama_of(config, angles.get("full_attention") or {"rope_theta": 1_000_000.0})
    scale = _positive(config, "query_pre_attn_scalar", 256.0)
    if scale != llama.head_dim:
        raise ScenarioError("has another scale of its scores", key=KEY, found=scale, allowed=[llama.head_dim])
    local = angles.get("sliding_attention") or {}
    every = _count(config, "sliding_window_pattern", _count(config, "_sliding_window_pattern", 6))
    kinds = [("full" if number % every == 0 else "sliding") + "_attention" for number in range(1, llama.blocks + 1)]
    if config.get("layer_types", kinds) != kinds:
        raise ScenarioError(
            "has local blocks in another order", key=KEY, found="layer_types", allowed=f"every {every}th full"
        )
    return Gemma(
        **vars(llama),
        window=_count(config, "sliding_window"),
        local_theta=_positive(local, "rope_theta", _positive(config, "rope_local_base_freq", 10_000.0)),
        full_every=every,
    )


def _llama_of(config: Mapping[str, Any], angles: Mapping[str, Any]) -> Llama:
    heads, dim = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    kv_heads = _count(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        problem = "has num_attention_heads that num_key_value_heads does not divide"
        raise ScenarioError(problem, key=KEY, found=f"{heads} and {kv_heads}")
    kind = angles.get("rope_type", angles.get("type", "default"))
    stretch = None
    if kind == "llama3":
        factor, low, high = angles["factor"], angles["low_freq_factor"], angles["high_freq_factor"]
        stretch = float(factor), float(low), float(high), float(angles["original_max_position_embeddings"])
    elif kind != "default":
        raise ScenarioError("has rotary angles of another kind", key=KEY, found=kind, allowed=["default", "llama3"])
    return Llama(
        vocabulary=_count(config, "vocab_size"),
        positions=_count(config, "max_position_embeddings"),
        dim=dim,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_count(config, "head_dim", dim // heads),
        blocks=_count(config, "num_hidden_layers"),
        ff=_count(config, "intermediate_size"),
        eps=_positive(config, "rms_norm_eps"),
        theta=_positive(config, "rope_theta", _positive(angles, "rope_theta", 10_000.0)),
        stretch=stretch,
    )


SIZES: dict[str, Callable[[Mapping[str, Any]], Gpt2 | Llama]] = {
    "gpt2": _gpt2, "llama": _llama, "qwen2": _qwen2, "gemma3_text": _gemma3,
}  # fmt: skip


def _check(config: Mapping[str, Any], **wanted: list[object]) -> None:
    """Raise ScenarioError if the config says something that these modules do not compute."""
    for name, allowed in wanted.items():
        if config.get(name, allowed[0]) not in allowed:
            raise ScenarioError(f"has another {name}", key=KEY, found=config[name], allowed=list(map(str, allowed)))


MAX_COUNT = 10**9


def _count(config: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
    """Return a size; `otherwise`, if there is such, where it is missing. Raises ScenarioError if it is no size."""
    value = config.get(name)
    if value is None and otherwise is not None:
        return otherwise
    if type(value) is not int or not 1 <= value <= MAX_COUNT:
        raise ScenarioError(f"needs a size {name}", key=KEY, found=str(value), allowed=f"1 to {MAX_COUNT}")
    return value


def _positive(config: Mapping[str, Any], name: str, otherwise: float | None = None) -> float:
    """Return a number above 0; `otherwise`, if there is such, where it is missing. Raises ScenarioError for another."""
    value = config.get(name)
    if value is None and otherwise is not None:
        return otherwise
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ScenarioError(f"needs a number {name}", key=KEY, found=str(value), allowed="above 0")
    return float(value)


PLACES = {
    "wte": "embedding.token", "wpe": "embedding.position", "ln_f": "head.norm",
    "embed_tokens": "embedding", "norm": "head.norm", "lm_head": "head.linear",
}  # fmt: skip
"""Names of modules outside the blocks."""
IN_BLOCK = {
    "ln_1": "norm1", "ln_2": "norm2", "attn.c_proj": "o", "mlp.c_fc": "ff1", "mlp.c_proj": "ff2",
    "input_layernorm": "norm1", "post_attention_layernorm": "norm2", "self_attn.q_proj": "q", "self_attn.k_proj": "k",
    "self_attn.v_proj": "v", "self_attn.o_proj": "o", "mlp.gate_proj": "ff1", "mlp.down_proj": "ff2",
    "mlp.up_proj": "ff3",
}  # fmt: skip
"""Names of modules in a block."""
IN_GEMMA = {
    "post_attention_layernorm": "after1", "pre_feedforward_layernorm": "norm2", "post_feedforward_layernorm": "after2",
    "self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm",
}  # fmt: skip
"""Names of modules in a block of a Gemma 3 that others lack, or use otherwise."""


def _renamed(name: str, tensor: Tensor, is_gemma: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield a stored tensor as those of our modules.

    q, k and v of GPT-2 are one there, with (in, out) matrices; the scales of a Gemma's norms are less by 1.
    """
    in_block = IN_BLOCK | IN_GEMMA if is_gemma else IN_BLOCK
    tensor = tensor + 1 if is_gemma and "norm" in name else tensor
    name = name.removeprefix("transformer.").removeprefix("model.")
    module, _, kind = name.rpartition(".")
    if module in PLACES:
        yield f"{PLACES[module]}.{kind}", tensor
        return
    place, number, inside = (*module.split(".", 2), "", "")[:3]
    block = f"block{int(number) + 1}" if place in ("h", "layers") and number.isdecimal() else None
    is_transposed = inside in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj") and kind == "weight"
    tensor = tensor.T if is_transposed else tensor
    if block and inside == "attn.c_attn":
        yield from (
            (f"{block}.{letter}.{kind}", rows) for letter, rows in zip("qkv", torch.chunk(tensor, 3), strict=True)
        )
    elif block and inside in in_block:
        yield f"{block}.{in_block[inside]}.{kind}", tensor
