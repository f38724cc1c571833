"""Dropouts: operations that are lost because their client goes away or the round goes on without it."""

from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import Literal, NamedTuple

from sfl_sim.system.presence import Presence

LostPolicy = Literal["drop", "wait", "deadline"]
Cause = Literal["away", "deadline", "overtaken"]


class Dropout(NamedTuple):
    """Lost operation: its time, its identity as in its row, and why: its client was `away`, or too late for the
    `deadline`, or `overtaken` by as many others as were wanted."""

    round: int
    client: int
    lost_s: float
    node: str
    kind: str
    step: int
    cause: Cause


class Dropouts:
    """The rule that says when an unfinished operation of a client is lost.

    Args:
        policy: `drop`: when the client goes away; `deadline`: when so many seconds of the round have passed; `wait`:
            never, nothing happens while the client is away. Outside of rounds everybody waits.
        presence: the times at which each client is present; None if always.
        deadline_s: of each round.
        wanted: number of clients for which a round waits: once so many have come to where the server waits for all,
            the others are lost; infinity: all.
    """

    def __init__(
        self,
        policy: LostPolicy = "wait",
        presence: Sequence[Presence] | None = None,
        deadline_s: float = inf,
        wanted: float = inf,
    ) -> None:
        self.policy = policy
        self.presence = presence
        self.deadline_s = deadline_s
        self.wanted = wanted
        self.ends_s = inf
        """Instant of the round's deadline."""
        self.are_possible = False
        """True if operations can be lost now."""
        self._overtaken: set[int] = set()

    @property
    def are_ever_possible(self) -> bool:
        """True if operations can be lost in a round."""
        return self.policy != "wait" or self.wanted < inf

    def begin(self, now_s: float, in_round: bool) -> None:
        """Begin a round, or something outside of rounds (`in_round` False), in which nothing is lost."""
        self.are_possible = in_round and self.are_ever_possible
        self._overtaken.clear()
        self.ends_s = now_s + self.deadline_s if in_round and self.policy == "deadline" else inf

    def overtake(self, clients: Collection[int]) -> None:
        """Lose all further operations of `clients` in this round."""
        self._overtaken.update(clients)

    def at_s(self, client: int, requested_s: float) -> float:
        """Give the instant at which an operation requested at `requested_s` is lost; infinity if it cannot be."""
        if not self.are_possible:
            return inf
        if client in self._overtaken:
            return requested_s
        if self.policy == "deadline":
            return max(requested_s, self.ends_s)
        if self.policy == "wait" or self.presence is None:
            return inf
        return self.presence[client].until_s(requested_s)

    def message_at_s(self, clients: Iterable[int], requested_s: float) -> float:
        """Give the instant at which a message is lost, by any of the `clients` at its ends."""
        return min(self.at_s(client, requested_s) for client in clients)

    def cause(self, client: int) -> Cause:
        """Give the cause of the loss of an operation of `client`."""
        if client in self._overtaken:
            return "overtaken"
        return "deadline" if self.policy == "deadline" else "away"
