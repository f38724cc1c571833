"""Auxiliary heads: layers behind the cut with which a client has a loss of its own, and needs no gradient."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from sfl_sim.errors import ScenarioError
from sfl_sim.models.exit_heads import exit_head, headed
from sfl_sim.models.layers import named
from sfl_sim.models.network import Network

Aux = Literal["exit", "linear", "twin"] | Annotated[int, Field(ge=0, le=1000)]
"""A kind of head (docs/methods/cse_fsl.md#heads)."""
DEVIATION = 0.05
"""Standard deviation of the initial numbers of a `linear` head, as in the code of FSL-SAGE and of CSE-FSL."""


@lru_cache(maxsize=64)  # what-ifs compose the same clients again and again
def auxiliary_network(net: Network, cut: int, aux: Aux) -> Network:
    """Make the network of a client with a head behind `cut` layers of `net`: these layers, and the head as one more.

    Args:
        aux: `exit`: the head of an early exit. `linear`: one linear map of all features. `twin`: all layers behind the
            cut; an integer m: the first m of them and the last. The latter two begin with the numbers of these layers,
            and have their adapters; the former are trained as a whole.

    Raises:
        ScenarioError: the features behind the cut do not suit the head, or its answers are no answers of `net`.
    """
    shape, n_labels, behind = net.layers[cut - 1].out_shape, net.n_labels, len(net) - cut
    if isinstance(aux, int) and aux >= behind:
        raise ScenarioError("must leave out the last layer, which every head has", key="method.aux", found=aux,
                            allowed=f"0 to {behind - 1}")  # fmt: skip

    def head(layers: nn.Sequential) -> nn.Module:
        if aux == "exit":
            return exit_head(net, cut)
        if aux == "linear":
            return named(flatten=nn.Flatten(), fc=_small(nn.Linear(math.prod(shape), n_labels)))
        return nn.Sequential(*(layers[cut:] if aux == "twin" else [*layers[cut : cut + aux], layers[-1]]))

    try:
        client = headed(net, cut, head, None if aux in ("exit", "linear") else net.lora)
        if client.layers[-1].out_shape != net.layers[-1].out_shape:
            raise ScenarioError("makes other answers than the network")
    except ScenarioError as error:
        raise ScenarioError(
            f"does not suit the features behind layer {cut} of {net.name}, {'x'.join(map(str, shape))}: "
            f"{error.problem}", key="method.aux", found=aux, allowed="exit, linear, twin or a number of layers",
        ) from error  # fmt: skip
    return client


def _small(layer: nn.Linear) -> nn.Linear:
    nn.init.normal_(layer.weight, std=DEVIATION)
    nn.init.normal_(layer.bias, std=DEVIATION)
    return layer
