"""Checkpoints of a run: written while it trains, and read by a run that resumes it after it was killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pickle import UnpicklingError
from typing import Any

import pandas as pd

from sfl_sim.store.checkpoints import Checkpoint, Checkpoints
from sfl_sim.training import contents
from sfl_sim.training.contents import Unstorable
from sfl_sim.training.replay import CheckpointMismatch, Image, Replay

SHARE = 0.05
"""Share of the running time that checkpoints at the ends of rounds may take."""
USUAL_S = 0.05
"""Assumed seconds of a checkpoint before the first has been written."""


@dataclass(frozen=True)
class StoredRound:
    """Results of a round that the clock alone cannot find again: rows of rounds, labels, confusion, leakage.parquet."""

    row: Mapping[str, Any]
    labels: list[dict[str, Any]]
    confusion: pd.DataFrame | None
    leakage: pd.DataFrame | None = None

    def as_json(self) -> dict[str, Any]:
        """Convert the round to values that JSON can hold."""
        tables = {name: getattr(self, name) for name in ("confusion", "leakage")}
        columns = {name: None if table is None else table.to_dict("list") for name, table in tables.items()}
        plain = {key: value.item() if hasattr(value, "item") else value for key, value in self.row.items()}
        return {"row": plain, "labels": self.labels, **columns}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> StoredRound:
        """Make a round of what `as_json` gave."""
        tables = (None if stored[name] is None else pd.DataFrame(stored[name]) for name in ("confusion", "leakage"))
        return cls(stored["row"], stored["labels"], *tables)


@dataclass(frozen=True)
class ResumePoint:
    """The state of a run at a checkpoint, from which another run can resume.

    Attributes:
        rounds: results of the whole rounds.
        timeline_digest: of their operations.
        peak_graphs: maximum of graphs that were held at once.
        image: contents of memory at the end of the last of the rounds.
        checkpoint: the checkpoint it was read from.
    """

    rounds: Sequence[StoredRound]
    timeline_digest: str
    peak_graphs: int
    image: Image
    checkpoint: Checkpoint

    @classmethod
    def of(cls, checkpoint: Checkpoint, key: str) -> ResumePoint:
        """Read a checkpoint. Raises CheckpointMismatch if it is not of the trial with this `key`."""
        about = checkpoint.about
        if about.get("key") != key:
            raise CheckpointMismatch("it is of another scenario, or of other code or data")
        try:
            rounds = [StoredRound.from_json(row) for row in checkpoint.rounds]
            image = Image(**contents.load(checkpoint.memory))
            figures = {key: about[key] for key in ("timeline_digest", "peak_graphs")}
            kept = replace(checkpoint, memory=b"")  # as large as the image
            return cls(rounds, **figures, image=image, checkpoint=kept)
        except (KeyError, TypeError, ValueError, RuntimeError, EOFError, UnpicklingError) as error:
            raise CheckpointMismatch(f"it is not of this version of sfl-sim ({error})") from error

    def check(self, round: int, timeline_digest: str) -> None:
        """Check the timeline at the end of a round: raises CheckpointMismatch if it differs from the stored run's."""
        if round == len(self.rounds) and timeline_digest != self.timeline_digest:
            raise CheckpointMismatch("the walk up to it gives another timeline")


def resume_points(checkpoints: Checkpoints, key: str, warn: Callable[[str], object]) -> Iterator[ResumePoint | None]:
    """Generate what a run may resume from, the best first and None last; `warn` gets the reason why one is not used."""
    are_there = any(checkpoints)
    for checkpoint in checkpoints.readable(warn):
        try:
            yield ResumePoint.of(checkpoint, key)
        except CheckpointMismatch as error:
            warn(f"{checkpoint.folder} is not used: {error}")
    if are_there:
        warn("no checkpoint can be used, so everything is run again")
    yield None


class CheckpointWriter:
    """Stores checkpoints of a run.

    Args:
        checkpoints: the folder that receives them.
        key: the trial's key (`runs/cache_key.py`).
        memory: contents of the run's memory.
        figures: gives the other attributes of a `ResumePoint`, as they are now.
        resume: the state from which the run was resumed; None if it began anew.
        warn: called once if the run cannot be stored.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        key: str,
        memory: Replay,
        figures: Callable[[], Mapping[str, Any]],
        resume: ResumePoint | None,
        warn: Callable[[str], object],
    ) -> None:
        self.checkpoints = checkpoints
        self.key = key
        self.memory = memory
        self.figures = figures
        self.rounds = len(resume.rounds) if resume else 0
        self.warn = warn
        checkpoints.go_on_after(resume.checkpoint if resume else None)
        self._ended_s, self._took_s = time.monotonic(), USUAL_S

    def after_round(self, stored: StoredRound) -> None:
        """Add a finished round to the next checkpoint, which is written now if the last one was cheap enough."""
        self.checkpoints.add_round(stored.as_json())
        self.rounds += 1
        if SHARE * (time.monotonic() - self._ended_s) < self._took_s:
            return
        try:
            self._save(f"round-{self.rounds:06d}")
        except Unstorable as error:
            self.warn(f"no checkpoint after round {self.rounds}: {error}")
            self.warn = lambda problem: None

    def _save(self, name: str) -> None:
        began_s = time.monotonic()
        image = self.memory.image()
        self.checkpoints.save(name, {"key": self.key, **self.figures()}, contents.dump(vars(image)))
        self._ended_s = time.monotonic()
        self._took_s = self._ended_s - began_s
