"""What each layer of a network costs, and after which layers a cut can be the best: for planners and reports."""

from __future__ import annotations

import pandas as pd

from sfl_sim.metrics.pareto import non_dominated
from sfl_sim.models.network import Network

IMAGE = ((3, 32, 32), 10)
USUAL = {"cnn_small": ((1, 8, 8), 10), "lenet5": ((1, 28, 28), 10), "cnn8": ((1, 28, 28), 10),
         "char_transformer": ((80,), 80)}  # fmt: skip
"""Sample shape and number of labels of the data that a model is mostly used on, if they are not those of `IMAGE`."""


def usual_data(model: str) -> tuple[tuple[int, ...], int]:
    """Sample shape and number of labels to show the zoo's `model` with, if nobody says."""
    return USUAL.get(model, IMAGE)


def layer_table(network: Network) -> pd.DataFrame:
    """One row per layer.

    Columns: layer (from 1), name, out_shape (`64x32x32`), macs of one sample's forward pass, parameters,
    activation_bytes of one sample after the layer (what goes up, and its gradient down, where the layer is the last
    before the cut), pareto: whether no other cut has no more client MACs and no more activation bytes, and less of one
    of them; the last layer leaves no cut.
    """
    wire_dtype = network.calling.autocast or network.dtype
    table = pd.DataFrame(
        {
            "layer": range(1, len(network) + 1),
            "name": [layer.name for layer in network.layers],
            "out_shape": ["x".join(map(str, layer.out_shape)) for layer in network.layers],
            "macs": [layer.macs for layer in network.layers],
            "parameters": [layer.parameters for layer in network.layers],
            "activation_bytes": [layer.out_numel * wire_dtype.itemsize for layer in network.layers],
        }
    )
    cuts = table[:-1]
    table["pareto"] = [*non_dominated(cuts["macs"].cumsum(), cuts["activation_bytes"]), False]
    return table
