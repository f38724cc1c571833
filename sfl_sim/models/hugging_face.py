"""Causal language models of the library transformers as layers: an embedding, blocks, and a head.

They come from a folder in Hugging Face's format on this machine, or from published sizes alone. Only the numbers in
`config.json` and `*.safetensors` are read: no code, no pickles, nothing from the network. There is no dropout. Where
embedding and head are one matrix, they are two here, since a cut parts them.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from sfl_sim.errors import ScenarioError, in_short, unreadable
from sfl_sim.json_text import parsed_json
from sfl_sim.models.language import Positioned
from sfl_sim.models.layers import Shape, check_fits, named

KEY = "model.path"
FAMILIES = {
    "gemma3_text": "layer_types", "gpt2": "none", "llama": "none", "mistral": "all", "olmo2": "none",
    "qwen2": "layer_types", "qwen3": "layer_types", "smollm3": "layer_types",
}  # fmt: skip
"""Kinds of models that compute nothing outside their layers but angles and masks, as `Block` makes them.

The value says which blocks see a window of `sliding_window` tokens: all, none, or those that `layer_types` names. A
config may have both keys where transformers reads neither.
"""
NOT_COMPUTED = ("final_logit_softcapping", "use_bidirectional_attention", "add_cross_attention")
"""Keys of a config that ask for something else."""


@dataclass(frozen=True)
class HuggingFace:
    """A language model from a folder in Hugging Face's format; from its config.json alone, for timing.

    Attributes:
        path: the folder, or the file config.json.

    Raises ScenarioError if there is no such file.
    """

    path: str

    def __post_init__(self) -> None:
        if not os.path.exists(self.config):
            raise ScenarioError("does not exist", key=KEY, found=str(self.config))

    def __str__(self) -> str:
        return self.path

    @property
    def config(self) -> Path:
        """The file that names the sizes."""
        path = Path(os.path.expanduser(self.path))
        return path / "config.json" if os.path.isdir(path) else path

    @property
    def weight_files(self) -> list[Path]:
        """The files with weights, none if the path is that of a config.json."""
        path = Path(os.path.expanduser(self.path))
        return sorted(path.glob("*.safetensors")) if os.path.isdir(path) else []

    @property
    def has_weights(self) -> bool:
        """False if the model is known by its shapes alone."""
        return bool(self.weight_files)

    @property
    def sizes(self) -> dict[str, Any]:
        """The content of config.json. Raises ScenarioError if it cannot be read or is of another kind of model."""
        try:
            if not (self.config.stat().st_size and self.config.is_file()):
                raise OSError("is no regular file, or empty")  # a pipe would block, as the kernel's log does
            sizes = parsed_json(self.config.read_text(encoding="utf-8"), self.config, key=KEY)
            kind = sizes.get("model_type")
        except ScenarioError:
            raise
        except (OSError, ValueError, AttributeError) as error:
            raise ScenarioError(unreadable(self.config, error), key=KEY, found=str(self.config)) from error
        if kind not in [*FAMILIES]:  # it may be no word
            raise ScenarioError("is no such model", key=KEY, found=kind, allowed=FAMILIES)
        for name in NOT_COMPUTED:
            if sizes.get(name):
                raise ScenarioError(f"asks for {name}, which is not computed", key=KEY, found=sizes[name])
        return dict(sizes)

    def __call__(self, shape: Shape, n_labels: int) -> nn.Sequential:
        """Make the layers, with drawn weights."""
        return layers(self.sizes, shape, n_labels)

    def module(self) -> nn.Module:
        """Make the model of transformers, with drawn weights, whose head has a matrix of its own."""
        whole: nn.Module = _whole(self.sizes)
        _untied(whole)
        return whole

    @property
    def untied_sizes(self) -> dict[str, Any]:
        """The config.json with which transformers reads weights as they are stored: float32, with a head of its own."""
        return {**self.sizes, "tie_word_embeddings": False, "dtype": "float32"}

    def given_names(self) -> dict[str, tuple[str, bool]]:
        """Return the name that transformers gives to each tensor of the layers, and whether a matrix is transposed."""
        with torch.device("meta"):
            whole = _whole(self.sizes)
            turned = {f"{name}.weight" for name, module in whole.named_modules() if _is_turned(module)}
            layers = _layers_of(whole)
        names = {id(tensor): name for name, tensor in whole.state_dict(keep_vars=True).items()}
        ours = layers.state_dict(keep_vars=True).items()
        return {name: (names[id(tensor)], names[id(tensor)] in turned) for name, tensor in ours}

    def fill(self, model: nn.Sequential) -> None:
        """Set the weights of `model` to those in the folder; of one on the meta device, compare shapes alone.

        Raises ScenarioError if weights are missing, or have other shapes.
        """
        shapes_alone = next(model.parameters()).is_meta
        with torch.device("meta"):
            whole = _whole(self.sizes)
        weights: dict[str, Tensor] = {}
        try:
            for file in self.weight_files:
                with safe_open(file, "pt") as archive:
                    for name in archive.keys():  # noqa: SIM118  (it is no mapping)
                        shape = archive.get_slice(name).get_shape()
                        tensor = torch.empty(shape, device="meta") if shapes_alone else archive.get_tensor(name)
                        is_whole = name.startswith((f"{whole.base_model_prefix}.", "lm_head."))
                        weights[name if is_whole else f"{whole.base_model_prefix}.{name}"] = tensor
            missing = whole.load_state_dict(weights, strict=False, assign=True).missing_keys
            if missing == ["lm_head.weight"]:
                whole.lm_head.weight = whole.get_input_embeddings().weight
            elif missing:
                raise KeyError(missing[0])
            model.load_state_dict(_layers_of(whole).state_dict())
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            problem = f"has no such weights as its config.json says: {in_short(error)}"
            if isinstance(error, SafetensorError):
                problem = f"{file.name} {unreadable(file, error)}"
            raise ScenarioError(problem, key=KEY, found=self.path) from error


def layers(sizes: Mapping[str, Any], shape: Shape, n_labels: int) -> nn.Sequential:
    """Make the layers of the model that has these `sizes`, the content of a config.json, with drawn weights."""
    whole = _whole(sizes)
    check_fits(shape, n_labels, whole.config.max_position_embeddings, whole.config.vocab_size)
    return _layers_of(whole)


def _whole(sizes: Mapping[str, Any]) -> Any:
    """Make a model of transformers. Raises ScenarioError if that is not installed, or the sizes make no model."""
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ModuleNotFoundError as error:
        problem = "needs transformers: pip install 'sfl-sim[hf]'"
        raise ScenarioError(problem, key="model.name", found=sizes["model_type"]) from error
    try:
        config = AutoConfig.for_model(**sizes)
        for name in [name for name in vars(config) if name.endswith(("dropout", "pdrop"))]:
            setattr(config, name, 0.0)
        return AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa", dtype=torch.float32, trust_remote_code=False
        )
    except Exception as error:  # of sizes that do not fit together
        raise ScenarioError(f"makes no model: {in_short(error)}", key=KEY, found=sizes["model_type"]) from error


def _layers_of(whole: Any) -> nn.Sequential:
    """Take the layers out of a model of transformers."""
    base, head = whole.base_model, whole.lm_head
    token = base.get_input_embeddings()
    _untied(whole)
    embedding = Positioned(token, base.wpe) if hasattr(base, "wpe") else token
    blocks = {f"block{i + 1}": Block(base, i) for i in range(base.config.num_hidden_layers)}
    return named(embedding=embedding, **blocks, head=named(norm=_first(base, "norm", "ln_f"), linear=head))


def _untied(whole: Any) -> None:
    """Give the head a matrix of its own."""
    if whole.lm_head.weight is whole.get_input_embeddings().weight:
        whole.lm_head.weight = nn.Parameter(whole.lm_head.weight.detach().clone())
        whole.config.tie_word_embeddings = False


def _is_turned(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"


class Block(nn.Module):
    """Block of a model of transformers. It makes its angles and its mask, since other blocks may be elsewhere."""

    def __init__(self, base: Any, index: int) -> None:
        super().__init__()
        config = base.config
        windows = FAMILIES[config.model_type]
        kind = config.layer_types[index] if windows == "layer_types" else windows
        self.block = _linear(_first(base, "layers", "h")[index])
        self.rotary = type(base.rotary_emb)(config) if hasattr(base, "rotary_emb") else None
        self.rotary_of_kind = {"layer_type": kind} if hasattr(self.rotary, "layer_types") else {}
        self.window = config.sliding_window if kind in ("all", "sliding_attention") else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, T, D) to (n, T, D)."""
        positions = torch.arange(x.shape[1], device=x.device)
        angles = {}
        if self.rotary is not None:
            angles = {"position_embeddings": self.rotary(x, positions[None], **self.rotary_of_kind)}
        mask = None  # all earlier positions are seen
        if self.window is not None and len(positions) >= self.window:
            ago = positions[:, None] - positions
            mask = ((ago >= 0) & (ago < self.window))[None, None]
        out: Tensor = self.block(x, attention_mask=mask, **angles)
        return out


def _first(module: Any, *names: str) -> Any:
    """Return the attribute that has the first of these names that there is."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


def _linear(block: nn.Module) -> nn.Module:
    """Put linear maps in the place of a GPT-2's, whose matrices are (in, out): adapters know them."""
    maps = {name: module for name, module in block.named_modules() if _is_turned(module)}
    for name, old in maps.items():
        weight, bias = old.get_parameter("weight"), old.get_parameter("bias")
        n_in, n_out = weight.shape
        linear = nn.Linear(n_in, n_out, device="meta")
        linear.weight, linear.bias = nn.Parameter(weight.detach().T.contiguous()), bias
        block.set_submodule(name, linear)
    return block


def llama_3_2_1b(shape: Shape, n_labels: int) -> nn.Sequential:
    """Llama 3.2 with 1.2 billion parameters by its shapes alone, for timing: embedding, 16 blocks, head."""
    angles = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    sizes = {
        "model_type": "llama", "vocab_size": 128_256, "max_position_embeddings": 131_072, "hidden_size": 2048,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 16,
        "intermediate_size": 8192, "rope_parameters": angles,
    }  # fmt: skip
    return layers(sizes, shape, n_labels)


def gemma_3_270m(shape: Shape, n_labels: int) -> nn.Sequential:
    """Gemma 3 with 270 million parameters by its shapes alone, for timing: embedding, 18 blocks, head."""
    sizes = {
        "model_type": "gemma3_text", "vocab_size": 262_144, "max_position_embeddings": 32_768, "hidden_size": 640,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "num_hidden_layers": 18,
        "intermediate_size": 2048, "sliding_window": 512,
    }  # fmt: skip
    return layers(sizes, shape, n_labels)


def qwen_2_5_0_5b(shape: Shape, n_labels: int) -> nn.Sequential:
    """Qwen 2.5 with half a billion parameters by its shapes alone, for timing: embedding, 24 blocks, head."""
    sizes = {
        "model_type": "qwen2", "vocab_size": 151_936, "max_position_embeddings": 32_768, "hidden_size": 896,
        "num_attention_heads": 14, "num_key_value_heads": 2, "num_hidden_layers": 24, "intermediate_size": 4864,
    }  # fmt: skip
    return layers(sizes, shape, n_labels)
