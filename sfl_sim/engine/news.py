"""News of a study while it runs: small objects for one callback, which a terminal shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sfl_sim.engine.experiment import Round
from sfl_sim.store import Failure


@dataclass(frozen=True)
class Planned:
    """Trials are about to run, known by their numbers from now on: the name and the rounds of each."""

    trials: Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Began:
    """A trial has begun to run: to go on `after` so many rounds, if an earlier run has stored them."""

    trial: int
    after: int = 0


@dataclass(frozen=True)
class Ended:
    """A trial has finished a round."""

    trial: int
    round: Round


@dataclass(frozen=True)
class Taken:
    """A trial need not run: it had been finished in the folder `run`."""

    trial: int
    run: Path


@dataclass(frozen=True)
class Warned:
    """Something about a trial that a user should know, although it goes on."""

    trial: int
    problem: str


@dataclass(frozen=True)
class Failed:
    """A trial has failed; the others go on."""

    trial: int
    why: Failure


@dataclass(frozen=True)
class Counted:
    """Steps of a piece of work are done: so many of `total`, as far as is known.

    Attributes:
        what: the piece of work.
        unit: what one step is.
    """

    what: str
    unit: str
    done: int
    total: int


News = Planned | Began | Ended | Taken | Warned | Failed | Counted
Notify = Callable[[News], None]


def silent(news: News) -> None:
    """Tell nobody."""


def brief(news: News) -> News:
    """Return news as they travel between processes: of a round its row alone."""
    if not isinstance(news, Ended):
        return news
    return replace(news, round=Round(news.round.row, [], news.round.ops[:0]))
