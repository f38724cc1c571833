"""What a layer costs: multiply-accumulates by fvcore, activations, parameters."""

from __future__ import annotations

import logging
import math
import warnings
from dataclasses import dataclass

import torch
from torch import nn

# fvcore counts these, but published MACs leave them out.
UNPRICED = {
    "batch_norm",
    "group_norm",
    "layer_norm",
    "adaptive_avg_pool2d",
    "avg_pool2d",
    "upsample_nearest2d",
}
# Elementwise or shape-only operations: no MACs.
FREE = {
    "add",
    "add_",
    "relu",
    "relu_",
    "hardtanh_",
    "max_pool2d",
    "tanh",
    "flatten",
    "mean",
    "mul",
    "dropout",
    "pad",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """What one sample costs in a layer: `macs` of its forward pass, and `out_numel` activations that it gives."""

    name: str
    macs: int
    parameters: int
    buffers: int
    out_shape: tuple[int, ...]

    @property
    def out_numel(self) -> int:
        """Elements per sample of the layer's output."""
        return math.prod(self.out_shape)


def price(module: nn.Sequential, input_shape: tuple[int, ...]) -> tuple[Layer, ...]:
    """Price every child of `module` with one traced sample (fvcore: one MAC is one count)."""
    module.eval()
    x = torch.zeros(1, *input_shape, dtype=next(module.parameters()).dtype)
    with warnings.catch_warnings():  # fvcore scripts and traces with torch.jit, which torch has deprecated
        warnings.simplefilter("ignore")
        macs, unsupported = _count(module, x)
    unknown = unsupported - FREE - UNPRICED
    if unknown:
        raise ValueError(f"no price is known for the operations {', '.join(sorted(unknown))}")
    layers = []
    with torch.no_grad():
        for name, child in module.named_children():
            x = child(x)
            layers.append(
                Layer(
                    name,
                    int(macs[name]),
                    sum(p.numel() for p in child.parameters()),
                    sum(b.numel() for b in child.buffers() if b.is_floating_point()),
                    tuple(x.shape[1:]),
                )
            )
    return tuple(layers)


def _count(module: nn.Module, x: torch.Tensor) -> tuple[dict[str, float], set[str]]:
    """MACs by submodule, and the names of the operations that fvcore could not price."""
    from fvcore.nn import FlopCountAnalysis

    logging.getLogger("fvcore.nn.jit_analysis").setLevel(logging.ERROR)
    analysis = FlopCountAnalysis(module, x).uncalled_modules_warnings(False).unsupported_ops_warnings(False)
    macs = {
        name: sum(count for operator, count in counts.items() if operator not in UNPRICED)
        for name, counts in analysis.by_module_and_operator().items()
    }
    return macs, {op.removeprefix("aten::") for op in analysis.unsupported_ops()}
