"""Objects as bytes between driver and nodes: what both sides have travels by its name."""

import io
import pickle
from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor

from sfl_sim.errors import ScenarioError
from sfl_sim.models.forward_settings import Graphs
from sfl_sim.models.weights import STORED, Weights

Name = tuple[str, int]
"""Of what the receiver has: whether it is a `thing` that has come from elsewhere or its `own`, and its key."""

OWN_PACKAGES = {"sfl_sim", "torch", "torchvision", "numpy", "collections", "pathlib"}
"""Whose classes and functions a node takes without asking."""
OF_BUILTINS = {"set", "frozenset", "complex", "slice", "range", "bytearray", "object"}


class ForeignCode(ScenarioError):
    """A message names code of a package that is not the simulator's own."""


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, name: Callable[[Any], Name | None]) -> None:
        super().__init__(file, protocol=5)
        self._name = name

    def persistent_id(self, obj: Any) -> Name | None:
        return self._name(obj)

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor:
            return _reduced(obj.detach())
        if isinstance(obj, Weights):
            return _weights, (obj.part, {key: value for key, value in obj.stored().items() if value is not None})
        if isinstance(obj, Graphs):  # every process counts its own
            return Graphs, (None if obj.limit == inf else obj.limit,)
        return NotImplemented


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, find: Callable[[Name], Any], allow_code: bool) -> None:
        super().__init__(file)
        self._find = find
        self._allow_code = allow_code

    def persistent_load(self, name: Name) -> Any:
        return self._find(name)

    def find_class(self, module: str, name: str) -> Any:
        package = module.partition(".")[0]
        is_known = name in OF_BUILTINS if module == "builtins" else package in OWN_PACKAGES
        if not (is_known or self._allow_code):
            raise ForeignCode(f"the run needs {module}.{name}; --allow-code lets a node run code that is not sfl-sim's")
        return super().find_class(module, name)


def written(obj: Any, name: Callable[[Any], Name | None] = lambda _: None) -> bytes:
    """Give an object as bytes; what has a `name` is written as that. Tensors are written as their elements."""
    file = io.BytesIO()
    _Writer(file, name).dump(obj)
    return file.getvalue()


def read(data: bytes, find: Callable[[Name], Any] = lambda name: name, allow_code: bool = False) -> Any:
    """Give the object that `written` has written; `find` gives what has a name.

    Raises ForeignCode if it names code of another package, unless that is allowed.
    """
    return _Reader(io.BytesIO(data), find, allow_code).load()


def _reduced(x: Tensor) -> Any:
    if x.device.type == "meta":
        return _shape_alone, (x.dtype, tuple(x.shape), x.stride())
    x = x.clone()  # which keeps the order of elements in memory, and leaves out gaps
    data = x.as_strided((x.numel(),), (1,)).view(torch.uint8).numpy(force=True).tobytes() if x.numel() else b""
    return _tensor, (data, x.dtype, tuple(x.shape), x.stride())


def _tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    x = torch.empty_strided(shape, stride, dtype=dtype)  # aligned as torch aligns its own: kernels depend on it
    if data:
        x.as_strided((x.numel(),), (1,)).copy_(torch.frombuffer(bytearray(data), dtype=dtype))
    return x


def _shape_alone(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _weights(part: Any, kept: dict[str, Any]) -> Weights:
    kept = dict.fromkeys((*STORED, "grad", "passed", "holds a graph", "frozen")) | kept
    return Weights.restored(part, kept)
