"""Python objects as values of a scenario: arrays become lists, and all else a text that stands for the object.

A text has a digest of the object's content, of code by its instructions and what they refer to, so that equal objects
in another process or on another day are the same trial, which earlier runs may have finished.
"""

import dis
import hashlib
import os
import pickle
import sys
import sysconfig
from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any
from uuid import uuid4

from pydantic import BaseModel

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import of_any_tier
from sfl_sim.scenario.own_code import CODE, DATA, hand_over, keep_object

SAMPLES, HOLDINGS = "data.factory", "data.partition"
"""Keys at which an object is data: samples with their labels, or what each client holds of them."""
OBJECTS = {
    SAMPLES, f"{HOLDINGS}.file", "model.factory", "method", "method.name", "server.order", "train.on_round_end",
    "train.loss", "train.optimizer", "train.server.optimizer", "train.schedule", "train.schedule.kind",
    "clients.choice", "clients.choice.kind", "model.cut.by", "servers.*.order", "servers.*.clients",
}  # fmt: skip
"""Keys at which an object may stand for a text, besides the metrics."""
METRICS = "report.metrics."


def as_yaml(value: Any, key: str = "") -> Any:
    """Return the value for a dotted key of a scenario as YAML could hold it.

    Arrays, tensors and the columns of a frame become lists; an index says which client a row is of. A function or class
    at the top level of a module becomes its path; any other object a text with its digest, under which this process
    keeps it.
    """
    if key == HOLDINGS and (isinstance(value, list | tuple) or hasattr(value, "tolist")):
        return {"kind": "indices", "file": _kept(value, "indices", DATA)}
    if key == HOLDINGS and callable(value):
        return {"kind": "indices", "file": as_yaml(value, f"{key}.file")}
    if key == SAMPLES and not (value is None or isinstance(value, str) or callable(value)):
        return _kept(value, "samples", DATA)
    if isinstance(value, Mapping):
        return {name: _below(inner, key, name) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_yaml(inner, key) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "iloc"):
        return _by_client(value, key)
    if hasattr(value, "tolist"):
        return value.tolist()
    is_plain = value is None or isinstance(value, str | int | float | BaseModel)
    if is_plain or not (of_any_tier(key) in OBJECTS or key.startswith(METRICS)):
        return value
    return _path_of(value) or _kept(value, getattr(value, "__name__", type(value).__name__).strip("<>"), CODE)


def _by_client(table: Any, key: str) -> Any:
    """Return the values of a pandas object as lists, in the order of the clients that its index numbers from 0 on.

    A frame's column `client` takes the place of its index. Raises ScenarioError if there is no such order.
    """
    if hasattr(table, "columns") and "client" in table.columns:
        table = table.set_index("client")
    clients = [int(text) if (text := str(label)).isdecimal() else label for label in table.index]
    if set(clients) != set(range(len(clients))):
        problem = "has an index that does not number the clients from 0 on; reset_index(drop=True) takes rows in turn"
        raise ScenarioError(problem, key=key, found=", ".join(map(str, clients[:5])))
    table = table.iloc[sorted(range(len(clients)), key=clients.__getitem__)]
    return table.to_dict("list") if hasattr(table, "columns") else table.tolist()


def _below(value: Any, key: str, name: Any) -> Any:
    """Spell out the value at a key of a section; a list at a key of the grid holds the key's values."""
    if key == "grid" and isinstance(value, list):
        return [as_yaml(choice, str(name)) for choice in value]
    return as_yaml(value, str(name) if key in ("", "grid") else f"{key}.{name}")


def _path_of(thing: object) -> str | None:
    """Return the path by which every process can import a function or class; None if there is no such path."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    home = sys.modules.get(str(module))
    if not (callable(thing) and name) or (module == "__main__" and not hasattr(home, "__file__")):  # in a notebook
        return None
    try:
        if attrgetter(name)(home) is not thing:
            return None
    except AttributeError:
        return None
    path = f"{module}:{name}"
    hand_over(path)
    return path


def _kept(thing: object, name: str, kind: str) -> str:
    text = f"{kind}{name}-{_digest(thing)}"
    keep_object(text, thing)
    return text


class _Digester(pickle.Pickler):
    """Writes an object's content for a digest: tensors by their numbers, a user's own code by its instructions, with
    the functions, classes and values that they refer to.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.written: dict[int, tuple[Any, int]] = {}
        """Own code by id, with itself so that nothing else gets the id, and its number: code may refer to itself."""

    def reducer_override(self, thing: Any) -> Any:
        """Return what is written for a part of the object."""
        if type(thing).__module__.partition(".")[0] == "torch" and hasattr(thing, "detach"):
            return _content, (str(thing.dtype), tuple(thing.shape), thing.detach().cpu().contiguous().numpy())
        if isinstance(thing, ModuleType):
            return _content, (thing.__name__,)
        if isinstance(thing, staticmethod | classmethod):
            return _content, (thing.__func__,)
        if isinstance(thing, property):
            return _content, (thing.fget, thing.fset)
        if isinstance(thing, cached_property):
            return _content, (thing.func,)
        if not (isinstance(thing, FunctionType | type) and _is_own(thing)):
            return NotImplemented
        if id(thing) in self.written:
            return _content, (self.written[id(thing)][1],)
        self.written[id(thing)] = thing, len(self.written)
        if isinstance(thing, FunctionType):
            cells = [cell.cell_contents for cell in thing.__closure__ or ()]
            code = thing.__code__
            used = {name: thing.__globals__[name] for name in _names(code) if name in thing.__globals__}
            return _content, (_instructions(code), thing.__defaults__, thing.__kwdefaults__, cells, used)
        own = {
            name: each
            for name, each in vars(thing).items()
            if isinstance(each, FunctionType) or not (name.startswith("__") or name == "_abc_impl")
        }
        return _content, (thing.__bases__, own)


def _is_own(thing: Any) -> bool:
    """Return True for a function or class that neither Python, nor sfl-sim, nor an installed package has brought."""
    place = getattr(sys.modules.get(thing.__module__), "__file__", None)
    if thing.__module__.partition(".")[0] in ("builtins", "sfl_sim"):
        return False
    if place is None or "<" in thing.__qualname__:
        return True
    return not any(Path(place).is_relative_to(installed) for installed in sysconfig.get_paths().values())


def _content(*parts: object) -> None:
    """Stand for content in the stream of a digest, which is never read."""


def _instructions(code: CodeType) -> tuple[object, ...]:
    inner = tuple(_instructions(part) if isinstance(part, CodeType) else repr(part) for part in code.co_consts)
    return code.co_code, code.co_names, inner


def _names(code: CodeType) -> list[str]:
    """Return the global names that a function's instructions load, those of functions within it included, sorted."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    inner = [_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return sorted(names.union(*inner))


def _digest(thing: object) -> str:
    """Return 12 hex digits, equal for equal contents as far as they are known; else equal to no other."""
    hashed = hashlib.blake2b(digest_size=6)
    digester = _Digester(SimpleNamespace(write=hashed.update), protocol=5)
    digester.fast = True  # without references to earlier parts, which differ where equal texts are two objects
    try:
        digester.dump(thing)
    except Exception:  # objects of users may refuse in any way
        return uuid4().hex[:12]
    return hashed.hexdigest()
