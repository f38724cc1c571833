"""The largest elements of each sample, and their indices."""

import math
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from sfl_sim.training.codecs.base import Code, Codec, Shape, in_bits, of_bits, of_raw, raw
from sfl_sim.training.codecs.floats import Fp16


class TopK(Codec):
    """The k elements of each sample that are largest in size; all others are 0, and so are their gradients.

    Where all elements together take no more bytes than the largest ones with their indices, all are kept.
    """

    keep: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Share of the elements of a sample that are kept."""
    values: Literal["exact", "fp16"] = "exact"
    """Values of these elements: as they are, or as fp16."""
    samplewise: ClassVar[bool] = True

    def k(self, shape: Shape, dtype: torch.dtype) -> int:
        """The number of elements that are kept of each sample."""
        numel = math.prod(shape[1:])
        k, value_bytes = max(1, round(self.keep * numel)), self._value_bytes(dtype)
        return k if k * value_bytes + _index_bytes(k, numel) < numel * value_bytes else numel

    def size_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """The values, and their indices as a list or a bitmap, whichever is smaller."""
        k, numel = self.k(shape, dtype), math.prod(shape[1:])
        return shape[0] * (k * self._value_bytes(dtype) + (_index_bytes(k, numel) if k < numel else 0))

    def encode(self, x: Tensor, draw: np.random.Generator) -> Code:
        """Give values (n, k) and indices (n, k) in ascending order."""
        flat, k = x.flatten(1), self.k(tuple(x.shape), x.dtype)
        if k == flat.shape[1]:
            indices = torch.arange(k, device=x.device).expand(len(x), k)
        else:
            indices = self._indices(flat.abs(), k, draw)
        values = flat.gather(1, indices)
        return (Fp16().encode(values, draw)[0] if self.values == "fp16" else values), indices

    def decode(self, code: Code, shape: Shape, dtype: torch.dtype) -> Tensor:
        """The values at their indices, 0 elsewhere."""
        values, indices = code
        return self.pull(values.to(dtype), (values, indices), shape)

    def pack(self, code: Code, shape: Shape, dtype: torch.dtype) -> bytes:
        """The values of all samples, then the indices of each."""
        values, indices = code
        k, numel = self.k(shape, dtype), math.prod(shape[1:])
        if k == numel:
            return raw(values)
        width = math.ceil(math.log2(numel))
        marked = torch.zeros(len(indices), numel, dtype=torch.bool, device=indices.device).scatter_(1, indices, True)
        is_map = _index_bytes(k, numel) == math.ceil(numel / 8)
        rows = map(raw, marked) if is_map else (in_bits(row, width) for row in indices.numpy(force=True))
        return raw(values) + b"".join(rows)

    def unpack(self, data: bytes, shape: Shape, dtype: torch.dtype) -> Code:
        k, numel, n = self.k(shape, dtype), math.prod(shape[1:]), shape[0]
        sent = torch.float16 if self.values == "fp16" else dtype
        n_bytes, row_bytes = n * k * sent.itemsize, _index_bytes(k, numel)
        values, rest = of_raw(data[:n_bytes], (n, k), sent), data[n_bytes:]
        if k == numel:
            return values, torch.arange(k).expand(n, k)
        rows = [rest[row_bytes * sample : row_bytes * (sample + 1)] for sample in range(n)]
        if row_bytes == math.ceil(numel / 8):
            marked = torch.stack([of_raw(row, (numel,), torch.bool) for row in rows]) if n else torch.empty(0, numel)
            return values, marked.nonzero()[:, 1].view(n, k)
        width = math.ceil(math.log2(numel))
        return values, torch.from_numpy(np.stack([of_bits(row, k, width) for row in rows]))

    def gradient_shape(self, shape: Shape, dtype: torch.dtype) -> Shape:
        """The gradients of the values (n, k); their indices are known."""
        return shape[0], self.k(shape, dtype)

    def select(self, gradient: Tensor, code: Code) -> Tensor:
        return gradient.flatten(1).gather(1, code[1])

    def pull(self, gradient: Tensor, code: Code, shape: Shape) -> Tensor:
        """Each at its index, 0 elsewhere."""
        flat = gradient.new_zeros(shape[0], math.prod(shape[1:]))
        return flat.scatter_(1, code[1], gradient).view(shape)

    def _value_bytes(self, dtype: torch.dtype) -> int:
        return 2 if self.values == "fp16" else dtype.itemsize

    def _indices(self, size: Tensor, k: int, draw: np.random.Generator) -> Tensor:
        """Choose k indices (n, k) by the sizes (n, A)."""
        return _largest(size, k)


def _index_bytes(k: int, numel: int) -> int:
    """Bytes of k indices among `numel`: a bit for each element, or a number for each index."""
    return min(math.ceil(numel / 8), math.ceil(k * math.ceil(math.log2(numel)) / 8)) if numel > 1 else 0


def _largest(size: Tensor, k: int) -> Tensor:
    """Indices (n, k) of the k largest of each row (n, A), in ascending order; NaN is largest, of equal ones the first.

    torch does not say which of equal elements it chooses, so those at the border are chosen here.
    """
    largest = torch.topk(size, k + 1)
    if bool((largest.values[:, k - 1] > largest.values[:, k]).all()):
        return largest.indices[:, :k].sort(1).values
    size = size.masked_fill(size.isnan(), math.inf)
    border = torch.topk(size, k).values[:, -1:]
    above, at_border = size > border, size == border
    chosen = above | (at_border & (at_border.cumsum(1) <= k - above.sum(1, keepdim=True)))
    return chosen.nonzero()[:, 1].view(len(size), k)


class RandTopK(TopK):
    """Top-k that now and then lets another element take the place of one of the largest, in training.

    These are k draws without replacement.
    """

    alpha: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Probability with which a draw takes one of the others."""

    def for_inference(self) -> Codec:
        return TopK(keep=self.keep, values=self.values)

    def _indices(self, size: Tensor, k: int, draw: np.random.Generator) -> Tensor:
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
