"""Values that travel coded: their size is that of the code, and what a step loads is what its receiver decodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sfl_sim.models.part import Part
from sfl_sim.models.replica import Bundle, Joined, Replica, Weights
from sfl_sim.ops import State, Value
from sfl_sim.rng import stream
from sfl_sim.training.codecs import Code, Codec, Shape

Ids = tuple[int, ...]
"""What identifies a message's random draws: the seed of the run, the round, the client, ..."""


class Coded(Value):
    """A message whose tensors are coded, each by itself.

    Nothing is computed before a step loads it; then the code is kept, for the gradient that comes back through it.

    Args:
        payload: what is sent: a tensor, or a tuple that begins with the tensors that are coded.
        codec: of the tensors.
        shapes: of the tensors (n, ...).
        dtype: of the tensors.
        name, ids: of the stream of random draws.
    """

    __slots__ = ("_codes", "codec", "dtype", "ids", "made_of", "name", "shapes")

    def __init__(
        self, payload: Value, codec: Codec, shapes: Sequence[Shape], dtype: torch.dtype, name: str, ids: Ids
    ) -> None:
        size_bytes = payload.size_bytes - dtype.itemsize * sum(map(math.prod, shapes))
        size_bytes += sum(codec.size_bytes(shape, dtype) for shape in shapes)
        super().__init__(payload.kind, size_bytes, payload.samples, payload.step, payload.content)
        self.maker = payload.maker
        self.made_of: Sequence[Value] = (payload,)
        self.codec = codec
        self.shapes = shapes
        self.dtype = dtype
        self.name = name
        self.ids = ids
        self._codes: dict[int, Code] = {}

    def code(self, place: int = 0) -> Code:
        """Give the code of the tensor at `place`; the same one every time."""
        if place not in self._codes:
            self._codes[place] = self.codec.encode(self._tensors()[place], self._draw(place))
        return self._codes[place]

    def load(self) -> Any:
        """Give the payload with decoded tensors, laid out in memory as they were."""
        tensors = self._tensors()
        decoded = [
            laid_out(self.codec.decode(self.code(place), shape, self.dtype), tensors[place])
            for place, shape in enumerate(self.shapes)
        ]
        return decoded[0] if isinstance(self.made_of[0].load(), Tensor) else (*decoded, *tensors[len(decoded) :])

    def _tensors(self) -> Sequence[Any]:
        content = self.made_of[0].load()
        return [content] if isinstance(content, Tensor) else content

    def _draw(self, place: int) -> Any:
        seed, *ids = self.ids
        return stream(seed, self.name, *ids, place)


class CodedGradient(Value):
    """The gradient at a message, on its way back: only of what the message's codec has sent, and coded itself.

    Args:
        payload: the whole gradient at what the receiver has decoded.
        message: the message if it was coded, else None.
        place: of the tensor in the message.
        shape, dtype: of the gradient.
        codec: of what comes back; None: it comes as it is.
        name, ids: of the stream of random draws.
    """

    __slots__ = ("codec", "dtype", "ids", "made_of", "message", "name", "place", "shape")

    def __init__(
        self,
        payload: Value,
        message: Coded | None,
        place: int,
        shape: Shape,
        dtype: torch.dtype,
        codec: Codec | None,
        name: str,
        ids: Ids,
    ) -> None:
        back = message.codec.back(shape, dtype) if message else shape
        size_bytes = codec.size_bytes(back, dtype) if codec else dtype.itemsize * math.prod(back)
        super().__init__(payload.kind, size_bytes, payload.samples, payload.step, payload.content)
        self.maker = payload.maker
        self.made_of: Sequence[Value] = (payload, message) if message else (payload,)
        self.message = message
        self.place = place
        self.shape = shape
        self.dtype = dtype
        self.codec = codec
        self.name = name
        self.ids = ids

    def load(self) -> Tensor:
        """Give the gradient at what was coded, before it was coded."""
        whole: Tensor = self.made_of[0].load()
        gradient = whole
        if self.message:
            gradient = self.message.codec.select(gradient, self.message.code(self.place))
        if self.codec:
            seed, *ids = self.ids
            code = self.codec.encode(gradient, stream(seed, self.name, *ids))
            gradient = self.codec.decode(code, tuple(gradient.shape), self.dtype)
        if self.message:
            gradient = self.message.codec.pull(gradient, self.message.code(self.place), self.shape)
        return laid_out(gradient, whole)


def laid_out(x: Tensor, like: Tensor) -> Tensor:
    """Give x in the memory layout of another tensor of its shape, on which the last bit of what follows may depend."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)
