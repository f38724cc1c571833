"""Stacks: many replicas of one part as one computation, with weights as rows of matrices and layers under `vmap`.

`forward`, `backward` and `train` do for many replicas what the steps of those names do for one, up to rounding. The
replicas stay rows of their stack afterwards, so that the next step of the same group copies nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from sfl_sim.models.on_nan import rule_in_force
from sfl_sim.models.part import Part
from sfl_sim.models.replica import Replica
from sfl_sim.models.weights import Weights
from sfl_sim.training.grouped import ChannelsSideBySide, side_by_side
from sfl_sim.training.optimisers import Optimiser, Sgd

_REFUSALS: WeakKeyDictionary[Part, str | None] = WeakKeyDictionary()


def refusal(replica: Replica, x: Tensor) -> str | None:
    """Return the reason why replicas of this part cannot be stacked, or None; tried once, with a batch x (b, ...).

    Layers that draw random numbers or branch on values cannot, and those for which vmap has no rule (it warns) would
    take longer than one by one.
    """
    weights = replica.weights
    if weights.part not in _REFUSALS:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*performance drop")
                pair = Stack([weights, weights])
                pair.backward(torch.zeros_like(pair.forward(side_by_side([x, x]), keep_graph=True)).unbind())
            _REFUSALS[weights.part] = None
        except Exception as error:  # of any kind: layers that do not work at all will fail one by one, too
            _REFUSALS[weights.part] = str(error).split(". ")[0]
    return _REFUSALS[weights.part]


def forward(replicas: Sequence[Replica], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Compute the activations of each replica for its training batch (b, ...); their graph is kept for `backward`."""
    stack = Stack.of(replicas)
    _keep_statistics(replicas)
    graphs = stack.part.forward_settings.graphs
    keep_graph = all(graphs.admit(replica.weights) for replica in replicas)
    if not keep_graph:
        _release(replicas)
    return stack.forward(side_by_side(inputs), keep_graph).unbind()


def backward(replicas: Sequence[Replica], gradients: Sequence[Tensor], optimiser: Optimiser) -> None:
    """Run each replica's backward pass from the gradient at its activations, and its optimiser step."""
    pairs = list(zip(replicas, gradients, strict=True))
    together = [(replica, gradient) for replica, gradient in pairs if _waits_in_stack(replica.weights)]
    for replica, gradient in pairs:
        if not _waits_in_stack(replica.weights):  # its forward pass ran alone
            replica.weights.backward(gradient)
            optimiser.step(replica.weights)
    if together:
        replicas, gradients = zip(*together, strict=True)
        rows = [replica.weights for replica in replicas if _waits_in_stack(replica.weights)]
        stack = Stack.of(replicas)
        stack.passed = stack.passed or Pass.again(rows)
        stack.backward(gradients)
        _release(replicas)
        stack.step(optimiser, replicas)


def train(
    replicas: Sequence[Replica],
    inputs: Sequence[Tensor],
    labels: Sequence[Tensor],
    optimiser: Optimiser,
    share: float = 1.0,
) -> Sequence[Tensor | None]:
    """Run each replica's step on `share` times its batch's mean loss; gives the gradients at the inputs."""
    stack = Stack.of(replicas)
    _keep_statistics(replicas)
    gradients = stack.train(side_by_side(inputs), torch.stack(list(labels)), share)
    stack.step(optimiser, replicas)
    return gradients


def _keep_statistics(replicas: Iterable[Replica]) -> None:
    for replica in replicas:
        replica.weights.keep_statistics()


def _release(replicas: Iterable[Replica]) -> None:
    for replica in replicas:
        replica.part.forward_settings.graphs.release(replica.weights)


def _waits_in_stack(weights: Weights) -> TypeGuard[Row]:
    """Return True if it is a row that awaits the gradient of a forward pass of its stack."""
    return isinstance(weights, Row) and weights.stack is not None and weights.stack.passed is not None


class Row(Weights):
    """Weights of a replica as a row of a stack, until a forward or backward pass runs on this replica alone."""

    __slots__ = ("index", "stack")

    def __init__(self, stack: Stack, index: int) -> None:
        super().__init__(stack.part, stack.flat[index], stack.buffers[index], stack.frozen)
        self._grad = stack.grad[index]
        self.momentum = stack.momenta[index]
        self.stack: Stack | None = stack
        self.index = index

    def is_row(self, stack: Stack, index: int) -> bool:
        """Return True if it is row `index` of `stack`, with the momentum of the stack's last step."""
        return self.stack is stack and self.index == index and self.momentum is stack.momenta[index]

    def forward(self, x: Tensor) -> Tensor:
        """Leave the stack, so that steps of other rows do not change this graph, and run `Weights.forward`."""
        self._leave()
        return super().forward(x)

    def backward(self, gradient: Tensor) -> None:
        """Run `Weights.backward`, after the forward pass again for this row if it ran for the whole stack."""
        if _waits_in_stack(self):
            x, buffers = self.take_pass()
            self._leave()
            views = self.part.buffer_views(buffers)
            self.awaiting_gradient = self.part.call(self.leaves, self.frozen, views, x, training=True)
        super().backward(gradient)

    def stored(self) -> dict[str, Any]:
        """Return `Weights.stored` with the forward pass of the whole stack, since one row alone rounds differently."""
        return super().stored() | ({"passed": self.stack.passed} if _waits_in_stack(self) and self.stack else {})

    def take_pass(self) -> tuple[Tensor, Tensor]:
        """Return input (b, ...) and buffers (B,) of the stack's forward pass, to run it again for this row.

        The stack's graph is dropped, so that other rows run it again, too: it can be used for all rows only.
        """
        assert self.stack
        assert self.stack.passed
        self.stack.passed.activations = None
        return self.stack.passed.x[self.index], self.stack.passed.buffers[self.index]

    def _leave(self) -> None:
        if self.stack:
            momentum, others, statistics = self.momentum, self.beside_momentum, self.statistics
            super().__init__(self.part, self.flat.clone(), self.buffers.clone(), self.frozen)
            self.momentum = None if momentum is None else momentum.clone()
            self.beside_momentum = others
            self.statistics = statistics
            self.stack = None


@dataclass
class Pass:
    """Forward pass of a stack that awaits its gradients.

    Attributes:
        x: inputs (n, b, ...).
        buffers: (n, B), buffers before the pass.
        activations: result with its graph; None if the pass has to be run again for its backward pass.
    """

    x: Tensor
    buffers: Tensor
    activations: Tensor | None

    @classmethod
    def again(cls, rows: Sequence[Row]) -> Pass:
        """Join the forward passes of rows of several stacks, to run them again as one."""
        inputs, buffers = zip(*(row.take_pass() for row in rows), strict=True)
        return cls(side_by_side(inputs), torch.stack(buffers), None)


class Stack:
    """Weights of n replicas of one part, row by row.

    Attributes:
        part: part of all replicas.
        flat, grad, momentum: (n, P), the vectors (P,) of `Weights`.
        momenta: rows of `momentum`.
        buffers: (n, B).
        frozen: frozen parameters, which all replicas share.
        passed: forward pass whose gradients it awaits; None if there is none.
    """

    def __init__(self, weights: Sequence[Weights]) -> None:
        self.part = weights[0].part
        self.flat = torch.stack([w.flat for w in weights])
        self.grad = torch.zeros_like(self.flat)
        self.momentum: Tensor | None = None
        if any(w.momentum is not None for w in weights):  # to SGD, zeros are the same as none
            none = torch.zeros_like(self.flat[0])
            self.momentum = torch.stack([none if w.momentum is None else w.momentum for w in weights])
        self.momenta = self._momenta()
        self.buffers = torch.stack([w.buffers for w in weights])
        self.frozen = weights[0].frozen
        self.passed: Pass | None = None
        self._leaves = [view.detach().requires_grad_() for view in vmap(self.part.views)(self.flat)]
        self._leaf_grads = vmap(self.part.views)(self.grad)

    @classmethod
    def of(cls, replicas: Sequence[Replica]) -> Stack:
        """Return the stack of these replicas: that of their last step if it was the same group, else a new one."""
        weights = [replica.weights for replica in replicas]
        stack = weights[0].stack if isinstance(weights[0], Row) else None
        if (
            stack
            and len(weights) == len(stack.flat)
            and all(isinstance(w, Row) and w.is_row(stack, index) for index, w in enumerate(weights))
        ):
            return stack
        stack = cls(weights)
        for index, replica in enumerate(replicas):
            row = Row(stack, index)
            weights_before = replica.weights
            row.beside_momentum = weights_before.beside_momentum
            row.statistics = weights_before.statistics
            replica.content = row
        return stack

    def forward(self, x: Tensor, keep_graph: bool) -> Tensor:
        """Compute the activations (n, b, ...) of training batches x (n, b, ...)."""
        buffers = self.buffers.clone()
        with torch.set_grad_enabled(keep_graph):
            activations = self._layers(x, self.buffers)
        self.passed = Pass(x, buffers, activations if keep_graph else None)
        return activations.detach()

    def backward(self, gradients: Sequence[Tensor]) -> None:
        """Set `grad` from the gradients at the activations, (b, ...) each; None if there is nothing to train."""
        assert self.passed is not None, "backward without a forward"
        if not self._leaves:
            self.passed = None
            return
        activations = self.passed.activations
        if activations is None:
            activations = self._layers(self.passed.x, self.passed.buffers)
        self.passed = None
        self._differentiate(activations, side_by_side(gradients), [])

    def train(self, x: Tensor, labels: Tensor, share: float) -> Sequence[Tensor | None]:
        """Set `grad` from `share` times each batch's mean loss; gives the gradients at x (n, b, ...), None for data."""
        inputs = [] if self.part.first else [x.requires_grad_()]
        losses = share * vmap(self.part.loss)(self._layers(x, self.buffers), labels)
        rule_in_force().see(losses)
        gradients = self._differentiate(losses.sum(), None, inputs)
        return gradients[0].unbind() if gradients else [None] * len(x)

    def step(self, optimiser: Optimiser, replicas: Sequence[Replica]) -> None:
        """Run an optimiser step of all rows, which are `replicas`."""
        # A rule may need a replica as a whole, for example its norm.
        if type(optimiser) is not Sgd or optimiser.rule or optimiser.clip_norm or rule_in_force().skips:
            for replica in replicas:
                optimiser.step(replica.weights)
            return
        optimiser.step(self)  # type: ignore[arg-type]  # which needs flat, grad and momentum only
        if self.momentum is not None and self.momenta[0] is None:
            self.momenta = self._momenta()
            for replica, momentum in zip(replicas, self.momenta, strict=True):
                replica.weights.momentum = momentum

    def _momenta(self) -> Sequence[Tensor | None]:
        return [None] * len(self.flat) if self.momentum is None else self.momentum.unbind()

    def _layers(self, x: Tensor, buffers: Tensor) -> Tensor:
        """Run the layers, which change `buffers`.

        They get contiguous copies: vmap's batch norm silently fails to update others.
        """

        def call(parameters: list[Tensor], buffers: list[Tensor], x: Tensor) -> Tensor:
            return self.part.call(parameters, self.frozen, buffers, x, training=True)

        views = vmap(self.part.buffer_views)(buffers)
        copies = [view.clone(memory_format=torch.contiguous_format) for view in views]
        with ChannelsSideBySide(), sdpa_kernel(SDPBackend.MATH):  # vmap has no rule for other kinds of attention
            activations: Tensor = vmap(call)(self._leaves, copies, x)
        for view, copy in zip(views, copies, strict=True):
            view.copy_(copy)
        return activations

    def _differentiate(self, outputs: Tensor, gradients: Tensor | None, inputs: list[Tensor]) -> Sequence[Tensor]:
        """Set `grad`, and return the gradients at `inputs`."""
        computed = torch.autograd.grad(outputs, [*self._leaves, *inputs], gradients, materialize_grads=True)
        for target, gradient in zip(self._leaf_grads, computed, strict=False):
            target.copy_(gradient)
        return computed[len(self._leaves) :]
