"""Heads with which a client has answers, or a loss of its own: early exits, and auxiliary heads behind any cut.

Families of early exits are those of HARMONY's Table 1 (docs/methods/harmony.md#models), on the networks of the zoo;
every other model gets a plain head. A client's front end phi is the layers up to its cut, h its exit head, and the
server's theta the layers after the cut. With an auxiliary head a client needs no gradient from the server.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from sfl_sim.errors import ScenarioError
from sfl_sim.models.layers import Shape, named
from sfl_sim.models.network import Network
from sfl_sim.models.transformer import Token
from sfl_sim.models.zoo import MODELS

Aux = Literal["exit", "linear", "twin"] | Annotated[int, Field(ge=0, le=1000)]
"""A kind of head (docs/methods/cse_fsl.md#heads)."""
DEVIATION = 0.05
"""Standard deviation of the initial numbers of a `linear` head, as in the code of FSL-SAGE and of CSE-FSL."""


def _pooled(shape: Shape, n_labels: int, side: int) -> nn.Sequential:
    """Make a head for features (C, H, W): average pooling to `side` x `side`, then a linear layer."""
    return named(pool=nn.AdaptiveAvgPool2d(side), flatten=nn.Flatten(), fc=nn.Linear(shape[0] * side * side, n_labels))


def _class_token(shape: Shape, n_labels: int) -> nn.Sequential:
    """Make a head for features (T, D): the class token, a layer norm, then a linear layer."""
    return named(token=Token(0), norm=nn.LayerNorm(shape[1]), fc=nn.Linear(shape[1], n_labels))


@dataclass(frozen=True, slots=True)
class _FamilyExits:
    """Exits of a family: the cuts, and a builder of heads from the shape of the features and the number of labels."""

    cuts: tuple[int, ...]
    head: Callable[[Shape, int], nn.Sequential]


_EXITS = {
    "cnn8": _FamilyExits((2, 3, 4), partial(_pooled, side=3)),
    "vgg11_bn": _FamilyExits((2, 3, 4), partial(_pooled, side=2)),
    # Not after the 16- and 24-channel blocks, whose heads would be smaller than the smallest in the table.
    "mobilenet_v2": _FamilyExits((1, *range(5, 12)), partial(_pooled, side=1)),
    "resnet50": _FamilyExits((3, 4, 5, 6, 7), partial(_pooled, side=1)),
    "vit_s16": _FamilyExits((3, 4, 5, 6, 7), _class_token),
}


def _family(net: Network) -> _FamilyExits | None:
    """Return the exits of a model of the zoo; None for others, also for a user's own of the same name."""
    return _EXITS.get(net.name) if net.build is MODELS.get(net.name) else None


def exit_cuts(net: Network) -> tuple[int, ...]:
    """Return the increasing numbers of layers after which clients may leave `net`.

    The families above have HARMONY's exits; other models have one after every layer, except the last, whose output is a
    feature map or a vector.

    Raises:
        ScenarioError: there is no such layer.
    """
    if family := _family(net):
        return family.cuts
    cuts = tuple(i for i, layer in enumerate(net.layers[:-1], 1) if len(layer.out_shape) in (1, 3))
    if not cuts:
        raise ScenarioError("has no exits", key="model.name", found=net.name, allowed="a model of images")
    return cuts


def exit_head(net: Network, cut: int) -> nn.Sequential:
    """Make a new head for the output of layer `cut` of `net`: the family's, else a plain one."""
    shape = net.layers[cut - 1].out_shape
    if family := _family(net):
        return family.head(shape, net.n_labels)
    return _pooled(shape, net.n_labels, side=3) if len(shape) == 3 else named(fc=nn.Linear(shape[0], net.n_labels))


@lru_cache(maxsize=64)  # what-ifs and advice compose the same clients again and again
def exit_network(net: Network, cut: int) -> Network:
    """Make the network of a client that leaves `net` after `cut` layers: these layers, and its head as one more.

    Split at `cut` it gives the parts phi and h, priced. Its initial weights are drawn with the seed of `net`, if `net`
    has one of its own; with the same seed phi has those of the first part of `net`.

    Raises:
        ScenarioError: there is no exit after that layer.
    """
    cuts = exit_cuts(net)
    if cut not in cuts:
        raise ScenarioError(f"{net.name} has no exit after that layer", key="model.cut", found=cut, allowed=cuts)
    return net.headed(cut, lambda layers: exit_head(net, cut))


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
        client = net.headed(cut, head, None if aux in ("exit", "linear") else net.lora)
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
