"""YAML as scenarios use it: read with the line of every key, and written so that it reads back equal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from sfl_sim.config.places import Place, Places
from sfl_sim.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_EXPONENT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
"""Floats such as 1e-3, which YAML 1.1 takes for text because they lack a dot or the exponent's sign."""


_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")
"""As in YAML 1.2 and in editors: `off` and `no` are words."""


class _Loader(yaml.SafeLoader):
    # Dates stay text: a scenario holds what JSON can hold.
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("timestamp", "bool")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # PyYAML lets those of int() through, without the line
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


class _Dumper(yaml.SafeDumper):
    pass


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
for _side in (_Loader, _Dumper):  # both, so that the text "1e-3" is written with quotes
    _side.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def read(path: Path) -> tuple[Any, Places]:
    """What a YAML file holds, and the line of every key in it.

    Raises:
        ScenarioError: there is no such file, or it is not UTF-8, not YAML, or gives a key twice.
    """
    file = str(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ScenarioError(f"cannot be read: {error.strerror}", file=file) from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ScenarioError("is not UTF-8 text", found=raw[error.start : error.end], file=file, line=line) from None
    return _parse(text, file)


def read_value(text: str) -> Any:
    """The value that a piece of YAML stands for; raises ScenarioError if it is not YAML."""
    return _parse(text, None)[0]


def write(value: Any) -> str:
    """YAML text that reads back as an equal value, keys in their order."""
    # Not ASCII is escaped: PyYAML would write U+0085 as it is and read it back as a space.
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=False)


def _parse(text: str, file: str | None) -> tuple[Any, Places]:
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None, Places(Place(file))
        places = Places(Place(file), _lines(root, file))
        return loader.construct_document(root), places
    except yaml.YAMLError as error:
        raise _not_yaml(error, text, file) from None


def _lines(root: yaml.Node, file: str | None) -> dict[str, Place]:
    lines: dict[str, Place] = {}
    for key, line in _keys(root, "", set()):
        if key in lines:
            raise ScenarioError(f"is given twice, first in line {lines[key].line}", key=key, file=file, line=line)
        lines[key] = Place(file, line)
    return lines


def _keys(node: yaml.Node, prefix: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Dotted keys and list indices below a node, with their lines; an aliased node is entered once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    children: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(str(index), item, item) for index, item in enumerate(node.value)]
    for name, start, value in children:
        yield prefix + name, start.start_mark.line + 1
        yield from _keys(value, f"{prefix}{name}.", seen)


def _not_yaml(error: yaml.YAMLError, text: str, file: str | None) -> ScenarioError:
    problem, line, column = str(error), None, None
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        problem = f"the character {chr(error.character)!r} is not allowed"
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
    elif isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        problem = error.problem or problem
        if repr("\t") in problem:
            problem = "found a tab, indent with spaces"
        line, column = error.problem_mark.line + 1, error.problem_mark.column + 1
    where = f" (column {column})" if column else ""
    return ScenarioError(f"is not YAML: {problem}{where}", file=file, line=line)
