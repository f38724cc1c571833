"""Dropouts: operations that are lost because their client goes away or the round goes on without it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from sfl_sim.system.presence import Presence

Policy = Literal["drop", "wait", "deadline"]


class Dropout(NamedTuple):
    """Lost operation: its time, its identity as in its row, and whether its client was `away` or too late."""

    round: int
    client: int
    lost_s: float
    node: str
    kind: str
    step: int
    cause: Literal["away", "deadline"]


class Dropouts:
    """The rule that says when an unfinished operation of a client is lost.

    Args:
        policy: `drop`: when the client goes away; `deadline`: when so many seconds of the round have passed; `wait`:
            never, nothing happens while the client is away. Outside of rounds everybody waits.
        presence: the times at which each client is present; None if always.
        deadline_s: of each round.
    """

    def __init__(
        self, policy: Policy = "wait", presence: Sequence[Presence] | None = None, deadline_s: float = inf
    ) -> None:
        self.policy = policy
        self.presence = presence
        self.deadline_s = deadline_s
        self.ends_s = inf
        """Instant of the round's deadline."""
        self.are_possible = False
        """True if operations can be lost now."""

    def begin(self, now_s: float, in_round: bool) -> None:
        """Begin a round, or something outside of rounds (`in_round` False), in which nothing is lost."""
        self.are_possible = in_round and self.policy != "wait"
        self.ends_s = now_s + self.deadline_s if in_round and self.policy == "deadline" else inf

    def at_s(self, client: int, requested_s: float) -> float:
        """Give the instant at which an operation requested at `requested_s` is lost; infinity if it cannot be."""
        if not self.are_possible:
            return inf
        if self.policy == "deadline":
            return max(requested_s, self.ends_s)
        return inf if self.presence is None else self.presence[client].until_s(requested_s)

    def message_at_s(self, clients: Iterable[int], requested_s: float) -> float:
        """Give the instant at which a message is lost, by any of the `clients` at its ends."""
        return min(self.at_s(client, requested_s) for client in clients)

    @property
    def cause(self) -> Literal["away", "deadline"]:
        """Cause of every loss under this policy."""
        return "deadline" if self.policy == "deadline" else "away"
