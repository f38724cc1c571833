"""Costs of each layer of a network, and the layers after which a cut can be optimal: for planners and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from sfl_sim.metrics.choices import non_dominated

if TYPE_CHECKING:
    from sfl_sim.models.network import Network

IMAGE = ((3, 32, 32), 10)
USUAL = {"cnn_small": ((1, 8, 8), 10), "lenet5": ((1, 28, 28), 10), "cnn8": ((1, 28, 28), 10),
         "char_transformer": ((80,), 80), "gpt_small": ((80,), 80), "gpt2": ((512,), 50_257),
         "llama_3_2_1b": ((512,), 128_256), "qwen_2_5_0_5b": ((512,), 151_936),
         "gemma_3_270m": ((512,), 262_144)}  # fmt: skip
"""Sample shape and number of labels of the data that a model is mostly used on, if they differ from `IMAGE`."""


def usual_data(model: str) -> tuple[tuple[int, ...], int]:
    """Return the default sample shape and number of labels with which to show the zoo's `model`."""
    return USUAL.get(model, IMAGE)


def layer_table(network: Network) -> pd.DataFrame:
    """Return a table with one row per layer.

    Columns: layer (from 1), name, out_shape (`64x32x32`; `64x32x32+128x16x16` where skip connections cross), macs of
    one sample's forward pass, parameters,
    activation_bytes of one sample after the layer (the upload, and the download of its gradient, if the cut is after
    this layer), pareto: True if no other cut is at least as good in client MACs and in activation bytes, and better in
    one of them; False for the last layer, after which there is no cut.
    """
    return with_cuts(costs(network))


def costs(network: Network) -> dict[str, list[Any]]:
    """Return the columns of `layer_table` that each layer decides for itself."""
    wire_dtype = network.forward_settings.autocast or network.dtype
    return {
        "name": [layer.name for layer in network.layers],
        "out_shape": [
            "+".join("x".join(map(str, shape)) for shape in layer.skips or [layer.out_shape])
            for layer in network.layers
        ],
        "macs": [layer.macs for layer in network.layers],
        "parameters": [layer.parameters + layer.frozen for layer in network.layers],
        "activation_bytes": [layer.out_numel * wire_dtype.itemsize for layer in network.layers],
    }


def with_cuts(costs: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Return `layer_table` of what `costs` has given."""
    table = pd.DataFrame(costs)
    table.insert(0, "layer", range(1, len(table) + 1))
    cuts = table[:-1]
    table["pareto"] = [*non_dominated(cuts["macs"].cumsum(), cuts["activation_bytes"]), False]
    return table
