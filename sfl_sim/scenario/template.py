"""A scenario to begin with: every key with its default and its meaning, as the sections define them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pydantic import BaseModel

from sfl_sim.scenario import yaml_text
from sfl_sim.scenario.sections import Scenario

WIDTH = 118
HEAD = """\
# Every key of a scenario, with its default. Leave out what you do not change; keys that are commented out are empty.
# Run it: sfl-sim FILE    Compare variants: give several values to keys in the grid below.
# grid: {method.name: [splitfed_v1, splitfed_v2], train.lr: [0.05, 0.1]}
"""


def template() -> str:
    """Return the text of a scenario file, which loads as the default scenario."""
    return HEAD + "\n".join(_lines(Scenario(), "")) + "\n"


def _lines(section: BaseModel, indent: str) -> Iterator[str]:
    """Generate the lines of a section's keys, each after its description."""
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if not indent:
            yield ""
        about = " ".join((field.description or "").split())
        yield from textwrap.wrap(about, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        if isinstance(value, BaseModel):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{indent}  ")
        elif value is None:
            yield f"{indent}# {key}:"
        else:
            yield f"{indent}{yaml_text.write({key: value}).rstrip()}"
