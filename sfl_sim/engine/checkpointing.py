"""How a run that was killed goes on: what is stored of it while it trains, and what a run that follows it is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pickle import UnpicklingError
from typing import Any

import pandas as pd

from sfl_sim.ops import On
from sfl_sim.store import Checkpoint, Checkpoints
from sfl_sim.training import contents
from sfl_sim.training.contents import Unstorable
from sfl_sim.training.replay import CheckpointMismatch, Image, Replay

SHARE = 0.05
"""Of the time, what checkpoints at the ends of rounds may take."""
USUAL_S = 0.05
"""What one takes, as long as none has been written."""


@dataclass(frozen=True)
class Learned:
    """What a round gave that the clock alone cannot find again: its rows of rounds, labels and confusion.parquet."""

    row: Mapping[str, Any]
    labels: list[dict[str, Any]]
    confusion: pd.DataFrame | None

    def told(self) -> dict[str, Any]:
        """As JSON."""
        confusion = None if self.confusion is None else self.confusion.to_dict("list")
        plain = {key: value.item() if hasattr(value, "item") else value for key, value in self.row.items()}
        return {"row": plain, "labels": self.labels, "confusion": confusion}

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Learned:
        """What has been `told`."""
        confusion = told["confusion"]
        return cls(told["row"], told["labels"], None if confusion is None else pd.DataFrame(confusion))


@dataclass(frozen=True)
class Past:
    """A run up to a checkpoint.

    Attributes:
        rounds: what whole rounds have learned.
        timeline_digest: of their operations.
        peak_graphs: the most graphs that were held at once.
        left_out: updates that the round that was under way had left out.
        image: what was in memory then: at the end of the last of them, or within the next one.
        checkpoint: where all this is from.
    """

    rounds: Sequence[Learned]
    timeline_digest: str
    peak_graphs: int
    left_out: int
    image: Image
    checkpoint: Checkpoint

    @classmethod
    def of(cls, checkpoint: Checkpoint, key: str | None) -> Past:
        """Raises CheckpointMismatch if the checkpoint is not of the cell with this content `key`."""
        about = checkpoint.about
        if about.get("key") != key:
            raise CheckpointMismatch("it is of another scenario, or of other code")
        try:
            rounds = [Learned.of(told) for told in checkpoint.rounds]
            image = Image(**contents.load(checkpoint.memory))
            peak_graphs, left_out = about["peak_graphs"], about["left_out"]
            kept = replace(checkpoint, memory=b"")  # as large as the image
            return cls(rounds, about["timeline_digest"], peak_graphs, left_out, image, kept)
        except (KeyError, TypeError, ValueError, RuntimeError, EOFError, UnpicklingError) as error:
            raise CheckpointMismatch(f"it is not of this version of sfl-sim ({error})") from error

    def check(self, round: int, timeline_digest: str) -> None:
        """At the end of a round: CheckpointMismatch if the walk has not come the way that it should have."""
        if round == len(self.rounds) and timeline_digest != self.timeline_digest:
            raise CheckpointMismatch("the walk up to it gives another timeline")


def pasts(checkpoints: Checkpoints, key: str | None, warn: Callable[[str], object]) -> Iterator[Past | None]:
    """What a run may go on from, the best first and in the end nothing; `warn` is told what cannot be used, and why."""
    are_there = any(checkpoints)
    for checkpoint in checkpoints.readable(warn):
        try:
            yield Past.of(checkpoint, key)
        except CheckpointMismatch as error:
            warn(f"{checkpoint.folder} is not used: {error}")
    if are_there:
        warn("no checkpoint can be used, so everything is run again")
    yield None


class Keeper:
    """Stores checkpoints of a run.

    Args:
        checkpoints: where.
        key: of the content of the cell.
        memory: what the run has in memory.
        figures: what else a `Past` tells of the run, now.
        past: what the run went on from.
        warn: told once if a run cannot be stored.
        jobs: store one after so many operations at the server, too; None: at the ends of rounds alone.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        key: str | None,
        memory: Replay,
        figures: Callable[[], Mapping[str, Any]],
        past: Past | None,
        warn: Callable[[str], object],
        jobs: int | None = None,
    ) -> None:
        self.checkpoints = checkpoints
        self.key = key
        self.memory = memory
        self.figures = figures
        self.rounds, self._walked_jobs = (len(past.rounds), past.image.jobs) if past else (0, 0)
        self.warn = warn
        self.jobs = jobs
        checkpoints.go_on_after(past.checkpoint if past else None)
        self._ended_s, self._took_s = time.monotonic(), USUAL_S

    def after_round(self, learned: Learned) -> None:
        """A round has ended. What it learned is stored with the next checkpoint: now, if the last was cheap enough."""
        self.checkpoints.add_round(learned.told())
        self.rounds += 1
        if SHARE * (time.monotonic() - self._ended_s) < self._took_s:
            return
        try:
            self._save(f"round-{self.rounds:06d}")
        except Unstorable as error:
            self.warn(f"no checkpoint after round {self.rounds}: {error}")
            self.warn = lambda problem: None

    def after_job(self, op: On) -> None:
        """The server has begun `op`: a checkpoint is stored after every so many that are not walked again."""
        done = self.memory.jobs
        if self.jobs and done > self._walked_jobs and done % self.jobs == 0:
            with suppress(Unstorable):  # a graph that waits at the server; perhaps at the next opportunity
                self._save(f"round-{self.rounds:06d}-job-{self.memory.jobs:09d}")

    def _save(self, name: str) -> None:
        began_s = time.monotonic()
        image = self.memory.image()
        self.checkpoints.save(name, {"key": self.key, **self.figures()}, contents.dump(vars(image)))
        self._ended_s = time.monotonic()
        self._took_s = self._ended_s - began_s
