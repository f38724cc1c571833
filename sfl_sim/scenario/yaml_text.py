"""YAML of scenarios: read with the line of every key, and written so that it reads back equal."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.files import MAX_SCENARIO_BYTES, read_text
from sfl_sim.scenario.source_locations import SourceLine, SourceLocations

MAX_LEVELS = 32
"""Maximum depth of nested lists and mappings."""
MAX_VALUES = 100_000
"""Maximum of keys and values; the target of an alias counts every time."""
MAX_DIGITS = 100
"""Maximum of characters of a number."""

_EXPONENT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
"""Floats such as 1e-3, which YAML 1.1 takes for text because they lack a dot or the exponent's sign."""


_OTHER_BASE = re.compile(r"[-+]?0[0-9_]+$|.*:")
"""Numbers that YAML 1.1 takes for octal (010 is 8) or sexagesimal ones (1:40 is 100), and YAML 1.2 does not."""


_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")
"""Booleans as in YAML 1.2 and in editors: `off` and `no` are words."""


_NOT_TEXT = re.compile(r"[\0\ud800-\udfff]")
"""Characters that escapes can make, but files and paths cannot contain."""


class _TooMuch(yaml.MarkedYAMLError):
    pass


class _NodeSize(NamedTuple):
    """Size of a node, itself included."""

    values: int
    levels: int


class _Loader(yaml.SafeLoader):
    # Dates stay text: a scenario holds what JSON can hold.
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("timestamp", "bool")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = self._level = self._deepest = 0
        self._extents: dict[yaml.Node, _NodeSize] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, and stop once it is too large: with aliases and merge keys, a short text can be huge."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        values, deepest = self._values, self._deepest
        self._level = self._deepest = self._level + 1
        self._check_extent(event.start_mark)
        node = cast(yaml.Node, super().compose_node(parent, index))
        if not isinstance(event, yaml.AliasEvent):
            self._values += 1
            self._extents[node] = _NodeSize(self._values - values, self._deepest - self._level + 1)
        elif extent := self._extents.get(node):
            self._values += extent.values
            self._deepest += extent.levels - 1
        else:
            raise _refused("an alias within what it stands for", event.start_mark)
        self._check_extent(event.start_mark)
        self._level, self._deepest = self._level - 1, max(deepest, self._deepest)
        return node

    def _check_extent(self, mark: Any) -> None:
        if self._deepest > MAX_LEVELS:
            raise _TooMuch(problem=f"more than {MAX_LEVELS} lists and mappings within one another", problem_mark=mark)
        if self._values > MAX_VALUES:
            raise _TooMuch(problem=f"more than {MAX_VALUES} keys and values", problem_mark=mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        tag = node.tag.rpartition(":")[2]
        if tag in ("int", "float") and len(node.value) > MAX_DIGITS:
            raise _TooMuch(problem=f"more than {MAX_DIGITS} characters of a number", problem_mark=node.start_mark)
        if (tag == "int" and _OTHER_BASE.match(node.value)) or (tag == "float" and ":" in node.value):
            raise _refused(f"{node.value} is not read as a decimal number; no leading zeros or colons", node.start_mark)
        if tag == "str" and (found := _NOT_TEXT.search(node.value)):
            raise _refused(f"the character {found[0]!r} is not allowed", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # PyYAML lets those of int() through, without the line
            raise _refused(str(error), node.start_mark) from None
        except (LookupError, AttributeError):  # and whatever a tag makes of a value that does not fit it
            raise _refused(f"cannot be read as {tag}", node.start_mark) from None


class _Dumper(yaml.SafeDumper):
    pass


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOL, list("tTfF"))
for _side in (_Loader, _Dumper):  # both, so that the text "1e-3" is written with quotes
    _side.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def read(path: Path) -> tuple[Any, SourceLocations]:
    """Read a YAML file; gives its value, and the line of every key.

    Raises ScenarioError if there is no such file, or it is not UTF-8, not YAML, too large, or gives a key twice.
    """
    return _parse(read_text(path, MAX_SCENARIO_BYTES), str(path))


def read_value(text: str) -> Any:
    """Read a piece of YAML. Raises ScenarioError if it is not YAML."""
    return _parse(text, None)[0]


def write(value: Any) -> str:
    """Write YAML text that reads back as an equal value, keys in their order."""
    # Not ASCII is escaped: PyYAML would write U+0085 as it is and read it back as a space.
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=False)


def _parse(text: str, file: str | None) -> tuple[Any, SourceLocations]:
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None, SourceLocations(SourceLine(file))
        places = SourceLocations(SourceLine(file), _lines(root, file))
        return loader.construct_document(root), places
    except yaml.YAMLError as error:
        raise _not_yaml(error, text, file) from None


def _lines(root: yaml.Node, file: str | None) -> dict[str, SourceLine]:
    lines: dict[str, SourceLine] = {}
    for key, line in _keys(root, "", set()):
        if key in lines:
            raise ScenarioError(f"is given twice, first in line {lines[key].line}", key=key, file=file, line=line)
        lines[key] = SourceLine(file, line)
    return lines


def _keys(node: yaml.Node, prefix: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Generate dotted keys and list indices below a node, with their lines; an aliased node is entered once."""
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


def _refused(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


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
    lead = "is too much" if isinstance(error, _TooMuch) else "is not YAML"
    return ScenarioError(f"{lead}: {problem}{where}", file=file, line=line)
