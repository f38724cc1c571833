"""Section of a scenario about clients that are not always present."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import Positive, Section


class Availability(Section):
    """Presence of clients, and the treatment of a client that goes away, or is late, while it takes part in a round."""

    profile: str | None = None
    """Availability of clients: a profile's name or file; null: always, so that only a deadline makes them drop out."""
    lost: Literal["drop", "wait", "deadline"] = "drop"
    """drop: a client that goes away drops out of the round, with its current operation, if the method allows it;
    wait: its operations stand still until it is back; deadline: as wait, but operations that have not ended deadline_s
    after the beginning of the round are lost."""
    deadline_s: Positive | None = None
    """deadline: seconds after the beginning of a round at which it goes on without the unfinished clients."""
    begins_at_h: Annotated[float, Field(ge=0, lt=24)] = 0.0
    """Local hour of the day at which the run begins."""

    @model_validator(mode="after")
    def _has_a_reason_to_lose_anybody(self) -> Availability:
        if self.lost == "deadline" and self.deadline_s is None:
            raise ScenarioError("must not be empty with lost: deadline", key="deadline_s")
        if self.lost != "deadline" and self.deadline_s is not None:
            raise ScenarioError(f"is for lost: deadline, not {self.lost}", key="deadline_s", found=self.deadline_s)
        if self.lost != "deadline" and self.profile is None:
            raise ScenarioError("must not be empty without a deadline", key="profile")
        if self.profile is None and self.begins_at_h:
            problem = "needs a profile, whose clients follow the hours of the day"
            raise ScenarioError(problem, key="begins_at_h", found=self.begins_at_h)
        return self
