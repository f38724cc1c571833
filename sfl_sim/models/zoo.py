"""Models by name, and a user's own. A builder takes the shape of one sample and the number of labels.

It returns an `nn.Sequential` whose children are the layers: a residual block is one layer, depthwise and pointwise
convolutions are separate layers, and an activation, norm or pooling belongs to the convolution before it
(docs/methods/hydra.md#choices). A sample shape of three dimensions is an image, one of one dimension a sequence of
tokens; a builder raises ValueError for samples that its model does not take. There is no dropout: all random numbers of
a run come from named streams (sfl_sim.rng).
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache

import torch
from torch import nn

from sfl_sim.errors import ScenarioError
from sfl_sim.models.densenet import densenet121, densenet161, densenet169
from sfl_sim.models.layers import Shape
from sfl_sim.models.lora import Lora
from sfl_sim.models.mobilenet import mobilenet_v1, mobilenet_v2
from sfl_sim.models.network import Builder, Network, in_one_line
from sfl_sim.models.resnet import resnet8, resnet18, resnet18_7x7, resnet20, resnet34, resnet50, resnet101, resnet_small
from sfl_sim.models.small import cnn7, cnn8, cnn_patches, cnn_patches_bn, cnn_small, lenet5
from sfl_sim.models.transformer import char_transformer, vit_s16
from sfl_sim.models.vgg import vgg11_bn, vgg16_bn

MODELS: dict[str, Builder] = {
    "cnn_small": cnn_small,
    "cnn_patches": cnn_patches,
    "cnn_patches_bn": cnn_patches_bn,
    "lenet5": lenet5,
    "cnn7": cnn7,
    "cnn8": cnn8,
    "mobilenet_v1": mobilenet_v1,
    "mobilenet_v2": mobilenet_v2,
    "resnet_small": resnet_small,
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "resnet18_7x7": resnet18_7x7,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "vgg11_bn": vgg11_bn,
    "vgg16_bn": vgg16_bn,
    "densenet121": densenet121,
    "densenet161": densenet161,
    "densenet169": densenet169,
    "vit_s16": vit_s16,
    "char_transformer": char_transformer,
}


def network(
    model: str | Builder | nn.Sequential,
    input_shape: Shape,
    n_labels: int,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = True,
    tokens: bool | None = None,
    lora: Lora | None = None,
) -> Network:
    """Make the network of a model's name, or of a user's own model as `as_builder` takes it.

    Args:
        model: a key of `MODELS`, or a user's own model.
        input_shape: shape of one sample, without the batch dimension.
        n_labels: number of labels.
        dtype, channels_last, tokens, lora: as for `Network`.

    Raises:
        ScenarioError: there is no such model, it does not take such samples, or its output is not a score per label.
    """
    key = model if isinstance(model, Hashable) else as_builder(model)
    return _network(key, input_shape, n_labels, dtype, channels_last, tokens, lora)


@lru_cache(maxsize=16)  # pricing traces the model, and all variants and seeds of a study want the same
def _network(
    model: str | Builder | nn.Sequential, input_shape: Shape, n_labels: int, dtype: torch.dtype, channels_last: bool,
    tokens: bool | None, lora: Lora | None,
) -> Network:  # fmt: skip
    if not isinstance(model, str):
        name, build = getattr(model, "__name__", type(model).__name__), as_builder(model)
    elif model in MODELS:
        name, build = model, MODELS[model]
    else:
        raise ScenarioError("no such model", key="model.name", found=model, allowed=MODELS)
    net = Network(name, build, input_shape, n_labels, dtype, channels_last, tokens, lora)
    if net.layers[-1].out_shape != (n_labels,):
        raise ScenarioError(
            f"the last layer of {name} must give a score for each label",
            key="model.factory", found=net.layers[-1].out_shape, allowed=[(n_labels,)],
        )  # fmt: skip
    return net


def as_builder(model: object) -> Builder:
    """Make a builder of a user's own model.

    Args:
        model: a factory `make(input_shape, n_labels)` or `make()` of an `nn.Sequential`, which is also called on
            torch's meta device; or an `nn.Sequential`, whose weights are then the initial ones. Every build is a
            separate model.

    Raises:
        ScenarioError: `model` is neither. The builder raises it if the factory fails, or if its result cannot be
            trained in parts.
    """
    if isinstance(model, nn.Sequential):
        layers = _plain(model)
        return lambda input_shape, n_labels: copy.deepcopy(layers).to(torch.get_default_device())
    if isinstance(model, nn.Module) or not callable(model) or not (_takes(model, (), 0) or _takes(model)):
        raise ScenarioError(
            "is no model", key="model.factory", found=model,
            allowed="an nn.Sequential, or a function of (input_shape, n_labels), or of nothing, that makes one",
        )  # fmt: skip

    def build(input_shape: Shape, n_labels: int) -> nn.Sequential:
        try:
            made = model(input_shape, n_labels) if _takes(model, input_shape, n_labels) else model()
        except Exception as error:
            raise ScenarioError(
                f"fails with {in_one_line(error)}", key="model.factory", found=getattr(model, "__name__", model)
            ) from error
        return _plain(made)

    return build


def _takes(function: Callable[..., object], *arguments: object) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):  # it takes something else, or does not say what
        return False
    return True


def _plain(model: object) -> nn.Sequential:
    """Convert the model to an nn.Sequential that can be sliced.

    Raises:
        ScenarioError: it is not one layer after another, has no weights, or uses the same weights in two layers.
    """
    if not isinstance(model, nn.Sequential):
        problem = "is not an nn.Sequential: put its layers into one, each a child; the cut lies between children"
        raise ScenarioError(problem, key="model.factory", found=type(model).__name__)
    if type(model).forward is not nn.Sequential.forward:
        problem = "has a forward of its own, so it cannot be cut between its children"
        raise ScenarioError(problem, key="model.factory", found=type(model).__name__)
    weights = [parameter for layer in model for parameter in layer.parameters()]
    if not weights:
        raise ScenarioError("has no weights to learn", key="model.factory")
    if len(weights) > len(set(weights)):
        raise ScenarioError("uses the same weights in two layers, which a cut would part", key="model.factory")
    return nn.Sequential(OrderedDict(model._modules))
