"""SplitFC: features that vary much are sent more often."""

import math
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from sfl_sim.training.codecs.base import Code, Codec, Shape, of_raw, raw
from sfl_sim.training.codecs.integers import Int, exact


class SplitFC(Codec):
    """Some of the columns (features over the mini-batch), chosen by lot, the likelier the more they vary.

    A column that is sent with probability q is divided by q.
    """

    ratio: Annotated[float, Field(ge=1)] = 16.0
    """Elements of a sample over columns that are sent."""
    bits: Literal[2, 4, 8, 32] = 8
    """Bits of an element, with a step and a zero point for each column; 32 for elements as they are."""

    def n_columns(self, shape: Shape) -> int:
        """D: the number of columns that are sent."""
        return max(1, round(math.prod(shape[1:]) / self.ratio))

    def size_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """The elements of D columns, and a bit for each column."""
        columns = shape[0], self.n_columns(shape)
        values = math.prod(columns) * dtype.itemsize if self.bits == 32 else self._inner.size_bytes(columns, dtype)
        return values + math.ceil(math.prod(shape[1:]) / 8)

    def encode(self, x: Tensor, draw: np.random.Generator) -> Code:
        """Give the columns' indices (D,), their q (D,), and what their elements are coded as."""
        kept = keep_probabilities(_spread(x), self.n_columns(tuple(x.shape)))
        chosen = systematic_sample(kept, draw.random())
        indices, q = torch.from_numpy(chosen).to(x.device), torch.from_numpy(kept[chosen]).to(x)
        values = x.flatten(1)[:, indices].div_(q)
        if not bool(x.isfinite().all()):
            values.fill_(math.nan)
        return indices, q, *([values] if self.bits == 32 else self._inner.encode(values, draw))

    def decode(self, code: Code, shape: Shape, dtype: torch.dtype) -> Tensor:
        """The columns at their indices, 0 elsewhere."""
        indices, _, *values = code
        columns = shape[0], len(indices)
        sent = values[0] if self.bits == 32 else self._inner.decode(tuple(values), columns, dtype)
        return _at_columns(sent, indices, shape)

    def pack(self, code: Code, shape: Shape, dtype: torch.dtype) -> bytes:
        """The elements, then a bit for each column."""
        indices, _, *values = code
        columns = shape[0], len(indices)
        sent = raw(values[0]) if self.bits == 32 else self._inner.pack(tuple(values), columns, dtype)
        marked = torch.zeros(math.prod(shape[1:]), dtype=torch.bool, device=indices.device)
        marked[indices] = True
        return sent + raw(marked)

    def unpack(self, data: bytes, shape: Shape, dtype: torch.dtype) -> Code:
        """The same, with 1 in place of every q."""
        numel, columns = math.prod(shape[1:]), (shape[0], self.n_columns(shape))
        n_map = math.ceil(numel / 8)
        indices = of_raw(data[-n_map:], (numel,), torch.bool).nonzero()[:, 0]
        sent = data[:-n_map]
        values = (of_raw(sent, columns, dtype),) if self.bits == 32 else self._inner.unpack(sent, columns, dtype)
        return indices, torch.ones(len(indices), dtype=dtype), *values

    def gradient_shape(self, shape: Shape, dtype: torch.dtype) -> Shape:
        return shape[0], self.n_columns(shape)

    def select(self, gradient: Tensor, code: Code) -> Tensor:
        return gradient.flatten(1)[:, code[0]]

    def pull(self, gradient: Tensor, code: Code, shape: Shape) -> Tensor:
        """Each divided by its column's q, as the column was; 0 elsewhere."""
        indices, q, *_ = code
        return _at_columns(gradient / q, indices, shape)

    def as_overheard(self, code: Code) -> Code:
        """With 1 in place of every q, which is not sent."""
        indices, q, *values = code
        return indices, torch.ones_like(q), *values

    def for_inference(self) -> None:
        """One sample has no spread, and is sent as it is."""

    @property
    def _inner(self) -> Int:
        return Int(bits=self.bits, per="channel")  # type: ignore[arg-type]


def _at_columns(values: Tensor, indices: Tensor, shape: Shape) -> Tensor:
    flat = values.new_zeros(shape[0], math.prod(shape[1:]))
    flat[:, indices] = values
    return flat.view(shape)


def _spread(x: Tensor) -> NDArray[np.float64]:
    """Standard deviation (A,) of each column of x (n, ...), whose channel is scaled to [0, 1]; 0 if that is constant.

    The channels of images are their own; other tensors have one channel.
    """
    columns = x.flatten(1).to(exact(x.dtype))
    lo, hi = columns.amin(0), columns.amax(0)
    n_channels = x.shape[1] if x.dim() == 4 else 1
    width = hi.view(n_channels, -1).amax(1) - lo.view(n_channels, -1).amin(1)
    spread = columns.std(0, correction=0).view(n_channels, -1) / width[:, None]
    spread[(hi == lo).view(n_channels, -1)] = 0
    normalised: NDArray[np.float64] = spread.nan_to_num(0, 0, 0).flatten().double().cpu().numpy()
    return normalised


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
