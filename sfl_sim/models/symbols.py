"""What stands for a value in a forward that is followed."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, fx, nn
from torch.overrides import is_tensor_method_or_property

IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "iand", "ior", "ixor", "ipow", "setitem")
OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift", "lt",
    "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert", "getitem", *IN_PLACE,
)  # fmt: skip


DRAWN = {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal}
"""Functions without samples that belong into the graph, since they give something else every time."""
SIZED = "expand", "repeat", "tile", "view", "reshape", "new_zeros", "new_ones", "new_full", "new_empty"
"""Methods of tensors that take numbers, such as that of samples."""
READING = (("torch.utils.checkpoint", "_make_saved_tensor"),
           ("torch._functorch.eager_transforms", "grad_increment_nesting"),
           ("torch._functorch.eager_transforms", "jvp_increment_nesting"),
           ("torch", "to_dlpack"), ("torch.utils.dlpack", "to_dlpack"))  # fmt: skip
"""Functions of torch that take a symbol for a tensor, or begin something that does, and read memory that it has not."""


class Notes(Protocol):
    """Who notes what is done with values.

    Attributes:
        is_computing: True while values are computed, and nothing is noted.
    """

    is_computing: bool

    def call(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Note the call of a module, or follow it."""

    def attribute(self, owner: nn.Module, value: Any) -> Any:
        """Return what stands for an attribute that a module holds as parameter, buffer or module."""

    def note(self, op: str, target: Any, args: Any, kwargs: Any = None) -> Any:
        """Note an operation, as a node of torch.fx names it, and return what stands for its result."""

    def is_same(self, value: Symbol, tensor: Tensor | None) -> bool:
        """Return True if a value is a tensor of the module, changed in place at most."""

    def answer(self, value: Symbol, ask: Callable[[Any], Any]) -> Any:
        """Return what Python asks of a value that steers a forward."""

    def fail(self, problem: str) -> NoReturn:
        """Say that a forward cannot be followed."""


class Symbol:
    """What stands for a value in a forward: every use is noted in the graph, and computed for two examples.

    It passes for an instance of the value's type.
    """

    def __init__(self, following: Notes, node: fx.Node) -> None:
        self.__dict__.update(following=following, node=node)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.node.meta["examples"][0])

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        following = next(symbols_in((args, kwargs))).following
        if is_tensor_method_or_property(function):
            return following.note("call_method", function.__name__, args, kwargs)
        return following.note("call_function", function, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        known = getattr(self.node.meta["examples"][0], name)  # or AttributeError, as it would be
        if callable(known):
            return lambda *args, **kwargs: self.following.note("call_method", name, (self, *args), kwargs)
        return self.following.note("call_function", getattr, (self, name))

    def __setattr__(self, name: str, value: object) -> None:
        self.following.fail(f"sets {name!r} of a tensor")

    def __iter__(self) -> Iterator[Any]:
        return iter([self.following.note("call_function", operator.getitem, (self, i)) for i in range(len(self))])

    def __len__(self) -> int:
        return int(self.following.answer(self, len))

    def __bool__(self) -> bool:
        return bool(self.following.answer(self, bool))

    def __int__(self) -> int:
        return int(self.following.answer(self, int))

    def __float__(self) -> float:
        return float(self.following.answer(self, float))

    def __index__(self) -> int:
        return int(self.following.answer(self, operator.index))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"Symbol({self.node})"


def _operation(name: str, swapped: bool = False) -> Callable[..., Any]:
    function = getattr(operator, name)

    def noted(self: Symbol, *others: Any) -> Any:
        return self.following.note("call_function", function, (*others, self) if swapped else (self, *others))

    return noted


for _name in OPERATORS:
    setattr(Symbol, f"__{_name.rstrip('_')}__", _operation(_name))
    setattr(Symbol, f"__r{_name.rstrip('_')}__", _operation(_name, swapped=True))


def symbols_in(value: Any) -> Iterator[Symbol]:
    """Yield what stands for values in arguments."""
    if type(value) is Symbol:
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from symbols_in(item)
    elif isinstance(value, Mapping):
        yield from symbols_in(list(value.values()))
    elif isinstance(value, slice):
        yield from symbols_in((value.start, value.stop, value.step))


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what torch.fx can write a call of: a function of C has no module."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return called


@contextmanager
def patched(following: Notes) -> Iterator[None]:
    """Let calls of modules, their tensors, and functions of torch ask `following` first.

    Functions would ask symbols themselves, but for those that make tensors of sizes; and some take a symbol that passes
    for a tensor for a number, and read memory that it does not have.
    """
    call, attribute, given = nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__
    apply, run_script = vars(torch.autograd.Function)["apply"], torch.jit.ScriptFunction.__call__
    loaded = [(sys.modules[module], name) for module, name in READING if hasattr(sys.modules.get(module), name)]
    reading = [(module, name, getattr(module, name)) for module, name in loaded]
    functions = {name: getattr(torch, name) for name in {*dir(torch._C._VariableFunctions), "tensor", "finfo", "iinfo"}
                 if name in torch.__dict__ and not name.startswith("_")}  # fmt: skip

    def has_symbols(*values: Any) -> bool:
        return not following.is_computing and any(True for _ in symbols_in(values))

    def noting(maker: Callable[..., Any], method: str | None = None) -> Callable[..., Any]:
        @functools.wraps(maker)
        def made(*args: Any, **kwargs: Any) -> Any:
            if has_symbols(args, kwargs) or (maker in DRAWN and not following.is_computing):
                return following.note("call_method" if method else "call_function", method or maker, args, kwargs)
            return maker(*args, **kwargs)

        return made

    def refusing(reader: Callable[..., Any], function: str) -> Callable[..., Any]:
        def read(*args: Any, **kwargs: Any) -> Any:
            if not following.is_computing:
                following.fail(f"uses {function}")
            return reader(*args, **kwargs)

        return read

    def applied(kind: type[torch.autograd.Function], *args: Any) -> Any:
        function = apply.__get__(None, kind)
        return function(*args) if following.is_computing else following.note("call_function", _plain(function), args)

    def run(called: Any, *args: Any, **kwargs: Any) -> Any:
        function = run_script.__get__(called)
        if has_symbols(args, kwargs):
            return following.note("call_function", _plain(function), args, kwargs)
        return function(*args, **kwargs)

    def put(self: nn.Module, name: str, value: Any) -> None:
        if type(value) is not Symbol or name not in self._buffers:
            given(self, name, value)
        elif not following.is_same(value, self._buffers[name]):  # as self.steps += 1 is
            following.note("call_method", "copy_", (self._buffers[name], value))

    asked: Any = nn.Module
    script: Any = torch.jit.ScriptFunction
    asked.__call__ = lambda self, *args, **kwargs: following.call(self, call, args, kwargs)
    asked.__setattr__ = put
    asked.__getattr__ = lambda self, name: following.attribute(self, attribute(self, name))
    torch.autograd.Function.apply, script.__call__ = classmethod(applied), run
    for module, name, reader in reading:
        setattr(module, name, refusing(reader, f"{module.__name__}.{name}"))
    for name in SIZED:
        setattr(torch.Tensor, name, noting(getattr(torch.Tensor, name), name))
    for name, maker in functions.items():
        setattr(torch, name, noting(maker))
    try:
        yield
    finally:
        asked.__call__, asked.__getattr__, asked.__setattr__ = call, attribute, given
        torch.autograd.Function.apply, script.__call__ = apply, run_script
        for module, name, reader in reading:
            setattr(module, name, reader)
        for name in SIZED:
            delattr(torch.Tensor, name)
        for name, maker in functions.items():
            setattr(torch, name, maker)
