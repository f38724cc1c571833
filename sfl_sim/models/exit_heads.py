"""Multi-exit models: the cuts after which a client may leave a network early, and the exit heads there.

The families are those of HARMONY's Table 1 (docs/methods/harmony.md#models), on the networks of the zoo; every other
model gets a plain head. A client's front end phi is the layers up to its cut, h its exit head, and the server's theta
the layers after the cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from torch import nn

from sfl_sim.errors import ScenarioError
from sfl_sim.models.layers import Shape, named
from sfl_sim.models.lora import Lora
from sfl_sim.models.network import Network
from sfl_sim.models.transformer import Token
from sfl_sim.models.zoo import MODELS


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
    return _EXITS.get(net.name) if net._build is MODELS.get(net.name) else None


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
    return headed(net, cut, lambda layers: exit_head(net, cut))


def headed(net: Network, cut: int, head: Callable[[nn.Sequential], nn.Module], lora: Lora | None = None) -> Network:
    """Make the network of the first `cut` layers of `net`, and one more that `head` makes of all its layers.

    The layers have the same initial numbers as in `net`; adapters are those of `lora`, if any.
    """

    def build(input_shape: Shape, n_labels: int) -> nn.Sequential:
        layers = net._build(input_shape, n_labels)
        if net._fill:
            net._fill(layers)
        first = layers[:cut]
        first.add_module("exit", head(layers))
        return first

    small = Network(
        net.name,
        build,
        net.input_shape,
        net.n_labels,
        dtype=net.dtype,
        channels_last=net.channels_last,
        tokens=net.tokens,
        weightless=net.weightless,
        lora=lora,
    )
    return small.with_settings(net.forward_settings).starting(seed=net._initial_seed)
