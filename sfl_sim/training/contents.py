"""What values hold as JSON and arrays, and back to the bit: nothing is pickled, and no code is found by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BITS = {torch.bfloat16: torch.int16}
"""Types that numpy does not know, and those that their bits are stored as."""


class Unstorable(TypeError):
    """Something cannot be stored: a graph, or an object of a kind that nobody knows."""


class Encoder:
    """Gathers the arrays of what it encodes.

    Attributes:
        arrays: 1-d, by name, in the order in which the tensors' elements lie in memory.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self._told: dict[int, tuple[Tensor, Any]] = {}  # with the tensor, so that no other one gets its id

    def encode(self, content: Any) -> Any:
        """`content` as JSON, its tensors by their names. Raises Unstorable."""
        if content is None or isinstance(content, bool | int | float | str):
            return content
        if isinstance(content, Tensor):
            if id(content) not in self._told:
                self._told[id(content)] = content, self._tensor(content)
            return self._told[id(content)][1]
        if isinstance(content, list):
            return [self.encode(one) for one in content]
        if isinstance(content, tuple):
            return {"tuple": [self.encode(one) for one in content]}
        if isinstance(content, Mapping):
            return {"mapping": [[self.encode(key), self.encode(value)] for key, value in content.items()]}
        raise Unstorable(f"nobody knows how to store {type(content).__name__}")

    def _tensor(self, tensor: Tensor) -> Any:
        if tensor.requires_grad:
            raise Unstorable("a graph cannot be stored")
        name = str(len(self.arrays))
        dense = tensor if tensor.is_contiguous() else tensor.clone()  # which keeps strides, such as channels_last
        elements = dense.as_strided((dense.numel(),), (1,)).cpu()
        self.arrays[name] = elements.view(BITS.get(tensor.dtype, tensor.dtype)).numpy()
        dtype = str(tensor.dtype).removeprefix("torch.")
        return {"tensor": [name, dtype, list(dense.shape), list(dense.stride()), tensor.device.type]}


class Decoder:
    """Makes contents again of what an `Encoder` has told, on a device; what was one tensor is one again."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], device: torch.device) -> None:
        self._arrays = arrays
        self._device = device
        self._made: dict[str, Tensor] = {}

    def decode(self, told: Any) -> Any:
        """The content."""
        if isinstance(told, list):
            return [self.decode(one) for one in told]
        if not isinstance(told, dict):
            return told
        ((kind, about),) = told.items()
        if kind == "tensor":
            return self._tensor(*about)
        if kind == "tuple":
            return tuple(self.decode(one) for one in about)
        return {self.decode(key): self.decode(value) for key, value in about}

    def _tensor(self, name: str, dtype: str, shape: list[int], stride: list[int], where: str) -> Tensor:
        """In memory that torch has aligned, as the sums of its kernels depend on that (decision 5)."""
        if name not in self._made:
            elements = torch.from_numpy(np.array(self._arrays[name])).view(getattr(torch, dtype))
            device = "cpu" if where == "cpu" else self._device
            made = torch.empty_strided(shape, stride, dtype=elements.dtype, device=device)
            made.as_strided((made.numel(),), (1,)).copy_(elements)
            self._made[name] = made
        return self._made[name]
