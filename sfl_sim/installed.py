"""Methods, orders, codecs, models and data sets that installed packages bring, by entry points.

A package names them in its pyproject.toml, in the groups `sfl_sim.methods`, `sfl_sim.orders`, `sfl_sim.codecs`,
`sfl_sim.models` and `sfl_sim.datasets`:

    [project.entry-points."sfl_sim.methods"]
    my_method = "my_package.my_module:MyMethod"

A scenario names them as it names those of sfl-sim (`method: my_method`). No --allow-code is needed: who installs a
package lets it run. What comes with sfl-sim keeps its name.
"""

from collections.abc import Collection, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from sfl_sim.errors import ScenarioError, own_place

KINDS = ("methods", "orders", "codecs", "models", "datasets")
LIBRARIES = ("torchvision", "timm")
"""Packages whose models have names of their own: `torchvision:resnet18`."""


def is_of_library(model: str | None) -> bool:
    """Return True for the name of a library with one of its models."""
    return model is not None and model.partition(":")[0] in LIBRARIES and ":" in model


@cache
def installed(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages by name; `kind` is one of `KINDS`."""
    return {point.name: point for point in entry_points(group=f"sfl_sim.{kind}")}


def find(kind: str, name: str, key: str, ours: Collection[str], problem: str) -> Any:
    """Import what an installed package calls `name`. Raises ScenarioError with the `problem` if no package does.

    Args:
        key: the scenario's key.
        ours: names that come with sfl-sim.
    """
    point = installed(kind).get(name)
    if point is None:
        raise ScenarioError(problem, key=key, found=name, allowed=[*ours, *installed(kind)])
    return imported(point, key)


def imported(point: EntryPoint, key: str) -> Any:
    """Import an object. Raises ScenarioError if that fails."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        why = "it ends the program" if isinstance(error, SystemExit) else error
        raise ScenarioError(f"cannot be imported: {why}{own_place(error)}", key=key, found=point.name) from error


def paths(names: Iterable[str]) -> set[str]:
    """Return `package.module:name` of the code that these texts of a scenario name: itself, or of an installed one."""
    texts = set(names)
    points = (installed(kind) for kind in KINDS)
    return {text for text in texts if ":" in text} | {of[name].value for of in points for name in of.keys() & texts}
