"""Memory that a client needs to train its part, at every cut, counted from the tensors that autograd keeps."""

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sfl_sim.models.forward_settings import ForwardSettings
from sfl_sim.models.lora import Adapter
from sfl_sim.models.network import Network
from sfl_sim.models.price import memory_of

SAMPLES = (2, 3)
"""Sizes of the mini-batches that are measured: batch norms may need two samples, and memory grows linearly."""


def client_memory_bytes(
    network: Network, cut: int, batch_size: int, n_moments: int, trains: bool = True, keeps_graphs: bool = True
) -> int:
    """Return the most bytes that a client holds while it trains the layers 1 to `cut`.

    That is when the gradient of a mini-batch comes back, or in the forward pass, where a layer's input is large and not
    kept. They are its weights and floating buffers, a gradient of the weights, the optimiser's moments (one with
    momentum, two with Adam), all that autograd keeps of the mini-batch for the backward pass (its input and
    intermediate results of layers), the activations at the cut, and their gradient. Without a split, `cut` is the
    number of layers. Of frozen weights there are neither gradients nor moments; a client without others, or one that
    never trains, holds the input and the output of one layer at a time. The adapters of the latter's network lie behind
    the cut. A client that trains by forward passes alone (without `keeps_graphs`) holds these, too, weights that are
    shifted, and what goes up and comes down at the cut.

    Left out are memory that an operation allocates and frees again (workspace, gradients of earlier activations),
    messages besides the gradient, what a method or codec keeps besides (surrogates, the start of a round, what
    was sent before, an adapted copy), the data set, and the program itself. Autograd runs on this machine's CPU; other
    kernels may keep a little more or less.
    """
    layers = network.layers[:cut]
    parameters, buffers = sum(layer.parameters for layer in layers), sum(layer.buffers for layer in layers)
    wire_dtype = network.forward_settings.autocast or network.dtype
    numels = [math.prod(network.input_shape), *(layer.out_numel for layer in layers)]
    passing_bytes = batch_size * max(map(sum, pairwise(numels))) * wire_dtype.itemsize
    if not trains or cut <= network.lowest:
        held = buffers + (0 if network.lora else parameters)
        return held * network.dtype.itemsize + network.frozen_bytes(layers) + passing_bytes
    gradient_bytes = batch_size * numels[-1] * wire_dtype.itemsize
    if keeps_graphs:
        few, more = _held_bytes(network)[:, :, :cut]
        held = few + (batch_size - SAMPLES[0]) * (more - few)
        batch_bytes = max(held[0, -1] + gradient_bytes, *held[1])
    else:
        batch_bytes = passing_bytes + 2 * gradient_bytes
    trained_bytes = ((2 + n_moments) * parameters + buffers) * network.dtype.itemsize
    return int(trained_bytes + network.frozen_bytes(layers) + batch_bytes)


@lru_cache(maxsize=8)
def _held_bytes(network: Network) -> NDArray[np.int64]:
    """Count the bytes that autograd keeps of a mini-batch, and those of the last activations: (`SAMPLES`, 2, layers).

    A column is for a cut after that layer; in the second row the layer's input counts, too, which is there while it is
    computed. Tensors that layers share, as the output of one and the input of the next,
    count once; weights do not count, nor do sums of a frozen weight and its adapter, which a device would not make.
    """
    plain = network.with_settings(ForwardSettings(autocast=network.forward_settings.autocast))
    with network.measuring():
        return _held_by(plain)


def _held_by(network: Network) -> NDArray[np.int64]:
    (whole,) = network.split(seed=0, device=torch.device("cpu"))
    of_weights = {memory_of(tensor) for tensor in (whole.weights.flat, whole.weights.buffers, *whole.weights.frozen)}
    merged: list[Tensor] = []
    kept: dict[int, int] = {}
    by_cut: list[tuple[int, int]] = []

    def keep(tensor: Tensor) -> Tensor:
        if (memory := memory_of(tensor)) not in of_weights:
            kept[memory] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    def after_layer(_layer: nn.Module, inputs: tuple[Tensor], out: Tensor) -> None:
        last = kept | {memory_of(out): out.untyped_storage().nbytes()}
        whole = last | {memory_of(x): x.untyped_storage().nbytes() for x in inputs}
        by_cut.append((sum(last.values()), sum(whole.values())))

    def is_a_weight(_adapter: nn.Module, _inputs: object, out: Tensor) -> None:
        merged.append(out)  # alive, so that nothing else gets its memory
        of_weights.add(memory_of(out))

    for module in whole.part.skeleton.modules():
        if isinstance(module, Adapter):
            module.register_forward_hook(is_a_weight)
    for layer in dict.fromkeys(whole.part.skeleton):
        layer.register_forward_hook(after_layer)
    dtype = torch.int64 if network.tokens else network.dtype
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for samples in SAMPLES:
            kept.clear()
            whole.weights(torch.zeros(samples, *network.input_shape, dtype=dtype), training=True)
    return np.reshape(by_cut, (len(SAMPLES), -1, 2)).swapaxes(1, 2)
