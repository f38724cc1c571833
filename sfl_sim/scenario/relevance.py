"""What of a scenario matters for what: its keys, sorted by what depends on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from sfl_sim.scenario.sections import ClientCuts, Scenario

ASIDE = frozenset({"name", "repeats", "grid", "report", "serving", "data.root", "data.download"})
"""Keys and sections that no model depends on."""
COMPUTING = frozenset({"train.executor", "train.compile", "train.max_graphs"})
"""Keys of how steps are computed on this machine."""
WORLD = frozenset({
    "clients.compute", "clients.network", "clients.power", "server.speedup", "server.workers",
    "server.include_model_exchange",
})  # fmt: skip
"""Keys and sections of the world that a method cannot see: how fast it is. Not clients.availability: who takes part,
and so what is learned, depends on it."""
ORDER = frozenset({"server.order", "server.burst", "server.max_wait_s"})
"""Keys of who is served next."""


def leaves(values: Mapping[str, Any], aside: Set[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value below nested sections with its dotted key, without what is left `aside`."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key in aside:
            continue
        if isinstance(value, Mapping):
            yield from leaves(value, aside, f"{key}.")
        else:
            yield key, value


def without(scenario: Scenario, aside: Set[str]) -> dict[str, Any]:
    """The values of a scenario by dotted key, without those `aside`; devices stay where the cut follows their speed."""
    cut = scenario.model.cut
    by_device = isinstance(cut, ClientCuts) and cut.by == "device_speed"
    return dict(leaves(scenario.model_dump(), aside - {"clients.compute"} if by_device else aside))
