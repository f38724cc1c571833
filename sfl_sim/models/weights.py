"""Weights of a part in two flat vectors, and the forward passes of which they await the gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import get_device_states, set_device_states

from sfl_sim.models.on_nan import rule_in_force
from sfl_sim.models.part import Part

BufferState = tuple[Tensor, tuple[Tensor, ...]]
"""Buffers that a pass may change: the vector of those that each copy has for itself, and tensors that copies share."""
STORED = ("flat", "buffers", "momentum", "variance", "n_steps", "start", "squared_norms", "foreign", "statistics",
          "product_errors", "draws", "passed_own", "learned")  # fmt: skip
"""Names of what in `Weights` outlives a step, besides frozen parameters."""


class Weights:
    """Parameters (P,) and buffers (B,) of a part in two flat vectors, with views for the layers.

    Frozen parameters and constants are tensors that all copies share, until a layer of a user's own changes a constant,
    which is then its client's. What is copied, sent, averaged and stepped are the others. A flat clone costs a third of
    a module's deepcopy, and one fused optimiser step over the vector a fifth of a step per tensor. Buffers are a second
    vector because views of one vector share autograd's version counter, and batch norm writes its statistics between a
    forward and its backward.
    """

    def __init__(self, part: Part, flat: Tensor, buffers: Tensor, frozen: tuple[Tensor, ...] = ()) -> None:
        self.part = part
        self.flat = flat
        self.buffers = buffers
        self.frozen = frozen
        self.buffer_views = part.buffer_views(buffers)
        self.momentum: Tensor | None = None
        self.variance: Tensor | None = None
        """Running average of squared gradients; kept by `Adam` alone, as `n_steps` is."""
        self.n_steps: Tensor | None = None
        self.foreign: list[dict[str, Any]] | None = None
        """State of a user's own optimiser, by parameter; kept by `Foreign` alone."""
        self.start: Tensor | None = None
        """Value of `flat` before the round's first step; kept by `Proximal` alone."""
        self.squared_norms: Tensor | None = None
        """Sum over the round's steps of the gradient's squared norm, (); kept by `SummedNorms` alone."""
        self.statistics: BufferState | None = None
        """Value of `state` before the mini-batch; see `keep_statistics`."""
        self.product_errors: Tensor | None = None
        """Squared norms (2,) of `product_errors` over all adapters, of the last average of which this is the result."""
        self.draws = 0, 0
        """Seed of the run, and how many times adapters have been drawn anew for these weights."""
        self.awaiting_gradient: Tensor | None = None
        """Activations at the cut that await their gradient; they carry the client's graph."""
        self.passed_own = False
        """True if a batch has passed layers of a user's own since the last step, so that `learned` is known."""
        self.learned: dict[int, None] = {}
        """Places of the parameters that have got a gradient since the last step; a checkpoint holds no sets."""
        self._saved: SavedForward | None = None
        self._leaves: list[Tensor] | None = None
        self._grad: Tensor | None = None
        self._whole: tuple[Weights, slice, slice] | None = None

    @classmethod
    def of(cls, part: Part, module: nn.Module, device: torch.device, seed: int = 0) -> Weights:
        """Copy the weights of `module`, whose layers are those of `part`, to `device`; `seed` is that of the run."""
        values = dict(module.named_parameters()) | dict(module.named_buffers(remove_duplicate=False))
        layout = torch.channels_last if part.channels_last else torch.contiguous_format
        weights = cls(
            part,
            torch.zeros(part.flat_length(part.shapes), dtype=part.dtype, device=device),
            torch.zeros(part.flat_length(part.buffer_shapes), dtype=part.dtype, device=device),
            tuple(
                values[name].detach().to(device, memory_format=layout if len(shape) == 4 else torch.preserve_format)
                for name, shape in zip(part.frozen_names, part.frozen_shapes, strict=True)
            ),
        )
        weights.draws = seed, 0
        with torch.no_grad():
            for name, view in weights.named_tensors():
                view.copy_(values[name])
        return weights

    def forget(self) -> None:
        """Drop the optimiser's state, as if no step had been taken."""
        self.momentum = self.variance = self.n_steps = self.start = self.squared_norms = self.foreign = None

    def copy(self, with_momentum: bool = False) -> Weights:
        """Copy the weights; the optimiser's state is new in every round (docs/methods/README.md#optimisers)."""
        copy = Weights(self.part, self.flat.clone(), self.buffers.clone(), self.frozen)
        copy.draws = self.draws
        if with_momentum and self.momentum is not None:
            copy.momentum = self.momentum.clone()
        return copy

    def only(self, part: Part) -> Weights:
        """Return the weights of `part`, some of these layers, in the same memory."""
        if part is self.part:
            return self
        parameters, buffers, frozen = self.part.where(part)
        some = Weights(part, self.flat[parameters], self.buffers[buffers], self.frozen[frozen])
        some._whole = self, buffers, frozen
        some.momentum = None if self.momentum is None else self.momentum[parameters]
        return some

    @property
    def leaves(self) -> list[Tensor]:
        """Parameters as autograd leaves, whose gradients accumulate in the flat vector `grad`."""
        if self._leaves is None:
            self._leaves = [view.detach().requires_grad_() for view in self.part.views(self.flat)]
            for leaf, gradient in zip(self._leaves, self.part.views(self.grad), strict=True):
                leaf.grad = gradient
            if self.part.own:
                for i, leaf in enumerate(self._leaves):
                    leaf.register_post_accumulate_grad_hook(partial(_note, self.learned, i))  # type: ignore[no-untyped-call]
        return self._leaves

    @property
    def unlearned(self) -> list[int]:
        """Places of the parameters without a gradient, as far as it is known: optimisers leave them as they are."""
        return [i for i in range(len(self.part.names)) if i not in self.learned] if self.passed_own else []

    @contextmanager
    def sparing(self) -> Iterator[None]:
        """Return a context in which parameters without a gradient, and their moments, stay as they are."""
        names = ("flat", "momentum", "variance") if (spared := self.unlearned) else ()
        before = {name: vector.clone() for name in names if (vector := getattr(self, name)) is not None}
        yield
        for name in names:
            if (vector := getattr(self, name)) is not None:
                views = self.part.views(vector), self.part.views(before.get(name, torch.zeros_like(vector)))
                for i in spared:
                    views[0][i].copy_(views[1][i])

    def clear_gradient(self) -> None:
        """Begin the next step with no gradient."""
        self.grad.zero_()
        self.passed_own = False
        self.learned.clear()

    @property
    def grad(self) -> Tensor:
        """Gradient (P,) accumulated since it was last zeroed, laid out as `flat`."""
        if self._grad is None:
            self._grad = torch.zeros_like(self.flat)
        return self._grad

    def __call__(self, x: Tensor, training: bool) -> Tensor:
        """Run the part's layers on a batch."""
        if training:
            self.keep_statistics()
            self.passed_own = self.part.own
        return self._run(self.leaves if training else self.part.views(self.flat), x, training)

    def _run(self, parameters: list[Tensor], x: Tensor, training: bool) -> Tensor:
        """Run the layers and keep what they make of buffers; graphs keep those that they have been made of."""
        part = self.part
        outputs = part.call(parameters, self.frozen, self.buffer_views, x, training)
        if part.own:
            frozen, buffers = part.taken_back(self.frozen, self.buffer_views)
            if buffers is not self.buffer_views or frozen is not self.frozen:
                with torch.inference_mode(mode=False), torch.no_grad():  # which they outlive
                    new = torch.zeros_like(self.buffers)
                    for view, buffer in zip(part.buffer_views(new), buffers, strict=True):
                        view.copy_(buffer)
                    self.put((new, frozen))
            part.lend_again(outputs, parameters, self.frozen, self.buffer_views, training)
        return outputs

    def keep_statistics(self) -> None:
        """Remember what the buffers are before a mini-batch passes, if its update may be left out."""
        if self.statistics is None and rule_in_force().skips:
            self.statistics = self.state

    @property
    def state(self) -> BufferState:
        """What the buffers are; they may change afterwards, and be set to it once, by `put`."""
        return self.buffers.clone(), self.frozen

    def put(self, state: BufferState) -> None:
        """Set the buffers, also those of the weights that these are `only` some of; graphs keep the tensors before."""
        self.buffers, self.frozen = state
        if self._whole is not None:
            whole, buffers, frozen = self._whole
            everything = whole.buffers.clone()
            everything[buffers] = self.buffers
            whole.put((everything, (*whole.frozen[: frozen.start], *self.frozen, *whole.frozen[frozen.stop :])))
            self.buffers = whole.buffers[buffers]
        self.buffer_views = self.part.buffer_views(self.buffers)

    def without_graph(self, x: Tensor) -> Tensor:
        """Run the part's layers on a training batch that they do not learn from."""
        with torch.no_grad():
            return self._run(self.part.views(self.flat), x, training=True)

    def to_input(self, x: Tensor) -> Tensor:
        """Run a training pass of x whose graph leads to x alone, and which leaves buffers as they are."""
        return self._again(self.part.views(self.flat), self.state, x)

    def _again(self, parameters: list[Tensor], state: BufferState, x: Tensor) -> Tensor:
        """Run a training pass that leaves the buffers as they are, and begins with others."""
        buffers, frozen = self.part.buffer_views(state[0]), state[1]
        outputs = self.part.call(parameters, frozen, buffers, x, training=True)
        if self.part.own:
            self.part.lend_again(outputs, parameters, frozen, buffers, training=True)
        return outputs

    def forward(self, x: Tensor) -> Tensor:
        """Compute the activations of a training batch x; the graph is kept for `backward`, or computed again then."""
        hold = self.part.forward_settings.graphs.admit(self)
        self._saved = SavedForward.now(self, x)
        activations = self(x, training=True)
        self.awaiting_gradient = activations if hold else None
        return activations.detach()

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Accumulate the parameters' gradients, given the gradient at the activations that `forward` returned.

        Gives the gradient at the input, if that asked for one.
        """
        activations, saved = self.awaiting_gradient, self._saved
        if activations is None:
            assert saved is not None, "backward without a forward"
            activations = saved.again(self)
        self.awaiting_gradient = self._saved = None
        if activations.requires_grad:  # not those of a first part without parameters
            torch.autograd.backward(activations, gradient)
        self.part.forward_settings.graphs.release(self)
        return None if saved is None else saved.x.grad

    @property
    def passed(self) -> tuple[Tensor, Tensor]:
        """Input and activations of the forward pass that awaits its gradient, without its graph."""
        assert self._saved is not None, "no forward pass"
        activations = self._saved.again(self) if self.awaiting_gradient is None else self.awaiting_gradient
        return self._saved.x, activations.detach()

    def stored(self) -> dict[str, Any]:
        """Return all tensors for a checkpoint; a graph is stored as the forward pass that made it."""
        kept = {name: getattr(self, name) for name in STORED}
        kept["grad"] = self._grad if self._grad is not None and self._grad.any() else None
        passed = self._saved
        kept["passed"] = passed and (passed.x, passed.state, passed.draws, passed.devices)
        kept["holds a graph"] = self in self.part.forward_settings.graphs
        kept["frozen"] = self.frozen
        return kept

    @classmethod
    def restored(cls, part: Part, kept: Mapping[str, Any]) -> Weights:
        """Make weights of the tensors that others of the same part have `stored`."""
        weights = cls(part, kept["flat"], kept["buffers"], kept["frozen"])
        for name in STORED:
            setattr(weights, name, kept[name])
        weights._grad = kept["grad"]
        if kept["passed"]:
            x, *before = kept["passed"]
            weights._saved = SavedForward(x, weights.flat._version, *before)
        if kept["holds a graph"]:
            part.forward_settings.graphs.admit(weights)  # as nothing else differs from a run that has never been stored
        return weights

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and views as in the `state_dict` of the part's layers, without torch's counters and tables."""
        part = self.part
        yield from zip(part.names, part.views(self.flat), strict=True)
        for i, (name, tensor) in enumerate(zip(part.frozen_names, self.frozen, strict=True)):
            if name not in part.constants or i in part.counters:
                yield name, tensor
        yield from zip(part.buffer_names, self.buffer_views, strict=True)


def _note(learned: dict[int, None], i: int, _leaf: Tensor) -> None:
    learned[i] = None


@dataclass(frozen=True)
class SavedForward:
    """Forward pass that awaits its gradient, with all that is needed to run it once more, to the bit.

    In addition to a graph this takes hardly more memory than the input.

    Attributes:
        x: input.
        version: number of changes of the parameters before the pass.
        state: buffers before the pass.
        draws, devices: random states of torch before the pass, of the CPU and of other devices. Those of numpy and of
            Python take 40 us: a layer that draws from them draws other numbers when it is computed again.
    """

    x: Tensor
    version: int
    state: BufferState
    draws: Tensor
    devices: tuple[list[int], list[Tensor]]

    @classmethod
    def now(cls, weights: Weights, x: Tensor) -> SavedForward:
        """Record a pass that is about to begin."""
        devices = ([], []) if x.device.type == "cpu" else get_device_states(x)  # which takes 40 us to find none
        return cls(x, weights.flat._version, weights.state, draws=torch.get_rng_state(), devices=devices)

    def again(self, weights: Weights) -> Tensor:
        """Compute the activations with their graph again: random draws repeat, and running statistics stay as they are.

        Raises:
            RuntimeError: the parameters have changed since.
        """
        if weights.flat._version != self.version:
            raise RuntimeError("weights have been modified by an inplace operation between forward and backward")
        with torch.random.fork_rng(self.devices[0], device_type=self.x.device.type):
            torch.set_rng_state(self.draws)
            set_device_states(*self.devices)
            return weights._again(weights.leaves, self.state, self.x)


def momentum_buffers(all_weights: Sequence[Weights]) -> list[Tensor]:
    """Return the momentum buffers: zeros of weights that have taken no step yet, no buffers if none have."""
    if all(weights.momentum is None for weights in all_weights):
        return []
    return [torch.zeros_like(w.flat) if w.momentum is None else w.momentum for w in all_weights]
