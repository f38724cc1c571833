"""Elements in floating types of 16 bits."""

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sfl_sim.training.codecs.base import Code, Codec, Shape


class _Float(Codec):
    """Elements in another floating type of 16 bits."""

    samplewise: ClassVar[bool] = True

    def size_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        return 2 * math.prod(shape)

    def decode(self, code: Code, shape: Shape, dtype: torch.dtype) -> Tensor:
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
        return (x.float().bfloat16(),)
