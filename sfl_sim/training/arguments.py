"""Values and states among the arguments of an operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sfl_sim.models.replica import Bundle, Joined
from sfl_sim.ops import State, Value


def values_in(args: Any) -> Iterator[Value]:
    """Generate the values among an operation's arguments: also those in collections, and those they are made of."""
    if isinstance(args, Value):
        yield args
        if args.made_of:
            yield from values_in(args.made_of)
    elif isinstance(args, Mapping):
        yield from values_in(list(args.values()))
    elif isinstance(args, list | tuple):
        for arg in args:
            yield from values_in(arg)


def states_in(args: Any) -> Iterator[State]:
    """Generate the states among an operation's arguments. A joined state or a bundle stands for its members."""
    for value in values_in(args):
        if isinstance(value, Joined | Bundle):
            yield from states_in(value.members)
        elif isinstance(value, State):
            yield value
