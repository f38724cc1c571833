"""Parts of a network: layers without weights, and the layout of weights in one flat vector."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from sfl_sim.errors import ScenarioError
from sfl_sim.models.forward_settings import ForwardSettings
from sfl_sim.models.layers import Stretch
from sfl_sim.models.lora import adapter_slots
from sfl_sim.models.price import NO_WORK, Layer, state_buffers
from sfl_sim.ops import KINDS, Work

CACHE_LINE_BYTES = 64
PricedLayers = tuple[Sequence[Layer], tuple[int, ...], int]
"""Layers, the shape of a sample before them, and the bytes of what the network has to predict of it."""


class Part:
    """Consecutive layers of a network, shared by all replicas that hold weights for them.

    Args:
        prices: gives what depends on the positions of a sequence; of 0, for a sample of the network's own shape.

    Attributes:
        first: True if the gradient at its input is not needed: that is the data, or all before it is frozen.
        in_numel, out_numel: elements per sample at its input and output.
        out_shape: shape of a sample's output.
        n_parameters, n_frozen, n_buffers: trainable elements, frozen ones, and those of floating buffers (batch-norm
            statistics).
        constants: names of other buffers, such as masks and counters, which replicas share as they share frozen
            parameters, until a layer of a user's own changes them for its client.
        counters: places among the frozen tensors of those that averages take in: all but complex and floating ones in
            layers of a user's own, as far as they are part of the state dict.
        own: True if a layer is a user's own: it may change any buffer, and read weights in the backward pass.
        size_bytes: bytes of trainable parameters and floating buffers in a message (docs/methods/README.md#symbols).
        aggregate: how averages of replicas treat adapters, as `Lora.aggregate`; None if there are none.
        adapters: their slots.
        dtype: type of the weights.
        wire_dtype: type of its activations, and so of activations and gradients in messages at a cut: that of autocast
            if the network uses it (2 bytes per element for bfloat16), else that of the weights.
        label_bytes: bytes of what the network has to predict of a sample, in a message.
    """

    def __init__(
        self,
        skeleton: nn.Sequential,
        *,
        first: bool,
        prices: Callable[[int], PricedLayers],
        dtype: torch.dtype,
        channels_last: bool,
        forward_settings: ForwardSettings,
        aggregate: str | None = None,
    ) -> None:
        self.skeleton = skeleton
        self.first = first
        self._prices = prices
        self._by_length: dict[int, Part] = {}
        self._set_prices(*prices(0))
        self.channels_last = channels_last
        self.forward_settings = forward_settings
        self.aggregate = aggregate
        self.adapters = adapter_slots(skeleton)
        self.names: list[str] = []
        self.shapes: list[torch.Size] = []
        self.frozen_names: list[str] = []
        self.frozen_shapes: list[torch.Size] = []
        self.constants: set[str] = set()
        self.counters: list[int] = []
        self.own = any(map(is_own, skeleton.modules()))
        self._has_own_mode = any(
            type(module).train is not nn.Module.train and not isinstance(module, Stretch)
            for module in skeleton.modules()
        )
        self._changes_input = self.own or any(getattr(module, "inplace", False) for module in skeleton.modules())
        self._own_constants: list[int] = []
        self._lent: Sequence[Tensor] = []
        self._training: bool | None = None  # in which mode the skeleton is; the modules may come in any
        self.buffer_names: list[str] = []
        self.buffer_shapes: list[torch.Size] = []
        self._slots: list[tuple[dict[str, Tensor | None], str]] = []
        self._frozen_slots: list[tuple[dict[str, Tensor | None], str]] = []
        self._buffer_slots: list[tuple[dict[str, Tensor | None], str]] = []
        self._find_slots()
        self.n_parameters = sum(map(math.prod, self.shapes))
        self.n_frozen = sum(
            math.prod(shape)
            for name, shape in zip(self.frozen_names, self.frozen_shapes, strict=True)
            if name not in self.constants
        )
        self.n_buffers = sum(map(math.prod, self.buffer_shapes))
        self.dtype = dtype
        self.wire_dtype = forward_settings.autocast or self.dtype
        self.size_bytes = (self.n_parameters + self.n_buffers) * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"Part({self.in_numel} to {self.out_numel} elements, {self.macs} MACs, {self.size_bytes} B)"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_prices": None, "_by_length": {}}  # a node of a live run asks for no prices

    def _set_prices(self, layers: Sequence[Layer], before: tuple[int, ...], label_bytes: int) -> None:
        self.label_bytes = label_bytes
        self._sample = sample_work(layers)
        self._spared = {gradient: spared_work(layers, gradient) for gradient in (False, True)}
        self._works: dict[tuple[int, int, bool], Work] = {}
        self.in_numel = math.prod(before)
        self.out_shape = layers[-1].out_shape if layers else before
        self.out_numel = math.prod(self.out_shape)

    def at(self, length: int) -> Part:
        """Return the same part with the prices of a sequence of so many positions; 0 stands for the usual ones."""
        if length and length not in self._by_length:
            self._by_length[length] = other = copy(self)
            other._set_prices(*self._prices(length))
        return self._by_length[length] if length else self

    @property
    def macs(self) -> float:
        """MACs of one sample's forward pass."""
        return self._sample.macs

    def work(self, samples: int, passes: int, gradient: bool | None = None) -> Work:
        """Return the work of a mini-batch of `samples`, in forward passes: 1 forward, 2 backward, 3 both.

        The backward pass computes the `gradient` at the input, by default unless this is the first part.
        """
        key = samples, passes, not self.first if gradient is None else gradient
        work = self._works.get(key)
        if work is None:  # every operation asks, but batches have few sizes
            work = work_of(self._sample, samples, passes, self._spared[key[-1]])
            work = self._works[key] = work._replace(updated=self.n_parameters if passes > 1 else 0)
        return work

    def input_gradient_work(self, samples: int) -> Work:
        """Return the work of a forward pass and a backward pass to the input alone, without gradients of weights."""
        return work_of(self._sample, samples, passes=2)

    def _find_slots(self) -> None:
        for path, module in self.skeleton.named_modules():
            prefix = f"{path}." if path else ""
            for name, parameter in module._parameters.items():
                if parameter is None:
                    continue
                if parameter.requires_grad:
                    self.names.append(prefix + name)
                    self.shapes.append(parameter.shape)
                    self._slots.append((module._parameters, name))
                else:
                    self._share(module._parameters, name, prefix)
            for name, buffer in module._buffers.items():
                if buffer is None:
                    continue
                if name in state_buffers(module):
                    self.buffer_names.append(prefix + name)
                    self.buffer_shapes.append(buffer.shape)
                    self._buffer_slots.append((module._buffers, name))
                elif name == "num_batches_tracked":  # only a cumulative average reads it, and it is no state to average
                    module._buffers[name] = None
                else:
                    self.constants.add(prefix + name)
                    if is_own(module):
                        self._own_constants.append(len(self.frozen_names))
                        if name not in module._non_persistent_buffers_set and not buffer.is_complex():
                            self.counters.append(len(self.frozen_names))
                    self._share(module._buffers, name, prefix)

    def _share(self, slots: dict[str, Tensor | None], name: str, prefix: str) -> None:
        tensor = slots[name]
        assert tensor is not None
        self.frozen_names.append(prefix + name)
        self.frozen_shapes.append(tensor.shape)
        self._frozen_slots.append((slots, name))

    def joined_bytes(self, n_clients: int) -> int:
        """Bytes that bring the average product of `n_clients` adapters to a client, as their factors or as matrices."""
        numel = sum(
            min(n_clients * slot.adapter.rank * sum(slot.adapter.shape), math.prod(slot.adapter.shape))
            for slot in self.adapters
        )
        return (numel + self.n_buffers) * self.dtype.itemsize

    def flat_length(self, shapes: Sequence[torch.Size]) -> int:
        """Count the elements of the vector that holds tensors of these shapes, each at an aligned offset."""
        return sum(_aligned(shape, self.dtype) for shape in shapes)

    def where(self, part: Part) -> tuple[slice, slice, slice]:
        """Return the slices that hold `part`, some of these layers.

        They are those of the flat vectors of parameters and buffers, and of the sequence of frozen parameters.
        """
        frozen = self.frozen_names.index(part.frozen_names[0]) if part.frozen_names else 0
        return (
            self._span(self.names, self.shapes, part.names),
            self._span(self.buffer_names, self.buffer_shapes, part.buffer_names),
            slice(frozen, frozen + len(part.frozen_names)),
        )

    def _span(self, names: Sequence[str], shapes: Sequence[torch.Size], wanted: Sequence[str]) -> slice:
        first = names.index(wanted[0]) if wanted else 0
        start = self.flat_length(shapes[:first])
        return slice(start, start + self.flat_length(shapes[first : first + len(wanted)]))

    def without_gaps(self, flat: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
        """Return the elements of a flat vector that belong to tensors of these shapes."""
        pieces = [flat[i : i + math.prod(shape)] for i, shape in zip(self._starts(shapes), shapes, strict=False)]
        return torch.cat(pieces) if pieces else flat

    def with_gaps(self, dense: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
        """Return the flat vector of which `without_gaps` has left the elements."""
        flat = dense.new_zeros(self.flat_length(shapes))
        pieces = torch.split(dense, [math.prod(shape) for shape in shapes]) if shapes else []
        for start, piece in zip(self._starts(shapes), pieces, strict=False):
            flat[start : start + len(piece)] = piece
        return flat

    def _starts(self, shapes: Sequence[torch.Size]) -> Iterator[int]:
        return accumulate((_aligned(shape, self.dtype) for shape in shapes), initial=0)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the parameters as views of the flat vector (P,), 4-d ones channels_last if the network is."""
        return _views(flat, self.shapes, self.channels_last)

    def buffer_views(self, flat: Tensor) -> list[Tensor]:
        """Return the floating buffers as views of their flat vector (B,); autograd counts each one's changes apart."""
        return [view.data for view in _views(flat, self.buffer_shapes, channels_last=False)]

    def call(
        self,
        parameters: Sequence[Tensor],
        frozen: Sequence[Tensor],
        buffers: Sequence[Tensor],
        x: Tensor,
        training: bool,
    ) -> Tensor:
        """Run the layers with the given weights on a batch x (n, ...).

        The weights are lent to the one shared skeleton (0.1 us per tensor; a module per replica would cost a deepcopy,
        `torch.func.functional_call` ten times as much). Autograd keeps the tensors, so other replicas may run between
        a forward and its backward, which `lend` prepares for layers that read weights then. Layers get a copy of what
        they may change in place.
        """
        x = x.clone() if self._changes_input or not x.requires_grad else x
        self.lend(parameters, self._copied(frozen), buffers, training)
        if self.forward_settings.autocast is None:
            outputs: Tensor = self.skeleton(x)
            return outputs
        with torch.autocast(x.device.type, self.forward_settings.autocast):
            outputs = self.skeleton(x)
        torch.clear_autocast_cache()  # where the caller uses autocast, too, its copies of weights would outlive a step
        return outputs.to(self.wire_dtype)  # autocast leaves some operations in the weights' type

    def lend(
        self, parameters: Sequence[Tensor], frozen: Sequence[Tensor], buffers: Sequence[Tensor], training: bool
    ) -> None:
        """Put weights into the skeleton, until others are put there, and bring it into their mode."""
        for (slots, name), parameter in zip(self._slots, parameters, strict=True):
            slots[name] = parameter
        for (slots, name), tensor in zip(self._frozen_slots, frozen, strict=True):
            slots[name] = tensor
        for (slots, name), buffer in zip(self._buffer_slots, buffers, strict=True):
            slots[name] = buffer
        self._lent = frozen
        if self._training is not training or (self._has_own_mode and not training):
            if not training:
                self.skeleton.train()  # so that what layers keep of other weights in evaluation goes
            self.skeleton.train(training)
            self._training = training

    def lend_again(
        self,
        outputs: Tensor,
        parameters: Sequence[Tensor],
        frozen: Sequence[Tensor],
        buffers: Sequence[Tensor],
        training: bool,
    ) -> None:
        """Lend the weights of a pass once more when the backward pass from its `outputs` begins.

        Checkpoints, hooks of tensors and autograd functions of a user's own read weights only then.
        """
        if outputs.grad_fn is not None:
            outputs.grad_fn.register_prehook(
                lambda _gradients: self.lend(parameters, self._copied(frozen), buffers, training)
            )

    def _copied(self, frozen: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the frozen tensors, with copies of those that layers may change."""
        if not self._own_constants:
            return frozen
        copies = list(frozen)
        with torch.inference_mode(mode=False):  # which they may outlive
            for i in self._own_constants:
                copies[i] = frozen[i].clone()
        return copies

    def taken_back(self, frozen: tuple[Tensor, ...], buffers: list[Tensor]) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """Return what layers of a user's own have made of the frozen tensors and buffers that were lent last.

        They are the same objects if nothing has become of them; buffers that were changed in place are.

        Raises:
            ScenarioError: a buffer is a tensor no more, or one that is averaged has got another shape.
        """
        kept = list(frozen)
        for i in self._own_constants:
            slots, name = self._frozen_slots[i]
            value = _tensor(slots[name], self.frozen_names[i])
            if value is not self._lent[i] or value._version:
                kept[i] = value.detach()
        values = [
            _tensor(slots[name], path)
            for (slots, name), path in zip(self._buffer_slots, self.buffer_names, strict=True)
        ]
        for name, shape, value in zip(self.buffer_names, self.buffer_shapes, values, strict=True):
            if value.shape != shape:
                problem = (
                    f"buffer {name!r} changes its shape from {list(shape)} to {list(value.shape)}, and is averaged"
                )
                remedy = f"self.register_buffer({name.rpartition('.')[2]!r}, ..., persistent=False)"
                raise ScenarioError(problem, key="model.factory", allowed=remedy)
        return (
            frozen if all(map(operator.is_, kept, frozen)) else tuple(kept),
            buffers if all(map(operator.is_, values, buffers)) else values,
        )

    def empty_skeleton(self) -> None:
        """Take the weights of the last call out of the skeleton, and leave their shapes."""
        for slots, name in (*self._slots, *self._frozen_slots, *self._buffer_slots):
            tensor = slots[name]
            assert tensor is not None
            slots[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        self._lent = []

    def loss(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Compute the loss of the network's outputs (n, ...), in the type of the weights; every step asks here."""
        return self.forward_settings.loss(outputs.to(self.dtype), targets, reduction)


def is_own(module: nn.Module) -> bool:
    """Return True if a module's code is neither torch's nor ours, or if it has hooks, which may be anybody's."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    theirs = type(module).__module__.startswith(("torch.nn.", "sfl_sim."))
    return not theirs or any(hooks) or isinstance(module, Stretch)


def _tensor(value: Tensor | None, name: str) -> Tensor:
    if value is None:
        problem = f"buffer {name!r} is set to None, and clients may not have it"
        raise ScenarioError(problem, key="model.factory", found=None, allowed="a tensor")
    return value


def work_of(sample: Work, samples: int, passes: int, spared: Work = NO_WORK) -> Work:
    """Return the work of a mini-batch of `samples`, in forward passes: 1 forward, 2 backward, 3 both.

    A backward pass costs twice the forward pass, less what is `spared` of it for each sample.
    """
    work = sample.of_batch(samples * passes)
    pointwise, grouped, moved, _ = work.finer
    backward = samples * (passes - passes % 2) * sample.finer[0]
    work = work.called(passes)._replace(finer=(pointwise, grouped, moved, backward))
    if passes == 1 or spared == NO_WORK:
        return work
    return Work.total([work, spared.of_batch(-samples).called(-1)])


def sample_work(layers: Sequence[Layer]) -> Work:
    """Sum the work of a sample's forward pass through the layers."""
    conv, depthwise, dense, attention = (sum(layer.macs_by_kind[kind] for layer in layers) for kind in KINDS)
    return Work(
        conv + depthwise + dense + attention,
        (conv, depthwise, dense, attention),
        sum(layer.n_ops for layer in layers),
        (sum(layer.pointwise for layer in layers), sum(layer.grouped for layer in layers),
         sum(layer.moved for layer in layers), 0),
        sum(layer.weights for layer in layers),
        padded=sum(layer.padded for layer in layers),
    )  # fmt: skip


def spared_work(layers: Sequence[Layer], gradient: bool) -> Work:
    """Sum what a sample's backward pass is spared, given whether the `gradient` at the first layer's input is needed.

    Below the first layer that is trained nothing runs backward, and that layer computes no gradient at its input.
    """
    spared = []
    for layer in layers:
        spared.append(layer.spared if gradient else layer.spared_as_first)
        gradient |= layer.parameters > 0
    return Work.total(spared)


def _aligned(shape: torch.Size, dtype: torch.dtype) -> int:
    """Count the elements from the start of a tensor to the first cache line after its end.

    torch aligns every tensor that it allocates, and CPU kernels sum unaligned ones in another order: without the gaps,
    results would depend on the cut in the last bit.
    """
    per_line = CACHE_LINE_BYTES // dtype.itemsize
    return -(-math.prod(shape) // per_line) * per_line


def _views(flat: Tensor, shapes: Sequence[torch.Size], channels_last: bool) -> list[Tensor]:
    views, start = [], 0
    for shape in shapes:
        piece = flat[start : start + math.prod(shape)]
        start += _aligned(shape, flat.dtype)
        if channels_last and len(shape) == 4:
            out_channels, in_channels, height, width = shape
            views.append(piece.view(out_channels, height, width, in_channels).permute(0, 3, 1, 2))
        else:
            views.append(piece.view(shape))
    return views
