"""Whether two modules are trained alike: outputs, gradients, buffers and random draws, step by step."""

import copy
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sfl_sim.errors import in_short
from sfl_sim.models.global_draws import drawing
from sfl_sim.models.part import Part
from sfl_sim.models.plain_state import ReadError, attributes_of, changed, poison
from sfl_sim.models.weights import Weights

LAST_BITS = 1000
"""Largest difference that counts as rounding, in units of the last bit of a tensor's largest number."""
IN_DOUBLE = 100_000_000_000
"""The same in float64, 2e-5: a mistake that float32 shows, above 1e-4, is as large; what grows from rounding is not."""
NOTHING = 0.01
"""Share of the largest number of all tensors that counts as a tensor's largest if all of it is rounding."""
LEARNING_RATE = 0.1
"""By how much a step changes the weight with the largest gradient, if that is above 1: networks must not explode."""
GRADIENT = "the gradient of"
Tensors = Mapping[str, Tensor | None]
"""Tensors by name; None for a gradient that is none."""
Trained = Mapping[str, Tensors]
"""What came of a batch, by kind."""


class Learner(Protocol):
    """One client's model, which can be trained step by step."""

    def forward(self, x: Tensor, training: bool) -> Tensor:
        """Run a batch through the model; a graph waits for `backward` if it is training."""

    def backward(self, gradient: Tensor) -> None:
        """Compute the gradients of the last training batch, given the one at its output."""

    def gradients(self) -> Tensors:
        """Gradients by the parameter's name."""

    def state(self) -> Tensors:
        """Parameters and buffers by name."""

    def step(self) -> None:
        """Change the parameters by their gradients, which are none afterwards."""


class Alone(Learner):
    """A module that one client has for itself, in training mode at first as in anybody's own loop.

    Attributes:
        names: names of its parameters and buffers that are compared, and what they are called in the comparison.
        zeros: whether zeros are compared with a gradient that is none.
    """

    def __init__(self, module: nn.Module, names: Mapping[str, str], zeros: bool = False) -> None:
        self.module = module.train()
        self.names = names
        self.zeros = zeros
        self._initial = tensors_of(module).keys()
        self._mode, self._outputs = True, torch.empty(0)

    def forward(self, x: Tensor, training: bool) -> Tensor:
        if training != self._mode:
            self.module.train(training)
        self._mode = training
        outputs = answer_of(self.module(x.clone()))
        if training:
            self._outputs = outputs
        return outputs.detach()

    def backward(self, gradient: Tensor) -> None:
        if self._outputs.requires_grad:
            torch.autograd.backward(self._outputs, gradient)

    def gradients(self) -> Tensors:
        weights = {name: weight for name, weight in self._parameters().items() if name in self.names}
        none = {name: torch.zeros_like(w) for name, w in weights.items() if self.zeros and w.requires_grad}
        return {
            self.names[name]: none.get(name) if weight.grad is None else weight.grad for name, weight in weights.items()
        }

    def state(self) -> Tensors:
        held = self._parameters() | dict(self.module.named_buffers(remove_duplicate=False))
        return {
            self.names.get(name, name): tensor.detach()
            for name, tensor in held.items()
            if name in self.names or name not in self._initial
        }

    def step(self) -> None:
        gradients = {weight: weight.grad for weight in self.module.parameters() if weight.grad is not None}
        rate = _rate(gradients.values())
        for weight, gradient in gradients.items():
            weight.data -= gradient.mul_(rate)  # in its own memory, which is most of the time that a step takes
            weight.grad = None

    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.module.named_parameters(remove_duplicate=False))


class Lent(Learner):
    """The weights of one client, lent to parts that other clients use, too, one after another."""

    def __init__(self, weights: Sequence[Weights]) -> None:
        self.weights = weights

    def forward(self, x: Tensor, training: bool) -> Tensor:
        for weights in self.weights:
            if training:
                x = weights.forward(x.detach().requires_grad_(not weights.part.first))
            else:
                x = weights(x, training=False)
        return x

    def backward(self, gradient: Tensor) -> None:
        for weights in reversed(self.weights):
            gradient = weights.backward(gradient)  # type: ignore[assignment]
            if gradient is None:
                break

    def gradients(self) -> Tensors:
        pairs = (zip(w.part.names, w.part.views(w.grad), strict=True) for w in self.weights)
        return dict(chain.from_iterable(pairs))

    def state(self) -> Tensors:
        constants = (zip(w.part.frozen_names, w.frozen, strict=True) for w in self.weights)
        held = dict(chain.from_iterable((*constants, *(w.named_tensors() for w in self.weights))))
        return {name: tensor.clone() for name, tensor in held.items()}

    def step(self) -> None:
        rate = _rate([weights.grad for weights in self.weights])
        for weights in self.weights:
            weights.flat -= weights.grad.mul_(rate)
            weights.grad.zero_()


def lending_difference(
    modules: Sequence[nn.Sequential], parts: Sequence[Part], batches: Sequence[Tensor], last_bits: int = LAST_BITS
) -> str | None:
    """Say what clients whose weights are lent to the same parts do otherwise than each with a module; None if nothing.

    Args:
        modules: a whole network for each client, with weights of its own.
        parts: of the network, cut behind every layer.
        batches: one for each client, of at least two samples.
        last_bits: as `LAST_BITS`; 0: to the bit.
    """
    alone, lent = [], []
    held = {name for part in parts for name in (*part.names, *part.frozen_names, *part.buffer_names)}
    for module in modules:
        layers = copy.deepcopy(module)  # as frozen tensors stay where they are
        lent.append(Lent([Weights.of(part, layers[i : i + 1], batches[0].device) for i, part in enumerate(parts)]))
        if parts[0].channels_last:
            module.to(memory_format=torch.channels_last)
        alone.append(Alone(module, {name: name for name in held}, zeros=True))
    return first_difference(alone, lent, batches, last_bits)


def answer_of(outputs: Any) -> Tensor:
    """Return the tensor that a model answers: its output, its `logits`, or all of a tuple, list or dict but None.

    Raises TypeError for anything else.
    """
    if not isinstance(outputs, Tensor):
        named = outputs.get("logits") if isinstance(outputs, dict) else getattr(outputs, "logits", None)
        held = outputs.values() if isinstance(outputs, dict) else outputs if isinstance(outputs, list | tuple) else ()
        given = [value for value in held if value is not None]
        outputs = named if named is not None else given[0] if len(given) == 1 else outputs
    if not isinstance(outputs, Tensor):
        raise TypeError(f"gives a {type(outputs).__name__} and not one tensor")
    return outputs


def difference(whole: nn.Module, sequence: nn.Module, samples: Tensor, last_bits: int = LAST_BITS) -> str | None:
    """Say what `sequence` does otherwise than `whole`, whose tensors it holds; None if nothing.

    Copies of both are trained for three steps and evaluated after the last two, with equal random states: outputs,
    gradients, parameters, buffers, draws, and what a step leaves in an attribute for a later one, which nothing but
    the module itself can keep.

    Args:
        whole: a module that takes `samples`.
        sequence: another one, whose parameters and buffers are those of `whole`, under any names.
        samples: a batch of at least two, of random numbers or tokens.
        last_bits: as `LAST_BITS`; 0: to the bit.
    """
    names: dict[int, str] = {}
    for name, tensor in tensors_of(whole).items():
        names.setdefault(id(tensor), name)
    both = [
        (module, {name: names[id(tensor)] for name, tensor in tensors_of(module).items() if id(tensor) in names})
        for module in (whole, sequence)
    ]

    def compared(in_double: bool, last_bits: int) -> str | None:
        try:
            first, second = (
                Alone(copied.double() if in_double else copied, called)
                for copied, called in ((copy.deepcopy(module), called) for module, called in both)
            )
        except Exception as error:  # whatever a user's own attributes do
            return f"cannot be copied: {in_short(error)}"
        batch = samples.double() if in_double and samples.is_floating_point() else samples
        return first_difference([first], [second], [batch], last_bits)

    return unless_rounding(compared, last_bits)


def unless_rounding(compared: Callable[[bool, int], str | None], last_bits: int) -> str | None:
    """Say what differs, as `compared` does, given whether in float64, and the last bits that count; None if nothing.

    What differs in float32 and not in float64 is rounding that has grown, as norms over two samples divide by next to
    nothing.
    """
    problem = compared(False, last_bits)
    return problem if problem and (not last_bits or compared(True, IN_DOUBLE)) else None


def first_difference(
    alone: Sequence[Alone], others: Sequence[Learner], samples: Sequence[Tensor], last_bits: int = LAST_BITS
) -> str | None:
    """Say what `others` do otherwise than `alone`, one for each client, and first; None if nothing.

    All clients run forward before the first runs backward. A client's module may keep what it likes in attributes if it
    never reads it in a later step, or if it stays what it has been since the first step and is the same at all clients;
    if not, that is said, as the cause of any other difference.
    """
    left: list[list[dict[str, Any]]] = []
    problem = None
    for number, training in enumerate((True, True, False, True, False)):
        batches = [x.roll(number, 0).roll(number, -1) for x in samples]
        if number == 3:
            lasting = changed(left[0][0], left[1][0]) | {key for kept in left[1] for key in changed(left[1][0], kept)}
            for learner in alone:
                poison(learner.module, lasting)
        try:
            expected = _run(alone, batches, number, training)
        except ReadError as error:
            layer, _, name = str(error).rpartition(".")
            return (
                f"{f'layer {layer!r}' if layer else 'it'} reads its attribute {name!r}, which a step before has changed"
                f": make it a buffer, self.register_buffer({name!r}, torch.tensor(...))"
            )
        except Exception as error:  # whatever a user's own layers do
            return problem or f"fails in {_mode(training)} before it is cut: {in_short(error)}"
        if training:
            left.append([attributes_of(learner.module) for learner in alone])
        if problem is None:
            try:
                problem = _unlike(expected, _run(others, batches, number, training), last_bits)
            except Exception as error:
                problem = f"fails once it is cut: {in_short(error)}"
            problem = problem and f"{problem}, in {_mode(training)}"
        for trained in (*alone, *others) if training else ():
            trained.step()
    return problem


def _run(learners: Sequence[Learner], batches: Sequence[Tensor], seed: int, training: bool) -> list[Trained]:
    """Run a batch through each learner, and back; gives what came of it by kind, and at last the random states."""
    with drawing(seed), torch.set_grad_enabled(training):
        outputs = [learner.forward(x, training) for learner, x in zip(learners, batches, strict=True)]
        if training:
            for learner, out in zip(learners, outputs, strict=True):
                generator = torch.Generator().manual_seed(seed)
                learner.backward(torch.randn(out.shape, generator=generator, dtype=out.dtype).to(out.device))
        of_numpy = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
        draws = {"torch": torch.get_rng_state(), "numpy": _tensor([*of_numpy["key"], of_numpy["pos"]]),
                 "Python": _tensor(random.getstate()[1])}  # fmt: skip
    came: list[Trained] = [
        {"the output": {"": out}, GRADIENT: learner.gradients() if training else {}, "": learner.state()}
        for learner, out in zip(learners, outputs, strict=True)
    ]
    return [*came, {"the number of draws from": draws}]


def _unlike(expected: Sequence[Trained], seen: Sequence[Trained], last_bits: int) -> str | None:
    """Say which tensor that is expected is another one, or not there."""
    for right, other in zip(expected, seen, strict=True):
        if problem := _unlike_in(right, other, last_bits):
            return problem
    return None


def _unlike_in(right: Trained, other: Trained, last_bits: int) -> str | None:
    for kind, tensors in right.items():
        order = -1 if kind == GRADIENT else 1  # what goes wrong first in a pass goes on
        most: float | None = None  # of all tensors: found once, and only if some differ
        for name, tensor in list(tensors.items())[::order]:
            what, twin = f"{kind} {name!r}" if name else kind, other[kind].get(name)
            if tensor is None or twin is None:
                if tensor is not twin:
                    return f"{what.strip()} is {'not ' if twin is None else ''}there"
                continue
            if tensor.shape != twin.shape:
                return f"{what.strip()} has shape {list(twin.shape)} instead of {list(tensor.shape)}"
            if torch.equal(tensor, twin):
                continue
            apart, most = _apart(tensor, twin), max(map(_largest, tensors.values())) if most is None else most
            bit = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0
            if apart > last_bits * bit * max(_largest(tensor), NOTHING * most):
                return f"{what.strip()} differs by {apart:.3g}"
    return None


def _apart(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
    differ = (a != b) & ~(a.isnan() & b.isnan())
    return float((a - b)[differ].abs().nan_to_num(torch.inf).max()) if differ.any() else 0.0


def _largest(tensor: Tensor | None) -> float:
    if tensor is None or not tensor.numel():
        return 0.0
    if not tensor.is_complex():
        most = max(map(abs, torch.stack(tensor.detach().aminmax()).tolist()))  # one pass, and no copies
        if math.isfinite(most):
            return float(most)
    return float(tensor.abs().double().nan_to_num(0, 0).max())


def _rate(gradients: Iterable[Tensor]) -> float:
    return LEARNING_RATE / max([1.0, *map(_largest, gradients)])


def _mode(training: bool) -> str:
    return "training" if training else "evaluation"


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and buffers by name; one that is shared has several."""
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))


def _tensor(numbers: Any) -> Tensor:
    return torch.tensor(np.asarray(numbers, dtype=np.int64))
