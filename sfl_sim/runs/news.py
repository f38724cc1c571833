"""Events of a study while it runs: small objects passed to a callback, which a terminal shows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sfl_sim.engine.walk import Round
from sfl_sim.errors import OutputError, ScenarioError, in_short
from sfl_sim.store.trial import Failure


@dataclass(frozen=True)
class Planned:
    """Trials are about to run, identified by their index in this list: the name and the number of rounds of each.

    `clock` says whose seconds theirs are: simulated, or measured.
    """

    trials: Sequence[tuple[str, int]]
    clock: str = "simulated"


@dataclass(frozen=True)
class Began:
    """A trial has begun to run; it resumes `after` so many rounds that an earlier run has stored."""

    trial: int
    after: int = 0


@dataclass(frozen=True)
class Ended:
    """A trial has finished a round; `is_new` is False if a resumed run takes it over from an earlier one."""

    trial: int
    round: Round
    is_new: bool = True


@dataclass(frozen=True)
class Reused:
    """A trial is not run: its results are taken from the folder `run`, where it was finished."""

    trial: int
    run: Path


@dataclass(frozen=True)
class Warned:
    """A trial, or the study if there is none, goes on, but has a `problem` that the user should know."""

    trial: int | None
    problem: str


@dataclass(frozen=True)
class Failed:
    """A trial has failed; the others go on."""

    trial: int
    why: Failure


@dataclass(frozen=True)
class Counted:
    """Progress of a piece of work: `done` of `total` steps.

    Attributes:
        what: the piece of work.
        unit: what one step is.
        trial: the trial that the work is part of; None if it is none's.
    """

    what: str
    unit: str
    done: int
    total: int
    trial: int | None = None


News = Planned | Began | Ended | Reused | Warned | Failed | Counted
Notify = Callable[[News], None]


def silent(news: News) -> None:
    """Ignore all news."""


@contextmanager
def optional(what: str, notify: Notify) -> Iterator[None]:
    """Do something without which a study is whole, such as drawing: if it fails, warn that it is left out.

    Errors of the disk are raised all the same.
    """
    try:
        yield
    except (OSError, OutputError):
        raise
    except ScenarioError as error:
        if isinstance(error.__cause__, OSError):
            raise
        notify(Warned(None, f"{what} is left out: {error}"))
    except Exception as error:
        notify(Warned(None, f"{what} is left out: {in_short(error)}"))


def brief(news: News) -> News:
    """Return news as they travel between processes: a round is reduced to its row."""
    if not isinstance(news, Ended):
        return news
    return replace(news, round=Round(news.round.row, [], news.round.ops[:0], stopped=news.round.stopped))
