"""Codecs: smaller codes of the tensors that cross the cut, each with its exact size (docs/methods/codecs.md)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

Shape = tuple[int, ...]
Code = tuple[Tensor, ...]

SCALE_BYTES = 8
"""Bytes of the step s and the place z of zero of a group of integers, four each."""


class Codec(BaseModel, ABC):
    """A codec without state: its fields are its options, as a scenario writes them beside `kind`.

    What the server trains on is `decode(encode(x))`; the gradient at it comes back through `pull`. A codec that sends
    only some elements need not get the gradient of the others: then `back` gives the shape of what comes back, and
    `select` takes it out of the whole gradient.

    A codec of your own gives at least `size_bytes`, `encode` and `decode`, and is named in a scenario as
    `wire: {up: {kind: "my_package.my_module:Signs", floor: 0.01}}`. A complete example: one bit per element, its sign,
    and one number for the mini-batch, the mean size. Its gradient passes where elements are not too large.

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

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
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

    def back(self, shape: Shape, dtype: torch.dtype) -> Shape:
        """Give the shape of the gradient that has to come back: by default that of x."""
        return shape

    def select(self, gradient: Tensor, code: Code) -> Tensor:
        """Select what has to come back of the gradient at the decoded tensor: by default all of it."""
        return gradient

    def pull(self, gradient: Tensor, code: Code, shape: Shape) -> Tensor:
        """Turn what came back into the gradient at x: by default itself (a straight-through estimator)."""
        return gradient

    def for_inference(self) -> Codec | None:
        """Give the codec that a trained model answers with, which draws nothing; None if it sends x as it is."""
        return self

    def alone(self, x: Tensor) -> Tensor:
        """Give the decoded samples of x (n, ...), each coded as a message of its own, without draws."""
        unused = np.random.default_rng(0)
        messages = [x] if self.samplewise else torch.split(x, 1)
        return torch.cat([self.decode(self.encode(one, unused), tuple(one.shape), one.dtype) for one in messages])


class _Float(Codec):
    """Elements in another floating type of 16 bits."""

    samplewise: ClassVar[bool] = True

    def size_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """Two bytes per element."""
        return 2 * math.prod(shape)

    def decode(self, code: Code, shape: Shape, dtype: torch.dtype) -> Tensor:
        """The same numbers in the type of x."""
        return code[0].to(dtype)


class Fp16(_Float):
    """Half precision, of numbers up to 65,504: larger ones become that."""

    def encode(self, x: Tensor, draw: np.random.Generator) -> Code:
        """Clamp and round; NaN stays NaN."""
        largest = torch.finfo(torch.float16).max
        return (x.float().half().clamp_(-largest, largest),)


class Bf16(_Float):
    """The range of float32 with 8 bits of precision."""

    def encode(self, x: Tensor, draw: np.random.Generator) -> Code:
        """Round."""
        return (x.float().bfloat16(),)


class Int(Codec):
    """Integers q of few bits: x is about (q - z) s, with a step s and a place z of zero for each group of elements.

    `bits`: 8, 4 or 2. `per`: one group for the whole tensor, or one for each channel (of images: the second dimension,
    otherwise the last one). `rounding`: to the nearest integer, or `stochastic`, up or down by lot, so that the mean
    is right.
    """

    bits: Literal[2, 4, 8] = 8
    per: Literal["tensor", "channel"] = "tensor"
    rounding: Literal["nearest", "stochastic"] = "nearest"
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

    def for_inference(self) -> Codec:
        """The same with rounding to the nearest."""
        return self.model_copy(update={"rounding": "nearest"})

    def alone(self, x: Tensor) -> Tensor:
        """All at once, with a group for every sample, or every channel of every sample."""
        kept = [0, _channels(tuple(x.shape))] if self.per == "channel" else [0]
        return self.decode(self._encode(x, kept, np.random.default_rng(0)), tuple(x.shape), x.dtype)

    def _encode(self, x: Tensor, kept: Sequence[int], draw: np.random.Generator) -> Code:
        """Code x with a group for every index of the dimensions `kept`."""
        x, most = x.to(_exact(x.dtype)), 2**self.bits - 1
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


def _exact(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in: at least float32."""
    return dtype if dtype == torch.float64 else torch.float32


def _in_memory_order(x: Tensor) -> Tensor:
    """All elements of x as a vector, without a copy if they lie side by side in any order of dimensions."""
    return x.permute(sorted(range(x.dim()), key=x.stride, reverse=True)).reshape(-1)


def _uniform(draw: np.random.Generator, like: Tensor) -> Tensor:
    """Draw from [0, 1), one number for each element."""
    return torch.from_numpy(draw.random(tuple(like.shape), dtype=np.float32)).to(like.device)


class TopK(Codec):
    """The k elements of each sample that are largest in size; all others are 0, and so are their gradients.

    `keep`: k as a share of the elements. `values`: as they are, or as fp16. Where all elements together take no more
    bytes than the largest ones with their places, all are kept.
    """

    keep: Annotated[float, Field(gt=0, le=1)] = 0.01
    values: Literal["exact", "fp16"] = "exact"
    samplewise: ClassVar[bool] = True

    def k(self, shape: Shape, dtype: torch.dtype) -> int:
        """The number of elements that are kept of each sample."""
        numel = math.prod(shape[1:])
        k, value_bytes = max(1, round(self.keep * numel)), self._value_bytes(dtype)
        return k if k * value_bytes + _places_bytes(k, numel) < numel * value_bytes else numel

    def size_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """The values, and their places as a list or a bitmap, whichever is smaller."""
        k, numel = self.k(shape, dtype), math.prod(shape[1:])
        return shape[0] * (k * self._value_bytes(dtype) + (_places_bytes(k, numel) if k < numel else 0))

    def encode(self, x: Tensor, draw: np.random.Generator) -> Code:
        """Give values (n, k) and places (n, k) in ascending order."""
        flat, k = x.flatten(1), self.k(tuple(x.shape), x.dtype)
        if k == flat.shape[1]:
            places = torch.arange(k, device=x.device).expand(len(x), k)
        else:
            places = self._places(flat.abs(), k, draw)
        values = flat.gather(1, places)
        return (Fp16().encode(values, draw)[0] if self.values == "fp16" else values), places

    def decode(self, code: Code, shape: Shape, dtype: torch.dtype) -> Tensor:
        """The values at their places, 0 elsewhere."""
        values, places = code
        return self.pull(values.to(dtype), (values, places), shape)

    def back(self, shape: Shape, dtype: torch.dtype) -> Shape:
        """The gradients of the values (n, k); their places are known."""
        return shape[0], self.k(shape, dtype)

    def select(self, gradient: Tensor, code: Code) -> Tensor:
        """The gradients at the places of the values."""
        return gradient.flatten(1).gather(1, code[1])

    def pull(self, gradient: Tensor, code: Code, shape: Shape) -> Tensor:
        """Each at its place, 0 elsewhere."""
        flat = gradient.new_zeros(shape[0], math.prod(shape[1:]))
        return flat.scatter_(1, code[1], gradient).view(shape)

    def _value_bytes(self, dtype: torch.dtype) -> int:
        return 2 if self.values == "fp16" else dtype.itemsize

    def _places(self, size: Tensor, k: int, draw: np.random.Generator) -> Tensor:
        """Choose k places (n, k) by the sizes (n, A)."""
        return _largest(size, k)


def _places_bytes(k: int, numel: int) -> int:
    """Bytes of k places among `numel`: a bit for each element, or an index for each place."""
    return min(math.ceil(numel / 8), math.ceil(k * math.ceil(math.log2(numel)) / 8)) if numel > 1 else 0


def _largest(size: Tensor, k: int) -> Tensor:
    """Places (n, k) of the k largest of each row (n, A), in ascending order; NaN is largest, of equal ones the first.

    torch does not say which of equal elements it chooses, so those at the border are chosen here.
    """
    found = torch.topk(size, k + 1)
    if bool((found.values[:, k - 1] > found.values[:, k]).all()):
        return found.indices[:, :k].sort(1).values
    size = size.masked_fill(size.isnan(), math.inf)
    border = torch.topk(size, k).values[:, -1:]
    above, at_border = size > border, size == border
    chosen = above | (at_border & (at_border.cumsum(1) <= k - above.sum(1, keepdim=True)))
    return chosen.nonzero()[:, 1].view(len(size), k)


class RandTopK(TopK):
    """Top-k that now and then lets another element take the place of one of the largest, in training.

    `alpha`: the probability with which a draw takes one of the others. k draws without replacement.
    """

    alpha: Annotated[float, Field(ge=0, lt=1)] = 0.1

    def for_inference(self) -> Codec:
        """Top-k."""
        return TopK(keep=self.keep, values=self.values)

    def _places(self, size: Tensor, k: int, draw: np.random.Generator) -> Tensor:
        """Let all elements race: those with the k smallest times E / p, with E from an exponential distribution."""
        top = _largest(size, k)
        if not self.alpha:
            return top
        times = torch.from_numpy(draw.standard_exponential(tuple(size.shape), dtype=np.float32)).to(size.device)
        times.div_(self.alpha / (size.shape[1] - k))
        slower = (self.alpha / (size.shape[1] - k)) / ((1 - self.alpha) / k)
        times.scatter_(1, top, times.gather(1, top).mul_(slower))
        times.masked_fill_(size.isfinite().logical_not_(), 0)  # what is not finite is always seen
        return torch.topk(times, k, largest=False, sorted=False).indices.sort(1).values


class SplitFC(Codec):
    """Some of the columns (features over the mini-batch), chosen by lot, the likelier the more they vary.

    A column that is sent with probability q is divided by q. `ratio`: elements of a sample over columns that are sent.
    `bits` of an element, with a step and a place of zero for each column; 32 for elements as they are.
    """

    ratio: Annotated[float, Field(ge=1)] = 16.0
    bits: Literal[2, 4, 8, 32] = 8

    def n_columns(self, shape: Shape) -> int:
        """D: the number of columns that are sent."""
        return max(1, round(math.prod(shape[1:]) / self.ratio))

    def size_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """The elements of D columns, and a bit for each column."""
        columns = shape[0], self.n_columns(shape)
        values = math.prod(columns) * dtype.itemsize if self.bits == 32 else self._inner.size_bytes(columns, dtype)
        return values + math.ceil(math.prod(shape[1:]) / 8)

    def encode(self, x: Tensor, draw: np.random.Generator) -> Code:
        """Give the columns' places (D,), their q (D,), and what their elements are coded as."""
        kept = keep_probabilities(_spread(x), self.n_columns(tuple(x.shape)))
        chosen = systematic_sample(kept, draw.random())
        places, q = torch.from_numpy(chosen).to(x.device), torch.from_numpy(kept[chosen]).to(x)
        values = x.flatten(1)[:, places].div_(q)
        if not bool(x.isfinite().all()):
            values.fill_(math.nan)
        return places, q, *([values] if self.bits == 32 else self._inner.encode(values, draw))

    def decode(self, code: Code, shape: Shape, dtype: torch.dtype) -> Tensor:
        """The columns at their places, 0 elsewhere."""
        places, _, *values = code
        columns = shape[0], len(places)
        sent = values[0] if self.bits == 32 else self._inner.decode(tuple(values), columns, dtype)
        return _at_columns(sent, places, shape)

    def back(self, shape: Shape, dtype: torch.dtype) -> Shape:
        """The gradients of the columns (n, D)."""
        return shape[0], self.n_columns(shape)

    def select(self, gradient: Tensor, code: Code) -> Tensor:
        """The gradients of the columns."""
        return gradient.flatten(1)[:, code[0]]

    def pull(self, gradient: Tensor, code: Code, shape: Shape) -> Tensor:
        """Each divided by its column's q, as the column was; 0 elsewhere."""
        places, q, *_ = code
        return _at_columns(gradient / q, places, shape)

    def for_inference(self) -> None:
        """One sample has no spread, and is sent as it is."""

    @property
    def _inner(self) -> Int:
        return Int(bits=self.bits, per="channel")  # type: ignore[arg-type]


def _at_columns(values: Tensor, places: Tensor, shape: Shape) -> Tensor:
    flat = values.new_zeros(shape[0], math.prod(shape[1:]))
    flat[:, places] = values
    return flat.view(shape)


def _spread(x: Tensor) -> NDArray[np.float64]:
    """Standard deviation (A,) of each column of x (n, ...), whose channel is scaled to [0, 1]; 0 if that is constant.

    The channels of images are their own; other tensors have one channel.
    """
    columns = x.flatten(1).to(_exact(x.dtype))
    lo, hi = columns.amin(0), columns.amax(0)
    n_channels = x.shape[1] if x.dim() == 4 else 1
    width = hi.view(n_channels, -1).amax(1) - lo.view(n_channels, -1).amin(1)
    spread = columns.std(0, correction=0).view(n_channels, -1) / width[:, None]
    spread[(hi == lo).view(n_channels, -1)] = 0
    found: NDArray[np.float64] = spread.nan_to_num(0, 0, 0).flatten().double().cpu().numpy()
    return found


def keep_probabilities(spread: NDArray[np.float64], n_columns: int) -> NDArray[np.float64]:
    """Give the probability q_j = min(1, c v_j) of each column, with c such that they add up to `n_columns` (D).

    Where at most D columns vary at all, these are certain, and the others share what is left.

        >>> keep_probabilities(np.array([4.0, 2, 1, 1]), 2)
        array([1.  , 0.5 , 0.25, 0.25])
    """
    varies = spread > 0
    if varies.sum() <= n_columns:
        rest = (n_columns - varies.sum()) / max(1, (~varies).sum())
        return np.where(varies, 1.0, rest).astype(float)
    falling = np.sort(spread)[::-1]
    remaining = np.cumsum(falling[::-1])[::-1]  # of this column and all that vary less
    factors = (n_columns - np.arange(n_columns)) / remaining[:n_columns]
    fixed = int(np.argmax(factors * falling[:n_columns] <= 1))  # so many columns are certain
    kept: NDArray[np.float64] = np.minimum(1.0, factors[fixed] * spread)
    return kept


def systematic_sample(kept: NDArray[np.float64], u: float) -> NDArray[np.int64]:
    """Choose column j with probability `kept[j]` (A,): exactly as many as these add up to, by one draw u from [0, 1).

    >>> systematic_sample(np.array([1, 0.5, 0.25, 0.25]), 0.6)
    array([0, 2])
    """
    ends = np.cumsum(kept)
    n_columns = round(ends[-1])
    chosen = np.unique(np.searchsorted(ends[:-1], u + np.arange(n_columns), side="right"))
    if len(chosen) < n_columns:  # rounding has put two points into a column that is certain
        others = np.setdiff1d(np.argsort(-kept, kind="stable"), chosen, assume_unique=True)
        chosen = np.sort(np.concatenate([chosen, others[: n_columns - len(chosen)]]))
    return chosen


class Delta(Codec):
    """Only the samples that have changed since their client sent them last; the others are what they were then.

    `theta`: a sample is sent where the cosine between it and what was sent last is below. `inner`: codec of the samples
    that are sent. `assume_sent`: their share in a run without training, which cannot know it; null: such a run is
    refused.
    """

    theta: float = 0.98
    inner: Codec | None = None
    assume_sent: Annotated[float, Field(ge=0, le=1)] | None = None

    def size_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """The bytes where all samples are sent, and a bit for each."""
        return self.sent_bytes(shape[0], shape, dtype)

    def sent_bytes(self, sent: int, shape: Shape, dtype: torch.dtype) -> int:
        """The bytes where so many of the samples are sent."""
        some = sent, *shape[1:]
        inner = self.inner.size_bytes(some, dtype) if self.inner else math.prod(some) * dtype.itemsize
        return math.ceil(shape[0] / 8) + (inner if sent else 0)

    def encode(self, x: Tensor, draw: np.random.Generator) -> Code:
        """Code all samples."""
        return self.inner.encode(x, draw) if self.inner else (x,)

    def decode(self, code: Code, shape: Shape, dtype: torch.dtype) -> Tensor:
        """The samples."""
        return self.inner.decode(code, shape, dtype) if self.inner else code[0]

    def for_inference(self) -> Codec | None:
        """Every sample is new, and coded by `inner`."""
        return self.inner and self.inner.for_inference()


CODECS: dict[str, type[Codec]] = {
    "fp16": Fp16,
    "bf16": Bf16,
    "int": Int,
    "topk": TopK,
    "randtopk": RandTopK,
    "splitfc": SplitFC,
    "delta": Delta,
}
"""The codecs by the `kind` that a scenario gives them."""
