"""What a codec is: the base class, and how to write one of your own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor

Shape = tuple[int, ...]
Code = tuple[Tensor, ...]


def raw(tensor: Tensor) -> bytes:
    """Give the elements of a tensor as bytes, in their order whatever its layout; booleans as bits."""
    if tensor.dtype == torch.bool:
        return np.packbits(tensor.numpy(force=True)).tobytes()
    return tensor.contiguous().view(-1).view(torch.uint8).numpy(force=True).tobytes() if tensor.numel() else b""


def raw_bytes(numel: int, dtype: torch.dtype) -> int:
    """Count the bytes of so many elements in `raw`."""
    return math.ceil(numel / 8) if dtype == torch.bool else numel * dtype.itemsize


def of_raw(data: bytes, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Give the tensor of a shape whose elements `raw` has given, in memory of its own."""
    if dtype == torch.bool:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=math.prod(shape))
        return torch.from_numpy(bits.astype(bool)).view(shape)
    return (
        torch.frombuffer(bytearray(data), dtype=dtype).view(shape).clone() if data else torch.empty(shape, dtype=dtype)
    )


def in_bits(numbers: NDArray[np.int64], bits: int) -> bytes:
    """Give whole numbers (n,) of so many bits one after another."""
    one_by_one = (numbers.reshape(-1, 1) >> np.arange(bits)) & 1
    return np.packbits(one_by_one.astype(np.uint8)).tobytes()


def of_bits(data: bytes, n: int, bits: int) -> NDArray[np.int64]:
    """Give the `n` numbers that `in_bits` has written."""
    one_by_one = np.unpackbits(np.frombuffer(data, np.uint8), count=n * bits).reshape(n, bits)
    return one_by_one.astype(np.int64) @ (1 << np.arange(bits))


class Codec(BaseModel, ABC):
    """A codec without state: its fields are its options, as a scenario writes them beside `kind`.

    The docstring under a field describes it in `sfl-sim list codecs` and in the docs.

    What the server trains on is `decode(encode(x))`; the gradient at it comes back through `pull`. A codec that sends
    only some elements need not get the gradient of the others: then `gradient_shape` is that of what comes back, and
    `select` takes it out of the whole gradient.

    A codec of your own gives at least `size_bytes`, `encode` and `decode`, and is named in a scenario as
    `wire: {up: {kind: "my_package.my_module:Signs", floor: 0.01}}`. A complete example: one bit per element, its sign,
    and one number for the mini-batch, the mean size. Its gradient passes where elements are not too large.

        >>> import math
        >>> import torch
        >>> from sfl_sim.training.codecs import Codec
        >>> class Signs(Codec):
        ...     floor: float = 0.0  # an option, checked as all keys of a scenario are
        ...
        ...     def size_bytes(self, shape, dtype):  # of a message, whatever it holds: it is priced without training
        ...         return math.ceil(math.prod(shape) / 8) + 4
        ...
        ...     def encode(self, x, draw):  # `draw` is a numpy generator of this message's own; a tuple of tensors
        ...         return x >= 0, x.abs().mean().clamp(min=self.floor)
        ...
        ...     def decode(self, code, shape, dtype):
        ...         positive, size = code
        ...         return torch.where(positive, size, -size).to(dtype)
        ...
        ...     def pull(self, gradient, code, shape):  # at decode(encode(x)), to the gradient at x; by default itself
        ...         _, size = code
        ...         return gradient.clamp(-size, size)
        >>> signs, x = Signs(), torch.tensor([[1.0, -2.0, 0.0], [3.0, -4.0, 2.0]])
        >>> code = signs.encode(x, None)
        >>> signs.decode(code, x.shape, x.dtype).tolist()
        [[2.0, -2.0, 2.0], [2.0, -2.0, 2.0]]
        >>> signs.size_bytes(x.shape, x.dtype)
        5
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)
    layerwise: ClassVar[bool] = False
    """Whether an update of a model is coded layer tensor by layer tensor, each as a message; else all as one sample."""
    samplewise: ClassVar[bool] = False
    """Whether samples do not matter to each other's codes."""

    @abstractmethod
    def size_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """Give the bytes of the code of a tensor (n, ...), exactly, without knowing its contents."""

    @abstractmethod
    def encode(self, x: Tensor, draw: np.random.Generator) -> Code:
        """Code the tensor x (n, ...) of one message; equal draws give equal codes."""

    @abstractmethod
    def decode(self, code: Code, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Give the tensor that a code stands for. Where x is not finite, it is NaN, as far as the codec groups x."""

    def pack(self, code: Code, shape: Shape, dtype: torch.dtype) -> bytes:
        """Give the bytes in which a code crosses a link: by default its tensors one after another, booleans as bits."""
        return b"".join(map(raw, code))

    def unpack(self, data: bytes, shape: Shape, dtype: torch.dtype) -> Code:
        """Give the code at its receiver: by default tensors like those that zeros of this shape are coded as."""
        like, code = self.encode(torch.zeros(shape, dtype=dtype), np.random.default_rng(0)), []
        for tensor in like:
            n_bytes = raw_bytes(tensor.numel(), tensor.dtype)
            code.append(of_raw(data[:n_bytes], tuple(tensor.shape), tensor.dtype))
            data = data[n_bytes:]
        return tuple(code)

    def gradient_shape(self, shape: Shape, dtype: torch.dtype) -> Shape:
        """Give the shape of the gradient that has to come back: by default that of x."""
        return shape

    def select(self, gradient: Tensor, code: Code) -> Tensor:
        """Select what has to come back of the gradient at the decoded tensor: by default all of it."""
        return gradient

    def pull(self, gradient: Tensor, code: Code, shape: Shape) -> Tensor:
        """Turn what came back into the gradient at x: by default itself (a straight-through estimator)."""
        return gradient

    def as_overheard(self, code: Code) -> Code:
        """Give the code for `pull` as others have it, in place of what stays at the sender: by default all of it."""
        return code

    def for_inference(self) -> Codec | None:
        """Give the codec that a trained model answers with, which draws nothing; None if it sends x as it is."""
        return self

    def decode_each_alone(self, x: Tensor) -> Tensor:
        """Give the decoded samples of x (n, ...), each coded as a message of its own, without draws."""
        unused = np.random.default_rng(0)
        messages = [x] if self.samplewise else torch.split(x, 1)
        return torch.cat([self.decode(self.encode(x, unused), tuple(x.shape), x.dtype) for x in messages])
