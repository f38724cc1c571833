"""Section of a scenario about links that clients share."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import Count, Positive, Section


class Directions(Section):
    """A capacity that differs between the directions."""

    up: Positive
    """Bits per second towards the server."""
    down: Positive
    """Bits per second towards the clients."""


class Shared(Section):
    """Links that clients share, beyond their own ones; messages get max-min fair shares of them."""

    capacities: ClassVar = ("capacity_bps", "backhaul_bps")

    access_points: Count | None = None
    """Number of access points, over which the clients are spread evenly, at random."""
    capacity_bps: Positive | Directions | None = None
    """Bits per second of each access point, in each direction: a number, or a section with up and down; null means
    without a limit."""
    backhaul_bps: Positive | Directions | None = None
    """Bits per second between all access points together and the server, in each direction: as for capacity_bps."""
    file: str | None = None
    """Graph of your own, instead: a CSV file with the columns from, to and capacity_bps."""

    @model_validator(mode="after")
    def _is_one_graph(self) -> Shared:
        given = [name for name in ("access_points", *self.capacities) if getattr(self, name) is not None]
        if self.file is not None:
            if given:
                raise ScenarioError("cannot be given together with a file", key=given[0])
        elif self.access_points is None:
            raise ScenarioError("must not be empty without a file", key="access_points")
        elif given == ["access_points"]:
            raise ScenarioError(f"share nothing without {' or '.join(self.capacities)}", key="access_points")
        return self
