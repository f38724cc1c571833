"""JSON of users: text that is not JSON, too deep, or has numbers that are too large, is told with its line."""

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

from sfl_sim.errors import IS_POINTER, POINTER, ScenarioError

MAX_LEVELS, MAX_DIGITS = 500, 300
"""Of JSON: maximum of lists and mappings within one another, and of the digits of a whole number, which is finite."""


def parsed_json(text: str, file: Path, first: int = 1, key: str | None = None) -> Any:
    """Return the value of the JSON text that begins in line `first` of a file.

    Raises ScenarioError with file, line and `key`, if it is not JSON, is too deep, or has a key twice or a number that
    is too large.
    """
    error = partial(ScenarioError, key=key, file=str(file))
    try:
        return json.loads(text, parse_float=_float, parse_int=_int, parse_constant=_float, object_pairs_hook=_mapping)
    except json.JSONDecodeError as reason:
        if text.startswith(POINTER.decode()):
            raise error(IS_POINTER) from None
        raise error(f"is not JSON: {reason.msg}", line=first + reason.lineno - 1) from None
    except _OutOfBounds as reason:
        line = first + text.count("\n", 0, text.index(reason.args[0]))
        raise error("holds a number out of range", found=reason.args[0], line=line) from None
    except _GivenTwice as reason:
        raise error("gives a key twice in one mapping", found=reason.args[0]) from None
    except RecursionError:
        problem = "holds too many lists and mappings within one another"
        raise error(problem, allowed=f"up to {MAX_LEVELS}", line=first + _lines_until_too_deep(text)) from None


class _OutOfBounds(Exception):
    pass


class _GivenTwice(Exception):
    pass


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        raise _GivenTwice(next(name for name in names if names.count(name) > 1))
    return mapping


def _float(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise _OutOfBounds(digits)
    return number


def _int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _OutOfBounds(digits)
    return int(digits)


def _lines_until_too_deep(text: str) -> int:
    """Count the lines before the one with more than `MAX_LEVELS` lists and mappings within one another."""
    level, line = 0, 0
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{\]}\n]', text):
        level += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        line += token[0].count("\n")
        if level > MAX_LEVELS:
            break
    return line
