"""What modules keep besides parameters and buffers: plain attributes, which all clients of one module would share."""

import random
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

OF_TORCH = frozenset(nn.Module().__dict__)
"""Attributes that every module has."""
AS_THEY_ARE = FunctionType | BuiltinFunctionType | ModuleType | type | torch.dtype | torch.device
"""What is compared as it is, and not by what it consists of."""
MISSING = object()
DEEPEST = 6
"""Number of containers and objects within one another that are looked into."""
OPERATIONS = (
    "add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "truediv", "rtruediv", "itruediv", "floordiv",
    "rfloordiv", "ifloordiv", "mod", "rmod", "imod", "pow", "rpow", "ipow", "matmul", "rmatmul", "imatmul", "and",
    "rand", "iand", "or", "ror", "ior", "xor", "rxor", "ixor", "lshift", "rshift", "neg", "pos", "abs", "invert", "lt",
    "le", "gt", "ge", "eq", "ne", "bool", "int", "float", "complex", "index", "len", "iter", "next", "contains",
    "getitem", "setitem", "delitem", "call", "enter", "hash", "str", "repr", "format", "getattr", "array",
    "torch_function",
)  # fmt: skip
"""What can be done with a value, as Python names it."""


class ReadError(RuntimeError):
    """A module has read what a step before has left in an attribute."""


class Left:
    """Stands in the place of what a step has left in an attribute; raises ReadError at any use."""

    def __init__(self, attribute: str) -> None:
        self.__dict__["attribute"] = attribute


def _refuse(self: Left, *_args: Any, **_kwargs: Any) -> Any:
    raise ReadError(self.__dict__["attribute"])


def _refuse_in_torch(_cls: type, _function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
    for given in (*args, *(kwargs or {}).values()):
        for value in given if isinstance(given, list | tuple) else [given]:
            if type(value) is Left:
                raise ReadError(value.__dict__["attribute"])
    raise ReadError("an attribute")


for operation in OPERATIONS:
    setattr(Left, f"__{operation}__", _refuse)
Left.__torch_function__ = classmethod(_refuse_in_torch)  # type: ignore[attr-defined]


def attributes_of(module: nn.Module) -> dict[str, Any]:
    """Return copies of all plain attributes of the modules in `module`, by `layer.attribute`."""
    known = {id(held): name for name, held in (*module.named_modules(), *module.named_parameters())}
    return {key: _copied(inner.__dict__[name], known) for key, inner, name in _slots(module)}


def has_shapes_alone(module: nn.Module) -> bool:
    """Return True if a plain attribute is a tensor without numbers, on the meta device."""
    return any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves(attributes_of(module)))


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """Return the names of attributes that are no longer what they were, or that have come or gone."""
    keys = before.keys() | after.keys()
    return {key for key in keys if not same(before.get(key, MISSING), after.get(key, MISSING))}


def poison(module: nn.Module, keys: set[str]) -> None:
    """Let any use of these attributes raise ReadError until they are set again."""
    for key, inner, name in list(_slots(module)):
        if key in keys:
            inner.__dict__[name] = Left(key)


def _slots(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    for path, inner in module.named_modules():
        for name in inner.__dict__:
            if name not in OF_TORCH:
                yield f"{path}.{name}" if path else name, inner, name


def _copied(value: Any, known: Mapping[int, str], depth: int = 0) -> Any:
    """Return what later changes in place of `value` do not reach; objects become their type and their attributes.

    Modules and parameters that a list holds, too, as in recurrent layers, become the names that are `known` of them.
    """
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return _copied(value.bit_generator.state, known, depth + 1)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, set):
        return set(value)
    if isinstance(value, weakref.ref):
        return _copied(value(), known, depth + 1)
    if isinstance(value, MethodType):  # which self.forward = self.fast_forward binds to each copy of a module
        return value.__func__
    if isinstance(value, AS_THEY_ARE) or depth == DEEPEST:
        return value
    if isinstance(value, list | tuple | deque):
        return [_copied(item, known, depth + 1) for item in value]
    if isinstance(value, dict):
        return {key: _copied(item, known, depth + 1) for key, item in value.items()}
    if not hasattr(value, "__dict__"):
        return value
    return type(value), _copied(vars(value), {**known, id(value): ""}, depth + 1)


def same(a: Any, b: Any) -> bool:
    """Return True for equal values, tensors and arrays to the bit."""
    if a is b:
        return True
    match a, b:
        case Tensor(), Tensor():
            alike = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
            return alike and (a.is_meta or torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)))
        case np.ndarray(), np.ndarray():
            return a.shape == b.shape and a.tobytes() == b.tobytes()
        case (list(), list()) | (tuple(), tuple()):
            return len(a) == len(b) and all(map(same, a, b))
        case dict(), dict():
            return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # whatever a user's own objects do
        return False
