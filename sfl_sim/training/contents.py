"""Contents of values and states as bytes and back, to the bit; reading them runs no code that they name."""

import math
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from sfl_sim.models.replica import Beforehand


class Unstorable(TypeError):
    """A content cannot be stored: a graph, or an object of an unknown type."""


def storable(content: Any) -> Any:
    """Return `content` in the form that `dump` takes: plain collections, and tensors that own all of their memory.

    A tensor that occurs twice stays one. Raises Unstorable.
    """
    return _storable(content, {})


def dump(content: Any) -> bytes:
    """Return `storable` content as bytes."""
    file = BytesIO()
    torch.save(content, file)
    return file.getvalue()


def load(stored: bytes) -> Any:
    """Return the content of bytes, its tensors on their devices and aligned as torch aligns them (decision 5).

    Raises the errors of `torch.load` for bytes that `dump` has not made, such as UnpicklingError and RuntimeError.
    """
    return torch.load(BytesIO(stored), weights_only=True)


def packed_bytes(packed: Any) -> int:
    """Count the bytes of what a value has `packed`: of tensors and of bytes; a boolean is a bit."""
    if isinstance(packed, Beforehand):
        return 0
    if isinstance(packed, Tensor):
        return math.ceil(packed.numel() / 8) if packed.dtype == torch.bool else packed.nbytes
    if isinstance(packed, bytes):
        return len(packed)
    return sum(map(packed_bytes, packed)) if isinstance(packed, list | tuple) else 0


def _storable(content: Any, tensors: dict[int, tuple[Tensor, Tensor]]) -> Any:
    """Return storable content; `tensors` holds tensors by id, with themselves so that no other one gets the id."""
    if isinstance(content, Tensor):
        if id(content) not in tensors:
            tensors[id(content)] = content, _alone(content)
        return tensors[id(content)][1]
    if content is None or isinstance(content, bool):
        return content
    for plain in (int, float, str):
        if isinstance(content, plain):
            return plain(content)  # of numpy's floats, too, which are no plain ones
    if isinstance(content, list | tuple):
        return (list if isinstance(content, list) else tuple)(_storable(item, tensors) for item in content)
    if isinstance(content, Mapping):
        return {_storable(key, tensors): _storable(value, tensors) for key, value in content.items()}
    raise Unstorable(f"objects of type {type(content).__name__} cannot be stored")


def _alone(tensor: Tensor) -> Tensor:
    """Return a tensor that is all of its memory, since torch stores the whole; a clone keeps the order of elements."""
    if tensor.requires_grad:
        raise Unstorable("a graph cannot be stored")
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
