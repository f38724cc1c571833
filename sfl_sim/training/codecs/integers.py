"""Elements as integers of few bits."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from sfl_sim.training.codecs.base import Code, Codec, Shape, in_bits, of_bits, of_raw, raw

SCALE_BYTES = 8
"""Bytes of the step s and the zero point z of a group of integers, four each."""


class Int(Codec):
    """Integers q of few bits: x is about (q - z) s, with a step s and a zero point z for each group of elements.

    A group whose range float32 cannot hold becomes NaN.
    """

    bits: Literal[2, 4, 8] = 8
    """Bits of an element."""
    per: Literal["tensor", "channel"] = "tensor"
    """Groups: the whole tensor, or each channel (of images: the second dimension, otherwise the last one)."""
    rounding: Literal["nearest", "stochastic"] = "nearest"
    """Rounding: to the nearest integer, or up or down by lot, so that the mean is right except at the ends of the
    range."""
    layerwise: ClassVar[bool] = True

    def size_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """`bits` per element, and s and z per group."""
        groups = shape[_channels(shape)] if self.per == "channel" else 1
        return math.ceil(math.prod(shape) * self.bits / 8) + SCALE_BYTES * groups

    def encode(self, x: Tensor, draw: np.random.Generator) -> Code:
        """Give q - z, like x, and s and z, which broadcast to it."""
        kept = [_channels(tuple(x.shape))] if self.per == "channel" else []
        return self._encode(x, kept, draw)

    def decode(self, code: Code, shape: Shape, dtype: torch.dtype) -> Tensor:
        """(q - z) s."""
        from_zero, s, _ = code
        return (from_zero * s).to(dtype)

    def pack(self, code: Code, shape: Shape, dtype: torch.dtype) -> bytes:
        """The integers q, and s and z of every group."""
        from_zero, s, z = code
        return in_bits((from_zero + z).nan_to_num().long().numpy(force=True), self.bits) + raw(s) + raw(z.float())

    def unpack(self, data: bytes, shape: Shape, dtype: torch.dtype) -> Code:
        groups = [size if self.per == "channel" and dim == _channels(shape) else 1 for dim, size in enumerate(shape)]
        groups = groups if self.per == "channel" else []
        n_scale = SCALE_BYTES // 2 * math.prod(groups)
        q = torch.from_numpy(of_bits(data[: -2 * n_scale], math.prod(shape), self.bits)).view(shape)
        s, z = (of_raw(part, tuple(groups), torch.float32) for part in (data[-2 * n_scale : -n_scale], data[-n_scale:]))
        return (q - z).to(exact(dtype)), s, z

    def for_inference(self) -> Codec:
        return self.model_copy(update={"rounding": "nearest"})

    def decode_each_alone(self, x: Tensor) -> Tensor:
        """All at once, with a group for every sample, or every channel of every sample."""
        kept = [0, _channels(tuple(x.shape))] if self.per == "channel" else [0]
        return self.decode(self._encode(x, kept, np.random.default_rng(0)), tuple(x.shape), x.dtype)

    def _encode(self, x: Tensor, kept: Sequence[int], draw: np.random.Generator) -> Code:
        """Code x with a group for every index of the dimensions `kept`."""
        x, most = x.to(exact(x.dtype)), 2**self.bits - 1
        reduced = [dim for dim in range(x.dim()) if dim not in kept]
        if not kept:
            lo, hi = torch.aminmax(_in_memory_order(x))
        elif reduced:
            lo, hi = x.amin(reduced, keepdim=True), x.amax(reduced, keepdim=True)
        else:  # every element is a group
            lo = hi = x
        lo, hi = lo.clamp(max=0), hi.clamp(min=0)  # so that 0 is exact
        s = ((hi - lo) / most).float()
        s = torch.where(s == 0, torch.ones_like(s), s)
        s = torch.where(s.isfinite(), s, torch.full_like(s, math.nan))
        z = (-lo / s).round()
        from_zero = x / s
        if self.rounding == "nearest":
            from_zero.round_()
        else:
            from_zero.add_(_uniform(draw, from_zero)).floor_()
        torch.maximum(from_zero, -z, out=from_zero)  # clamping by tensors takes twenty times as long
        torch.minimum(from_zero, most - z, out=from_zero)
        return from_zero, s, z


def _channels(shape: Shape) -> int:
    """The dimension of channels: the second one of images (n, C, H, W), else the last one."""
    return 1 if len(shape) == 4 else len(shape) - 1


def exact(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in: at least float32."""
    return dtype if dtype == torch.float64 else torch.float32


def _in_memory_order(x: Tensor) -> Tensor:
    """All elements of x as a vector, without a copy if they lie side by side in any order of dimensions."""
    return x.permute(sorted(range(x.dim()), key=x.stride, reverse=True)).reshape(-1)


def _uniform(draw: np.random.Generator, like: Tensor) -> Tensor:
    """Draw from [0, 1), one number for each element."""
    return torch.from_numpy(draw.random(tuple(like.shape), dtype=np.float32)).to(like.device)
