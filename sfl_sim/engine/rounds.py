"""Rounds of an experiment: as the clock has walked them, and with their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sfl_sim.metrics.energy import client_joule, op_joule
from sfl_sim.store.columns import OP_DTYPE
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.presence import Presence

NO_OPS = np.zeros(0, OP_DTYPE)


class WalkedRound(NamedTuple):
    """A round as the clock has walked it; or the setup before all rounds, or the finish after them.

    Attributes:
        clients: its participants; of setup and finish, those of the round that they belong to.
        ops: the operations that have ended in it (`OP_DTYPE`).
        n_rounds: number of rounds that it stands for. They differ only in their start.
        is_aside: True for setup and finish.
        under_way: the operations that go on into the next round, as rows that end with this one.
        parts: setup, round and finish, if setup or finish belong to it; otherwise empty.
    """

    number: int
    clients: tuple[int, ...]
    started_s: float
    ended_s: float
    ops: NDArray[np.void]
    n_rounds: int = 1
    is_aside: bool = False
    under_way: NDArray[np.void] = NO_OPS
    parts: tuple[WalkedRound, ...] = ()

    @property
    def busy(self) -> NDArray[np.void]:
        """Its operations, and those that are under way at its end."""
        return np.concatenate([self.ops, self.under_way]) if len(self.under_way) else self.ops

    @property
    def own_ops(self) -> NDArray[np.void]:
        """Its operations without those of setup and finish."""
        return np.concatenate([NO_OPS, *(part.ops for part in self.parts or [self] if not part.is_aside)])

    def client_joule(self, fleet: Fleet) -> NDArray[np.float64] | None:
        """Compute the joules (C,) that every client spends in it; None if the power of the clients is unknown."""
        power, joule = fleet.power, np.zeros(len(fleet.macs_per_s))
        if power is None:
            return None
        for part in self.parts or [self]:
            ops, presence = part.busy, part._presence(fleet)
            joule += client_joule(
                ops, power, part.clients, started_s=part.started_s, ended_s=part.ended_s, presence=presence
            )
        return joule

    def op_joule(self, fleet: Fleet) -> NDArray[np.float64] | None:
        """Compute the joules (operations,) of each of its operations; None if the power of the clients is unknown."""
        parts, power = self.parts or [self], fleet.power
        if power is None:
            return None
        return np.concatenate([op_joule(part.ops, power, part._presence(fleet)) for part in parts])

    def _presence(self, fleet: Fleet) -> Sequence[Presence] | None:
        return None if self.is_aside else fleet.presence  # in setup and finish all clients are present


def joined(parts: Sequence[WalkedRound]) -> WalkedRound:
    """Join setup, round and finish to one round."""
    if len(parts) == 1:
        return parts[0]
    first, last = parts[0], parts[-1]
    ops = np.concatenate([part.ops for part in parts])
    return last._replace(started_s=first.started_s, ops=ops, is_aside=False, parts=tuple(parts))


@dataclass(frozen=True)
class Round:
    """Results of one round.

    Attributes:
        row: its row of rounds.parquet.
        labels: its rows of labels.parquet.
        ops: its operations (`OP_DTYPE`).
        confusion: its rows of confusion.parquet; None if the scenario asks for none.
        leakage: its rows of leakage.parquet; None if the scenario asks for none.
        final: tables of the trained models by name, with the last round.
        joule: (operations,) energy that each operation takes from its client's battery; None if unknown.
        clients: its participants.
        cuts: the last layer that each of them holds before its cut; empty without a cut.
        stopped: why training ends early with it; None if it does not.
    """

    row: Mapping[str, Any]
    labels: list[dict[str, Any]]
    ops: NDArray[np.void]
    confusion: pd.DataFrame | None = None
    leakage: pd.DataFrame | None = None
    final: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    joule: NDArray[np.float64] | None = None
    clients: Sequence[int] = ()
    cuts: Sequence[int] = ()
    stopped: str | None = None
