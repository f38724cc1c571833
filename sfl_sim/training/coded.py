"""Values that travel coded: their size is that of the code, and what a step loads is what its receiver decodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sfl_sim.models.part import Part
from sfl_sim.models.replica import Bundle, Replica
from sfl_sim.ops import State, Step, Value
from sfl_sim.rng import stream
from sfl_sim.training.codecs import Code, Codec, Shape

Draw = tuple[int, str, *tuple[int, ...]]
"""What a message draws from: the seed of the run, a name, and the round, the client, ..."""


class Coded(Value):
    """A message whose tensors are coded, each by itself.

    Nothing is computed before a step loads it; then the codes are kept, for the gradient that comes back.

    Args:
        payload: its content is a tensor, or a tuple that begins with the tensors that are coded.
        codec: of the tensors.
        shapes: of the tensors (n, ...).
        dtype: of the tensors.
        draw: names the random draws.
    """

    __slots__ = ("_codes", "codec", "draw", "dtype", "made_of", "shapes")

    def __init__(self, payload: Value, codec: Codec, shapes: Sequence[Shape], dtype: torch.dtype, draw: Draw) -> None:
        size_bytes = payload.size_bytes - dtype.itemsize * sum(map(math.prod, shapes))
        size_bytes += sum(codec.size_bytes(shape, dtype) for shape in shapes)
        super().__init__(payload.kind, size_bytes, samples=payload.samples, step=payload.step, content=payload.content)
        self.maker = payload.maker
        self.made_of = [payload]
        self.codec = codec
        self.shapes = shapes
        self.dtype = dtype
        self.draw = draw
        self._codes: dict[int, Code] = {}

    def __repr__(self) -> str:
        return f"{super().__repr__()} by {self.codec!r}, {self.draw}"

    def code(self, place: int) -> Code:
        """Give the code of the tensor at `place`: the same one every time."""
        if place not in self._codes:
            content = self.made_of[0].load()
            x = content if isinstance(content, Tensor) else content[place]
            self._codes[place] = self.codec.encode(x, stream(*self.draw, place))
        return self._codes[place]

    def load(self) -> Any:
        """Give the payload with decoded tensors, laid out in memory as they were."""
        content = self.made_of[0].load()
        tensors = [content] if isinstance(content, Tensor) else content
        decoded = [
            laid_out(self.codec.decode(self.code(place), shape, self.dtype), tensors[place])
            for place, shape in enumerate(self.shapes)
        ]
        return decoded[0] if isinstance(content, Tensor) else (*decoded, *content[len(decoded) :])


class CodedGradient(Value):
    """The gradient at a message, on its way back: only of what the message's codec has sent, and coded itself.

    Args:
        payload: the whole gradient at what the receiver has decoded.
        message: whose first tensor it is the gradient of, if that was coded; else None.
        shape, dtype: of the gradient.
        codec: of what comes back; None: it comes as it is.
        draw: names the random draws.
    """

    __slots__ = ("codec", "draw", "dtype", "made_of", "message", "shape")

    def __init__(
        self,
        payload: Value,
        message: Coded | None,
        shape: Shape,
        dtype: torch.dtype,
        codec: Codec | None,
        draw: Draw,
    ) -> None:
        back = message.codec.back(shape, dtype) if message else shape
        size_bytes = codec.size_bytes(back, dtype) if codec else dtype.itemsize * math.prod(back)
        super().__init__(payload.kind, size_bytes, samples=payload.samples, step=payload.step, content=payload.content)
        self.maker = payload.maker
        self.made_of = [payload, message] if message else [payload]
        self.message = message
        self.shape = shape
        self.dtype = dtype
        self.codec = codec
        self.draw = draw

    def __repr__(self) -> str:
        return f"{super().__repr__()} by {self.codec!r}, {self.draw}"

    def load(self) -> Tensor:
        """Give the gradient at what was coded, as it was before that."""
        whole: Tensor = self.made_of[0].load()
        gradient, through = whole, self.message
        if through:
            gradient = through.codec.select(gradient, through.code(0))
        if self.codec:
            code = self.codec.encode(gradient, stream(*self.draw))
            gradient = self.codec.decode(code, tuple(gradient.shape), self.dtype)
        if through:
            gradient = through.codec.pull(gradient, through.code(0), self.shape)
        return laid_out(gradient, whole)


def laid_out(x: Tensor, like: Tensor) -> Tensor:
    """Give x in the memory layout of another tensor of its shape: the last bit of what follows may depend on it."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)


class Update(Bundle):
    """A trained model on its way up, of which the difference to what its client has downloaded travels, coded.

    Its copy is the model that arrives. Floating buffers, and a velocity, travel as they are.

    Args:
        model: the client's copy, trained.
        base: the same as it was downloaded.
        codec: of the difference.
        draw: names the random draws.
        error: what the client's earlier updates have lost and this one makes good; None: nothing is made good.
    """

    __slots__ = ("codec", "draw", "error")

    def __init__(
        self, model: Replica | Bundle, base: Replica | Bundle, codec: Codec, draw: Draw, error: State | None
    ) -> None:
        super().__init__([model, base, *([error] if error else [])])  # type: ignore[list-item]
        self.codec = codec
        self.draw = draw
        self.error = error
        self.size_bytes = model.size_bytes
        for replica in _replicas(model):
            part = replica.part
            sizes = [codec.size_bytes((1, numel), part.dtype) for numel in self._numels(part)]
            self.size_bytes += sum(sizes) - part.n_parameters * part.dtype.itemsize

    def __repr__(self) -> str:
        return f"{super().__repr__()} by {self.codec!r}, {self.draw}"

    def snapshot(self) -> Any:
        """Make the model that arrives: what was downloaded, and the decoded difference."""
        model, base = self.members[:2]
        arrived = model.snapshot()
        arrived.size_bytes = self.size_bytes
        differences = iter(self.differences())
        for replica, begun in zip(_replicas(arrived), _replicas(base), strict=True):
            if replica.content is None or not replica.part.shapes:
                continue
            pieces = [next(differences)[1].flatten() for _ in self._numels(replica.part)]
            views = replica.part.views(replica.weights.flat)
            learned = torch.split(torch.cat(pieces), [view.numel() for view in views])
            for view, old, new in zip(views, replica.part.views(begun.weights.flat), learned, strict=True):
                torch.add(old, new.view(old.shape), out=view)
        return arrived

    def differences(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Give the difference in each message (1, m), earlier errors included, and what arrives of it."""
        errors = iter(self.error.content or ()) if self.error else iter(())
        number = 0
        for trained, begun in zip(*map(_replicas, self.members[:2]), strict=True):
            if trained.content is None or not trained.part.shapes:
                continue
            vectors = [_flat(replica) for replica in (trained, begun)]
            whole = vectors[0] - vectors[1]
            for difference in torch.split(whole, self._numels(trained.part)):
                difference = difference[None] + next(errors, 0)
                code = self.codec.encode(difference, stream(*self.draw, number))
                yield difference, self.codec.decode(code, tuple(difference.shape), difference.dtype)
                number += 1

    def _numels(self, part: Part) -> list[int]:
        """Count the elements of each message: of each layer's tensor, or of all parameters."""
        numels = [math.prod(shape) for shape in part.shapes]
        return numels if self.codec.layerwise or not numels else [part.n_parameters]


def _replicas(model: Any) -> list[Replica]:
    return model.replicas if isinstance(model, Bundle) else list(model.members)


def _flat(replica: Replica) -> Tensor:
    """All parameters (P,), without the gaps between them."""
    views = replica.part.views(replica.weights.flat)
    return torch.cat([view.reshape(-1) for view in views])


class KeepError(Step):
    """Remember what an update that has arrived has lost."""

    name = "error"

    def run(self, error: State, update: Update) -> None:
        """Set the content to the lost part (1, m) of each message."""
        error.content = [difference - arrived for difference, arrived in update.differences()]
