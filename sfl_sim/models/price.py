"""Prices of layers: multiply-accumulates (MACs) by kind, counted by fvcore, parameters and activations."""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import KINDS

FREE = {
    # Norms, pooling and resizing: published MACs leave them out.
    "batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm", "linalg_vector_norm", "mean", "sum",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "avg_pool1d", "avg_pool2d", "max_pool1d", "max_pool2d",
    "upsample_bilinear2d", "upsample_nearest2d",
    # Elementwise: no products to accumulate.
    "add", "sub", "rsub", "mul", "div", "neg", "pow", "exp", "dropout", "feature_dropout",
    "relu", "leaky_relu", "prelu", "elu", "selu", "celu", "gelu", "glu", "silu", "mish", "softplus",
    "sigmoid", "log_sigmoid", "softmax", "log_softmax", "tanh", "hardsigmoid", "hardswish", "hardtanh",
    # Only look up or move numbers.
    "embedding", "flatten", "unflatten", "pad", "pixel_shuffle",
}  # fmt: skip
"""Operations that count as no MACs, in place or not."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Price of a layer for one sample.

    Attributes:
        name: name of the layer.
        macs_by_kind: MACs of its forward pass, for each of `KINDS`.
        n_ops: modules in it that run MACs themselves (convolutions, linear maps, attention blocks), each of which
            may cost an overhead per call.
        parameters, buffers: trainable elements, and elements of floating buffers.
        out_shape: shape of its output, without the batch dimension.
    """

    name: str
    macs_by_kind: dict[str, int]
    n_ops: int
    parameters: int
    buffers: int
    out_shape: tuple[int, ...]

    @property
    def macs(self) -> int:
        """MACs of one sample's forward pass."""
        return sum(self.macs_by_kind.values())

    @property
    def out_numel(self) -> int:
        """Elements per sample of the layer's output."""
        return math.prod(self.out_shape)


def one_sample(module: nn.Module, input_shape: tuple[int, ...], tokens: bool | None = None) -> Tensor:
    """Make a batch of one sample of zeros: int64 tokens, by default if its shape has one dimension, or numbers."""
    tokens = len(input_shape) == 1 if tokens is None else tokens
    return torch.zeros(1, *input_shape, dtype=torch.int64 if tokens else next(module.parameters()).dtype)


def price(module: nn.Sequential, input_shape: tuple[int, ...], tokens: bool | None = None) -> tuple[Layer, ...]:
    """Price every child of `module` with one traced sample. Puts the module into eval mode."""
    x = one_sample(module, input_shape, tokens)
    own = _own_macs(module, x)
    layers = []
    with torch.no_grad():
        for name, child in zip(module._modules, module, strict=True):  # named_children leaves out a child's second use
            x = child(x)
            macs, n_ops = _total(own, f"{name}.")
            layers.append(
                Layer(
                    name=name,
                    macs_by_kind=macs,
                    n_ops=n_ops,
                    parameters=sum(p.numel() for p in child.parameters()),
                    buffers=sum(b.numel() for b in child.buffers() if b.is_floating_point()),
                    out_shape=tuple(x.shape[1:]),
                )
            )
    return tuple(layers)


def macs_by_kind(module: nn.Module, x: Tensor) -> tuple[dict[str, int], int]:
    """Count the MACs of `module(x)` for each of `KINDS`, and `n_ops` as in `Layer`, for a batch `x` of one sample.

    This puts the module into eval mode.

    Raises:
        ScenarioError: an operation has no known price.
    """
    return _total(_own_macs(module, x), "")


def _total(own: dict[str, Counter[str]], prefix: str) -> tuple[dict[str, int], int]:
    """Sum the MACs by kind of the submodules whose dotted name starts with `prefix`, and count these submodules."""
    inside = [macs for name, macs in own.items() if f"{name}.".startswith(prefix)]
    return {kind: int(sum(macs[kind] for macs in inside)) for kind in KINDS}, len(inside)


def _own_macs(module: nn.Module, x: Tensor) -> dict[str, Counter[str]]:
    """Count MACs by kind that submodules run outside of their children, by name, without submodules that run none."""
    with warnings.catch_warnings():  # fvcore scripts and traces with torch.jit, which torch has deprecated
        warnings.simplefilter("ignore")
        from fvcore.nn import FlopCountAnalysis

        logging.getLogger("fvcore.nn.jit_analysis").setLevel(logging.ERROR)
        analysis = FlopCountAnalysis(module.eval(), x).clear_op_handles().set_op_handle(**_handles())
        counts = analysis.by_module_and_operator()
    unknown = {op.removeprefix("aten::") for op in analysis.unsupported_ops()}
    if unknown:
        raise ScenarioError(f"no price is known for the operations {', '.join(sorted(unknown))}", key="model")
    own = {}
    for name, submodule in module.named_modules():
        macs = counts[name].copy()
        for child, _ in submodule.named_children():
            macs -= counts.get(f"{name}.{child}".removeprefix("."), Counter())
        if isinstance(submodule, nn.MultiheadAttention):
            macs = Counter(attention=macs.total())
        if macs.total():
            own[name] = macs
    return own


Count = Callable[[list[Any], list[Any]], int]
Handle = Callable[[list[Any], list[Any]], Counter[str]]


def _handles() -> dict[str, Handle]:
    """Return functions that count the MACs by kind of a call of each priced operator, from its inputs and outputs."""
    from fvcore.nn import jit_handles as fvcore

    def dense(count: Count) -> Handle:
        return lambda inputs, outputs: Counter(dense=count(inputs, outputs))

    def convolution(inputs: list[Any], outputs: list[Any]) -> Counter[str]:
        channels, groups = fvcore.get_shape(inputs[0])[1], inputs[8].toIValue()
        kind = "depthwise" if 1 < groups == channels else "conv"
        return Counter({kind: fvcore.conv_flop_jit(inputs, outputs)["conv"]})

    def attention(inputs: list[Any], outputs: list[Any]) -> Counter[str]:
        query, key, value = (fvcore.get_shape(tensor) for tensor in inputs[:3])
        return Counter(attention=math.prod(query[:-1]) * key[-2] * (key[-1] + value[-1]))

    handles: dict[str, Handle] = {
        name + suffix: lambda inputs, outputs: Counter() for name in FREE for suffix in ("", "_")
    }
    handles |= {
        "_convolution": convolution,
        "scaled_dot_product_attention": attention,
        "addmm": dense(fvcore.addmm_flop_jit),
        "bmm": dense(fvcore.bmm_flop_jit),
        "einsum": dense(fvcore.einsum_flop_jit),
        "linear": dense(fvcore.linear_flop_jit),
        "matmul": dense(fvcore.matmul_flop_jit),
        "mm": dense(fvcore.matmul_flop_jit),
    }
    return {f"aten::{name}": handle for name, handle in handles.items()}
