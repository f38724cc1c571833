"""Models by name, and a user's own. A builder takes the shape of one sample and the number of labels.

It returns an `nn.Sequential` whose children are the layers: a residual block is one layer, depthwise and pointwise
convolutions are separate layers, and an activation, norm or pooling belongs to the convolution before it
(docs/methods/hydra.md#choices). A sample shape of three dimensions is an image, one of one dimension a sequence of
tokens; a builder raises ValueError for samples that its model does not take. A language model scores each of the
tokens that it knows, which may be more than the data's labels. There is no dropout: all random numbers of
a run come from named streams (sfl_sim.rng).
"""

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import lru_cache, partial

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedBuffer, is_lazy

from sfl_sim.errors import ScenarioError
from sfl_sim.installed import find
from sfl_sim.models import convolutional, small
from sfl_sim.models.hugging_face import HuggingFace, gemma_3_270m, llama_3_2_1b, qwen_2_5_0_5b
from sfl_sim.models.language import gpt2, gpt_small
from sfl_sim.models.layers import Shape, named
from sfl_sim.models.libraries import LibraryModel
from sfl_sim.models.lora import Lora
from sfl_sim.models.network import Builder, Network, in_one_line
from sfl_sim.models.traced import CuttingPlan, is_plain_sequence, parts_of
from sfl_sim.models.transformer import Token, char_transformer, vit_s16

Given = str | Callable[..., nn.Module] | nn.Module
"""A model as a scenario gives it: its name, a factory, or the model."""

MODELS: dict[str, Builder] = {
    builder.__name__: builder
    for builder in (
        small.cnn_small, small.mlp, small.fcn_small, small.cnn_patches, small.cnn_patches_bn, small.lenet5, small.cnn7,
        small.cnn8, convolutional.mobilenet_v1, convolutional.mobilenet_v2, convolutional.resnet_small,
        convolutional.resnet8, convolutional.resnet20, convolutional.resnet18, convolutional.resnet18_7x7,
        convolutional.resnet34, convolutional.resnet50, convolutional.resnet101, convolutional.vgg11_bn,
        convolutional.vgg16_bn, convolutional.densenet121, vit_s16, char_transformer, gpt_small, gpt2, llama_3_2_1b,
        qwen_2_5_0_5b, gemma_3_270m,
    )
}  # fmt: skip
WEIGHTLESS = {"gpt2", "llama_3_2_1b", "qwen_2_5_0_5b", "gemma_3_270m"}
"""Models that are known by their shapes alone."""
LANGUAGE = {"gpt_small", *WEIGHTLESS}
"""Models that score the next token at every position."""
DENSE = {"fcn_small"}
"""Models that score every pixel of an image."""


def network(
    model: Given,
    input_shape: Shape,
    n_labels: int,
    dtype: torch.dtype = torch.float32,
    tokens: bool | None = None,
    every_token: bool | None = None,
    lora: Lora | None = None,
    pixels: Shape | None = None,
) -> Network:
    """Make the network of a model's name, or of a user's own model as `as_builder` takes it.

    Args:
        model: a key of `MODELS`, or a user's own model.
        input_shape: shape of one sample, without the batch dimension.
        n_labels: number of labels.
        dtype, tokens, lora: as for `Network`.
        every_token: predict the next token at every position instead of one label; None: if the model's name says so.
        pixels: height and width of the mask that is predicted, empty without masks; None: if the model's name says so.

    Raises:
        ScenarioError: there is no such model, it does not take such samples, or its output is not a score per label.
    """
    key = model if isinstance(model, Hashable) else as_builder(model)
    if every_token is None:
        every_token = predicts_tokens(key)
    if pixels is None:
        pixels = input_shape[1:] if key in DENSE else ()
    return _network(
        key, input_shape, n_labels, dtype=dtype, tokens=tokens, every_token=every_token, lora=lora, pixels=tuple(pixels)
    )


@lru_cache(maxsize=16)  # pricing traces the model, and all variants and seeds of a study want the same
def _network(
    model: Given, input_shape: Shape, n_labels: int, dtype: torch.dtype, tokens: bool | None, every_token: bool,
    lora: Lora | None, pixels: Shape,
) -> Network:  # fmt: skip
    build: Builder
    if isinstance(model, HuggingFace):
        name, build = str(model), model
    elif not isinstance(model, str):
        of_library = isinstance(model, LibraryModel)
        name = str(model) if of_library else getattr(model, "__name__", type(model).__name__)
        build = as_builder(model)
    elif model in MODELS:
        name, build = model, MODELS[model]
    else:
        name = model
        build = as_builder(find("models", model, "model.name", [*MODELS, "hf"], "no such model"))
    is_language = predicts_tokens(model)
    if is_language and not every_token:
        build = partial(_of_last_token, build)
    net = Network(
        name, build, input_shape, n_labels, dtype=dtype, tokens=tokens, weightless=is_weightless(model), lora=lora
    )
    out_shape = net.layers[-1].out_shape
    if not out_shape:
        problem = "loses the dimension of samples where there is one, as squeeze() does, and squeeze(-1) does not"
        raise ScenarioError(f"the last layer of {name} {problem}", key="model.factory")
    wanted = (*input_shape, n_labels) if every_token else (n_labels, *pixels)
    if out_shape != wanted and not (is_language and out_shape[:-1] == wanted[:-1]):
        problem = "a score for each label, or, where targets are floating numbers, a number for each column of them"
        if every_token:
            problem = "a score of each next token at every position, for data.targets all, for each label"
        elif pixels:
            problem = "a score for each label at every pixel of the masks"
        raise ScenarioError(
            f"the last layer of {name} must give {problem}", key="model.factory", found=out_shape, allowed=str(wanted)
        )
    if not any(layer.parameters for layer in net.layers):
        raise ScenarioError("has no weights to learn: all are frozen", key="model.factory")
    return net.starting(model.fill) if isinstance(model, HuggingFace) and model.has_weights else net


def predicts_tokens(model: object) -> bool:
    """Return True if a name or a folder's model scores the next token at every position."""
    return isinstance(model, HuggingFace) or model in LANGUAGE


def is_weightless(model: object) -> bool:
    """Return True if a model is known by its shapes alone, so that it can be timed and not trained."""
    return not model.has_weights if isinstance(model, HuggingFace) else model in WEIGHTLESS


def _of_last_token(build: Builder, input_shape: Shape, n_labels: int) -> nn.Sequential:
    """Build a language model whose head sees the last position alone."""
    model = build(input_shape, n_labels)
    model[-1] = named(last=Token(-1), **dict(model[-1].named_children()))
    return model


def as_builder(model: object) -> Builder:
    """Make a builder of a user's own model.

    Args:
        model: a factory `make(input_shape, n_labels)` or `make()` of an `nn.Module`, which is also called on torch's
            meta device (arguments with defaults keep them, unless the first is called a shape); or an `nn.Module`,
            whose weights are then the initial ones. Every build is a separate model. An
            `nn.Sequential` is cut between its children, any other as `traced.CuttingPlan` says.

    Raises:
        ScenarioError: `model` is neither. The builder raises it if the factory fails, or if its result cannot be
            trained in parts.
    """
    known: dict[Shape, CuttingPlan] = {}  # to find them takes seconds
    if isinstance(model, nn.Module):

        def build_again(input_shape: Shape, n_labels: int) -> nn.Sequential:
            return _plain(_copied(model), input_shape, known).to(torch.get_default_device())

        return build_again
    if not callable(model) or not (_takes_data(model) or _takes(model)):
        raise ScenarioError(
            "is no model",
            key="model.factory",
            found=model,
            allowed="an nn.Module, or a function of (input_shape, n_labels), or of nothing, that makes one",
        )

    def build(input_shape: Shape, n_labels: int) -> nn.Sequential:
        layers = made_by(model, input_shape, n_labels)
        if isinstance(layers, nn.Module) and not all(weight.is_meta for weight in layers.parameters()):
            with suppress(ScenarioError):  # torch copies no weight that is computed from others
                layers = _copied(layers)  # it may hold what it has given before, as a backbone that is loaded once
        return _plain(layers, input_shape, known)

    return build


def made_by(factory: Callable[..., object], input_shape: Shape, n_labels: int) -> object:
    """Return what a user's own factory makes. Raises ScenarioError if it fails."""
    try:
        return factory(input_shape, n_labels) if _takes_data(factory) else factory()
    except ScenarioError:
        raise
    except (Exception, SystemExit) as error:
        name = getattr(factory, "__name__", factory)
        raise ScenarioError(f"fails with {in_one_line(error)}", key="model.factory", found=name) from error


def whole_module(model: Given, network: Network) -> nn.Module:
    """Return a module as its maker gives it, uncut, with whatever weights; of a name, the layers of the network."""
    shape = network.input_shape
    if isinstance(model, LibraryModel):
        return model.made(shape, network.n_labels)
    if isinstance(model, nn.Module):
        return _copied(model)
    made = network.build(shape, network.n_labels) if isinstance(model, str) else made_by(model, shape, network.n_labels)
    assert isinstance(made, nn.Module)
    return made


def _copied(model: nn.Module) -> nn.Module:
    lazy = [buffer for buffer in model.buffers() if is_lazy(buffer)]  # of which torch makes no copies
    alike = {id(buffer): UninitializedBuffer(device=buffer.device) for buffer in lazy}  # type: ignore[call-arg]
    try:
        return copy.deepcopy(model, alike)
    except RuntimeError as error:
        problem = "has weights that are computed from others, of which torch makes no copies"
        remedy = "torch.nn.utils.parametrizations.weight_norm instead of torch.nn.utils.weight_norm"
        raise ScenarioError(problem, key="model.factory", found=type(model).__name__, allowed=remedy) from error


def _takes_data(factory: Callable[..., object]) -> bool:
    """Return True if a factory is to be called with the shape of a sample and the number of labels."""
    if not _takes(factory, (), 0):
        return False
    first = next(iter(inspect.signature(factory).parameters.values()))
    return first.default is first.empty or "shape" in first.name


def _takes(function: Callable[..., object], *arguments: object) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):  # it takes something else, or does not say what
        return False
    return True


def _plain(model: object, input_shape: Shape, known: dict[Shape, CuttingPlan]) -> nn.Sequential:
    """Convert the model to an nn.Sequential that can be sliced, by cuts that are known or become so.

    Raises:
        ScenarioError: it is no module, cannot be cut, or has weights that cannot be trained in parts.
    """
    if not isinstance(model, nn.Module):
        raise ScenarioError("is no nn.Module", key="model.factory", found=type(model).__name__)
    _fill_lazy(model, input_shape)
    layers = model
    if not is_plain_sequence(model):
        if input_shape not in known or known[input_shape].parts != parts_of(model):
            known[input_shape] = CuttingPlan.of(model, input_shape)
        layers = known[input_shape].applied_to(model)
    _check_weights(layers)
    return nn.Sequential(OrderedDict(layers._modules))  # type: ignore[arg-type]


def _fill_lazy(model: nn.Module, input_shape: Shape) -> None:
    """Give weights to layers that learn their shapes from their first input.

    Raises ScenarioError if the model cannot take samples of this shape.
    """
    lazy = [weight for weight in (*model.parameters(), *model.buffers()) if is_lazy(weight)]
    if not lazy:
        return
    kinds = (torch.float32, torch.int64) if len(input_shape) == 1 else (torch.float32,)
    training = model.training
    for kind in kinds:
        try:
            with torch.no_grad():
                model.eval()(torch.zeros(2, *input_shape, dtype=kind, device=lazy[0].device))
        except Exception as error:  # whatever layers do with such samples
            problem = f"cannot take samples of shape {'x'.join(map(str, input_shape))}: {in_one_line(error)}"
            failure = ScenarioError(problem, key="model.factory", found=type(model).__name__)
        else:
            model.train(training)
            return
    raise failure


def _check_weights(model: nn.Module) -> None:
    """Raise ScenarioError for no weights, complex ones, the same ones twice, or batch norm without a momentum."""
    modules = [module for layer in model._modules.values() if layer for module in layer.modules()]
    weights = [weight for module in modules for weight in module._parameters.values() if weight is not None]
    if not weights:
        raise ScenarioError("has no weights to learn", key="model.factory")
    if isinstance(model, nn.Sequential) and len(weights) > len(set(weights)):
        problem = "uses the same weights in two layers, or under two names in one, which would be trained apart"
        raise ScenarioError(problem, key="model.factory")
    if any(weight.is_complex() for weight in weights):
        raise ScenarioError("has complex weights; make them pairs of real ones", key="model.factory")
    for module in modules:
        if isinstance(module, nn.SyncBatchNorm):
            problem = "averages over the processes of one training, and clients are apart"
            allowed = "BatchNorm1d, BatchNorm2d, BatchNorm3d"
            raise ScenarioError(problem, key="model.factory", found="SyncBatchNorm", allowed=allowed)
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.momentum is None:
            problem = "has batch norm without a momentum, which would have to count batches; replicas do not"
            raise ScenarioError(problem, key="model.factory", found=None, allowed="a momentum, such as 0.1")
