"""Replicas that belong together but are used apart: a front end and its exit, or the pieces of a server's trunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import State


class Bundle(State):
    """Replicas that are copied and sent as one and stay apart: the copy of a bundle is a bundle.

    Attributes:
        members: the replicas.
        pending: what one step leaves at the node for a later one, a gradient or a graph.
    """

    __slots__ = ("members", "pending")

    def __init__(self, members: Sequence[Replica | Joined]) -> None:
        super().__init__("model", sum(member.size_bytes for member in members))
        self.members = members
        self.pending: Any = None

    @property
    def guard(self) -> State:
        """That of the first member."""
        return self.members[0].guard

    def snapshot(self) -> Bundle:
        """Copies of the members, each one replica."""
        return Bundle([member.snapshot() for member in self.members])

    @property
    def replicas(self) -> list[Replica]:
        """The members that no joined state stands for: whatever a step can change by itself."""
        return [replica for member in self.members for replica in member.members]
