"""Multi-exit models: where a client may leave a network early, and the heads it answers with there.

The families of HARMONY's Table 1 as METHODS.md 12.1 reconstructs them, on the networks of the zoo, and a plain head for
every other model. A client's front end phi is the layers up to its cut, h its exit head, and the server's theta the
layers after the cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from torch import nn

from sfl_sim.errors import ScenarioError
from sfl_sim.models.layers import Shape, named
from sfl_sim.models.network import Network
from sfl_sim.models.transformer import Token
from sfl_sim.models.zoo import MODELS


def _pooled(shape: Shape, n_labels: int, side: int) -> nn.Sequential:
    """Features (C, H, W) averaged to `side` x `side`, then linear."""
    return named(pool=nn.AdaptiveAvgPool2d(side), flatten=nn.Flatten(), fc=nn.Linear(shape[0] * side * side, n_labels))


def _class_token(shape: Shape, n_labels: int) -> nn.Sequential:
    """The class token of features (T, D), normalised, then linear."""
    return named(token=Token(0), norm=nn.LayerNorm(shape[1]), fc=nn.Linear(shape[1], n_labels))


@dataclass(frozen=True, slots=True)
class _Exits:
    cuts: tuple[int, ...]
    head: Callable[[Shape, int], nn.Sequential]


_EXITS = {
    "cnn8": _Exits((2, 3, 4), partial(_pooled, side=3)),
    "vgg11_bn": _Exits((2, 3, 4), partial(_pooled, side=2)),
    # Not after the 16- and 24-channel blocks, whose heads would be smaller than the smallest in the table.
    "mobilenet_v2": _Exits((1, *range(5, 12)), partial(_pooled, side=1)),
    "resnet50": _Exits((3, 4, 5, 6, 7), partial(_pooled, side=1)),
    "vit_s16": _Exits((3, 4, 5, 6, 7), _class_token),
}


def _family(net: Network) -> _Exits | None:
    """That of the zoo's models; a user's own of the same name is none of them."""
    return _EXITS.get(net.name) if net._build is MODELS.get(net.name) else None


def exit_cuts(net: Network) -> tuple[int, ...]:
    """After how many layers clients may leave `net`, increasing.

    Of the families above, where HARMONY has exits; of other models, after every layer but the last that gives a feature
    map or a vector. Raises ScenarioError if there is no such layer.
    """
    if family := _family(net):
        return family.cuts
    cuts = tuple(i for i, layer in enumerate(net.layers[:-1], 1) if len(layer.out_shape) in (1, 3))
    if not cuts:
        raise ScenarioError("has no exits", key="model.name", found=net.name, allowed="a model of images")
    return cuts


def exit_head(net: Network, cut: int) -> nn.Sequential:
    """A new head that answers from what layer `cut` of `net` gives: the family's, else the simplest there is."""
    shape = net.layers[cut - 1].out_shape
    if family := _family(net):
        return family.head(shape, net.n_labels)
    return _pooled(shape, net.n_labels, side=3) if len(shape) == 3 else named(fc=nn.Linear(shape[0], net.n_labels))


@lru_cache(maxsize=64)  # what-ifs and advice compose the same clients again and again
def exit_network(net: Network, cut: int) -> Network:
    """The model of a client that leaves `net` after `cut` layers: these, and its head as one layer more.

    Split at `cut` it gives the parts phi and h, priced; phi starts as the first part of `net` with the same seed does.
    Raises ScenarioError if clients cannot leave there.
    """
    cuts = exit_cuts(net)
    if cut not in cuts:
        raise ScenarioError(f"{net.name} has no exit after that layer", key="model.cut", found=cut, allowed=cuts)

    def build(input_shape: Shape, n_labels: int) -> nn.Sequential:
        layers = net._build(input_shape, n_labels)[:cut]
        layers.add_module("exit", exit_head(net, cut))
        return layers

    small = Network(net.name, build, net.input_shape, net.n_labels, net.dtype, net.channels_last)
    return small.called(net.calling)
