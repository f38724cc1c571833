"""How tiers of servers hang together: the server above each one, and how far clients are from servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import SERVER, ServerNode
from sfl_sim.system.profiles import FloatArray, read_table

if TYPE_CHECKING:
    from sfl_sim.scenario.sections import TierSection as Section


def parents(tiers: Mapping[str, Section]) -> dict[str, list[ServerNode]]:
    """Give, for every server of each tier, the server above: evenly many below each, in the order of their numbers."""
    names, found = [*tiers], {}
    for name, above in zip(names, [*names[1:], None], strict=True):
        count = tiers[name].count
        n_above = tiers[above].count if above else 1
        found[name] = [ServerNode(above, 1 + k * n_above // count) if above else SERVER for k in range(count)]
    return found


def read_reach_s(file: str, n_clients: int, names: Sequence[str], key: str) -> FloatArray:
    """Read seconds between clients and servers: (clients, servers). Raises ScenarioError for an unusable file."""
    table = read_table(Path(file), names, key)
    if len(table.lines) != n_clients:
        raise ScenarioError("needs a row for each client", key=key, found=len(table.lines), allowed=[n_clients])
    columns = []
    for name in names:
        seconds = table.numbers(name)
        table.require(name, seconds >= 0, "a number of 0 or above")
        columns.append(seconds)
    return np.stack(columns, axis=1)[table.by_client()]
