"""What an order, a choice or a rule knows when it decides: a trait, of which pages make their tables."""

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Known(Enum):
    """What is known, in words."""

    LABELS = "labels that clients hold, which they would have to tell"
    ROUNDS = "rounds that have ended"
    LOSSES = "losses that training tells"
    RATES = "true mean rates of devices and links, which no server knows"
    LATENCIES = "true latencies, which no server knows"
    RUN = "the sequence of another run"
    JOBS = "true seconds of the jobs that wait, which no server knows"


def knows(*known: Known) -> Callable[[F], F]:
    """Decorate an order, a choice or a rule with what it knows; without it, it knows nothing."""

    def told(function: F) -> F:
        function.__dict__["knows"] = known
        return function

    return told


def known_by(function: Callable[..., Any]) -> tuple[Known, ...]:
    """Return what a function knows; empty if nothing."""
    known: tuple[Known, ...] = getattr(function, "knows", ())
    return known
