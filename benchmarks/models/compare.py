"""Whether the parts of a cut network compute what the whole network computes, forward and backward."""

import copy
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sfl_sim.errors import ScenarioError
from sfl_sim.models import zoo
from sfl_sim.models.weights import Weights

CLIENTS = 2
STEPS = 2
SAMPLES = 2
LR = 1e-3
LAST_BITS = 1e-4
"""Share of the largest number of a tensor up to which a difference is rounding: sums in another order."""
IN_DOUBLE = 2e-7
"""The same in float64."""
SMALL = 1e-2
"""Share of the largest gradient below which gradients are rounding alone, such as those of a bias before a norm."""
TOKENS = 50
"""Different tokens in samples; every vocabulary is larger."""

Seen = tuple[str, Tensor]
"""What is compared: its name, and its value."""


def compared(model: nn.Module, shape: Sequence[int], tokens: bool) -> dict[str, Any]:
    """Cut a network behind its first layer, in the middle and before its last, and hold the parts against the whole.

    Two clients take two steps, their passes interleaved, and evaluate. The other side is a deep copy of the module for
    each of them, which nothing has traced. Weights are drawn beforehand, since those that begin at zero hide errors.

    Returns:
        Outcome (`to the bit`, `last bits`, `wrong`, `refused`, or `unsteady`, where two copies of the whole differ),
        largest relative difference, what it says (where they differ, or the line of the refusal), number of layers, and
        names of the layers before the cuts.
    """
    _draw_weights(model)
    row = _compared(model, shape, tokens, torch.float32)
    if row["outcome"] == "wrong" and (largest := _in_double(model, shape, tokens)) <= IN_DOUBLE:
        row |= {"outcome": "last bits", "says": f"{row['says']}; {largest:.1e} in float64"}
    return row


def _in_double(model: nn.Module, shape: Sequence[int], tokens: bool) -> float:
    """Return the largest difference in float64, where what has grown from rounding in float32 is next to nothing."""
    try:
        return float(_compared(model, shape, tokens, torch.float64)["difference"] or 0)
    except Exception:  # whatever layers say that want float32
        return 1.0


def _compared(model: nn.Module, shape: Sequence[int], tokens: bool, dtype: torch.dtype) -> dict[str, Any]:
    batches = [[_samples(shape, tokens, seed) for seed in (step, step + STEPS)] for step in range(STEPS)]
    try:
        network = _network(model, batches[0][0], tokens, dtype)
        cuts = sorted({1, len(network) // 2, len(network) - 1} - {0, len(network)})
        if not cuts:
            raise ScenarioError("has one layer", key="model.factory", found=network.name)
        replicas = network.split(*cuts, seed=0, device=torch.device("cpu"))
    except ScenarioError as error:
        return {"outcome": "refused", "difference": "", "layers": "", "cut": "", "says": str(error)}
    layout = torch.channels_last if network.channels_last else torch.contiguous_format
    if dtype == torch.float64:
        model, batches = model.double(), [[x if tokens else x.double() for x in row] for row in batches]
    batches = [[x.contiguous(memory_format=layout) if x.ndim == 4 else x for x in row] for row in batches]
    expected = list(_history(_wholes(model, layout), batches))
    seen = list(_history([_Parts(model, [r.weights.copy() for r in replicas]) for _ in range(CLIENTS)], batches))
    difference, name = _largest_difference(expected, seen)
    outcome = "to the bit" if difference == 0 else "last bits" if difference <= LAST_BITS else "wrong"
    if difference and _largest_difference(expected, list(_history(_wholes(model, layout), batches)))[0]:
        outcome = "unsteady"
    return {
        "outcome": outcome,
        "difference": f"{difference:.1e}" if difference else "",
        "layers": len(network),
        "cut": " | ".join(network.layers[cut - 1].name for cut in cuts),
        "says": name if difference else "",
    }


def _network(model: nn.Module, x: Tensor, tokens: bool, dtype: torch.dtype) -> Any:
    """Make the network as a run of a scenario makes it, for labels of the shape that the output has."""
    out_shape: tuple[int, ...] = (TOKENS,)
    with torch.no_grad(), suppress(Exception):  # which the network says for itself below
        out_shape = tuple(_tensors(copy.deepcopy(model).eval()(x))[0].shape[1:])
    *positions, _ = out_shape
    every_token = tokens and len(positions) == 1
    labels, pixels = (out_shape[-1], ()) if every_token else (out_shape[0], out_shape[1:])
    network = zoo.network(
        model, tuple(x.shape[1:]), labels, dtype=dtype, tokens=tokens, every_token=every_token, pixels=pixels
    )
    network.functional()
    network.check_lending()
    return network


def _draw_weights(model: nn.Module) -> None:
    """Add noise to all weights and to the statistics of norms, so that each tensor has numbers of its own."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.data += 0.02 * torch.randn(weight.shape, generator=generator)
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            module.running_mean += 0.1 * torch.randn(module.running_mean.shape, generator=generator)
            module.running_var += 0.1 * torch.rand(module.running_var.shape, generator=generator)


def _samples(shape: Sequence[int], tokens: bool, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if tokens:
        return torch.randint(1, TOKENS, (SAMPLES, *shape), generator=generator)
    return torch.randn(SAMPLES, *shape, generator=generator)


def _tensors(output: object) -> list[Tensor]:
    """Return the tensors of an output; scores come first in what a model of transformers gives."""
    if isinstance(output, Tensor):
        return [output]
    if hasattr(output, "logits"):
        return [output.logits]
    values: Iterable[object] = output.values() if isinstance(output, dict) else output  # type: ignore[assignment]
    return [tensor for value in values if value is not None for tensor in _tensors(value)]


class _Whole:
    """A client with a module of its own, as PyTorch trains it."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.before = [buffer.clone() for _, buffer in _buffers(module)]

    def forward(self, x: Tensor) -> Tensor:
        self.output = _tensors(self.module.train()(x))[0]
        return self.output.detach()

    def backward(self, gradient: Tensor) -> None:
        self.output.backward(gradient)

    def gradients(self) -> Iterator[Seen]:
        for name, weight in self.module.named_parameters():
            yield name, torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()

    def buffers(self) -> Iterator[Seen]:
        """Yield those that have changed: others are what parts begin with, too."""
        for (name, buffer), before in zip(_buffers(self.module), self.before, strict=True):
            if not torch.equal(buffer, before):
                yield name, buffer.clone()

    @torch.no_grad()
    def step(self) -> None:
        for weight in self.module.parameters():
            if weight.grad is not None:
                weight -= LR * weight.grad
                weight.grad = None

    @torch.no_grad()
    def evaluated(self, x: Tensor) -> Tensor:
        return _tensors(self.module.eval()(x))[0]


class _Parts:
    """A client whose network is cut, as the simulator trains it."""

    def __init__(self, model: nn.Module, parts: Sequence[Weights]) -> None:
        self.parts = parts
        self.parameter_names = _names_of(model.named_parameters(), self._parameters(parts))
        self.buffer_names = _names_of(_buffers(model), self._buffers(parts))

    @staticmethod
    def _parameters(parts: Sequence[Weights]) -> list[Tensor]:
        return [view for weights in parts for view in weights.part.views(weights.flat)]

    @staticmethod
    def _buffers(parts: Sequence[Weights]) -> list[Tensor]:
        return [tensor for weights in parts for tensor in (*weights.frozen, *weights.buffer_views)]

    def forward(self, x: Tensor) -> Tensor:
        for index, weights in enumerate(self.parts):
            x = weights.forward(x.requires_grad_() if index else x)
        return x

    def backward(self, gradient: Tensor) -> None:
        for weights in reversed(self.parts):
            gradient = weights.backward(gradient)  # type: ignore[assignment]

    def gradients(self) -> Iterator[Seen]:
        views = [view for weights in self.parts for view in weights.part.views(weights.grad)]
        yield from ((name, view.clone()) for name, view in zip(self.parameter_names, views, strict=True))

    def buffers(self) -> Iterator[Seen]:
        yield from ((n, view.clone()) for n, view in zip(self.buffer_names, self._buffers(self.parts), strict=True))

    def step(self) -> None:
        for weights in self.parts:
            weights.flat -= LR * weights.grad
            weights.grad.zero_()

    @torch.no_grad()
    def evaluated(self, x: Tensor) -> Tensor:
        for weights in self.parts:
            x = weights(x, training=False)
        return x


def _buffers(module: nn.Module) -> list[Seen]:
    """Return buffers by name, but for batch norm's counter, which nothing reads."""
    return [(name, buffer) for name, buffer in module.named_buffers() if not name.endswith("num_batches_tracked")]


def _wholes(model: nn.Module, layout: torch.memory_format) -> list[_Whole]:
    return [_Whole(copy.deepcopy(model).to(memory_format=layout)) for _ in range(CLIENTS)]


def _names_of(named: Iterable[Seen], tensors: Iterable[Tensor]) -> list[str]:
    """Return the name that the whole network gives to each tensor, which is known by its numbers."""
    names = defaultdict(list)
    for name, tensor in named:
        names[_numbers(tensor)].append(name)
    return [(names[_numbers(tensor)] or ["?"]).pop(0) for tensor in tensors]


def _numbers(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


def _history(clients: Sequence[_Whole] | Sequence[_Parts], batches: Sequence[Sequence[Tensor]]) -> Iterator[Seen]:
    """Train the clients in turns, and yield all that can be seen."""
    for step, row in enumerate(batches):
        gradients = []
        for number, (client, x) in enumerate(zip(clients, row, strict=True)):
            _seed(number)
            output = client.forward(x.clone())
            yield f"output {step}.{number}", output
            yield f"random state {step}.{number}", torch.get_rng_state()
            noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(number), dtype=output.dtype)
            gradients.append(noise / len(output))
        for number, client in enumerate(clients):
            _seed(number)
            client.backward(gradients[number])
            yield f"random state backward {step}.{number}", torch.get_rng_state()
        for number, client in enumerate(clients):
            yield from ((f"gradient {step}.{number} {name}", value) for name, value in client.gradients())
            yield from ((f"buffer {step}.{number} {name}", value) for name, value in client.buffers())
            client.step()
    for number, (client, x) in enumerate(zip(clients, batches[0], strict=True)):
        yield f"evaluation .{number}", client.evaluated(x.clone())


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (which libraries use)


def _largest_difference(expected: Sequence[Seen], seen: Sequence[Seen]) -> tuple[float, str]:
    """Return the largest relative difference, 1 for what is missing, and the name of what is the first to differ."""
    known = dict(seen)
    largest, first, wrong = 0.0, "", ""
    scale = max((value.abs().max().item() for name, value in expected if name.startswith("gradient")), default=0.0)
    for name, value in expected:
        other = known.get(name)
        if other is None:
            difference = float(bool(value.any()))
        elif name.startswith("random"):
            difference = float(not torch.equal(value, other))
        elif value.shape != other.shape:
            difference = 1.0
        else:
            apart = torch.where((value == other) | (value.isnan() & other.isnan()), 0, (value - other).abs())
            least = SMALL * scale if name.startswith("gradient") else 1e-30
            difference = (apart.nan_to_num(torch.inf).max() / max(value.abs().max().item(), least)).item()
        first = first or name * (difference > 0)
        wrong = wrong or name * (difference > LAST_BITS)
        largest = max(largest, difference)
    return largest, wrong or first
