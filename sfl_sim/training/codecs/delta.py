"""Only the samples that have changed."""

import math
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from sfl_sim.training.codecs.base import Code, Codec, Shape, of_raw, raw


class Delta(Codec):
    """Only the samples that have changed since their client sent them last; the others are what they were then."""

    theta: Annotated[float, Field(ge=-1, le=1)] = 0.98
    """Cosine between a sample and what was sent of it last, below which it is sent."""
    inner: Codec | None = None
    """Codec of the samples that are sent: a section; null: they are sent as they are."""
    assume_sent: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the samples that is sent in a run without training, which cannot know it; null: such a run is
    refused."""

    def size_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """The bytes where all samples are sent, and a bit for each."""
        return self.sent_bytes(shape[0], shape, dtype)

    def sent_bytes(self, sent: int, shape: Shape, dtype: torch.dtype) -> int:
        """The bytes where so many of the samples are sent."""
        some = sent, *shape[1:]
        inner = self.inner.size_bytes(some, dtype) if self.inner else math.prod(some) * dtype.itemsize
        return math.ceil(shape[0] / 8) + (inner if sent else 0)

    def encode(self, x: Tensor, draw: np.random.Generator) -> Code:
        return self.inner.encode(x, draw) if self.inner else (x,)

    def decode(self, code: Code, shape: Shape, dtype: torch.dtype) -> Tensor:
        return self.inner.decode(code, shape, dtype) if self.inner else code[0]

    def pack(self, code: Code, shape: Shape, dtype: torch.dtype) -> bytes:
        return self.inner.pack(code, shape, dtype) if self.inner else raw(code[0])

    def unpack(self, data: bytes, shape: Shape, dtype: torch.dtype) -> Code:
        return self.inner.unpack(data, shape, dtype) if self.inner else (of_raw(data, shape, dtype),)

    def for_inference(self) -> Codec | None:
        """Every sample is new, and coded by `inner`."""
        return self.inner and self.inner.for_inference()
