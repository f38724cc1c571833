"""What a scenario may say about clients that are not always there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import Positive, Section


class Availability(Section):
    """When clients are there, and what becomes of one that goes away, or is late, while it takes part in a round."""

    profile: str | None = None
    """When clients are there: a profile's name or file; null means always, so that only a deadline loses them."""
    lost: Literal["drop", "wait", "deadline"] = "drop"
    """drop: what a client does when it goes away is lost, and its round goes on without it, which the method must be
    able to; wait: everything of it stands still until it is back; deadline: as wait, but what is not done deadline_s
    after the begin of the round is lost."""
    deadline_s: Positive | None = None
    """deadline: seconds after the begin of a round at which it goes on without those who are not done."""
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
        return self
