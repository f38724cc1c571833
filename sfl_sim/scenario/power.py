"""Section of a scenario about the power that clients draw."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import NonNegative, PerClient, Positive, Section


class Power(Section):
    """Power of devices and radios; with it, a run reports energy."""

    watts: ClassVar = ("uplink_w", "downlink_w")

    compute_w: Positive | PerClient
    """Watts while a device computes: one number for all clients, a list of one for each, or a CSV file."""
    radio: str | None = None
    """Power of the radio while it sends or receives: a power profile's name or file."""
    uplink_w: Positive | PerClient | None = None
    """Watts while a client sends, instead of a radio: one number for all clients, a list of one for each, or a CSV
    file."""
    downlink_w: Positive | PerClient | None = None
    """Watts while a client receives, instead of a radio: one number for all clients, a list of one for each, or a CSV
    file."""
    idle_w: NonNegative = 0.0
    """Watts while a client that takes part in a round waits."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Power:
        given = [name for name in self.watts if getattr(self, name) is not None]
        if self.radio is not None and given:
            raise ScenarioError("cannot be given together with a radio", key=given[0])
        if self.radio is None and len(given) < len(self.watts):
            raise ScenarioError(f"must not be empty without {' and '.join(self.watts)}", key="radio")
        return self
