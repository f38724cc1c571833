"""What a walk through the rounds of a scenario says of them: rows of the tables of a what-if study."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sfl_sim.engine.round_tables import device_groups
from sfl_sim.metrics.breakdown import by_client, traffic
from sfl_sim.metrics.energy import client_joule
from sfl_sim.store.columns import BREAKDOWN
from sfl_sim.studies.walk import Walked

OWN = ("device", "uplink", "queue", "server", "downlink")
"""Where a client spends time by itself; the rest of a round it waits for others."""


class Measured:
    """What `walked` says of its average round.

    Args:
        rounds: how many there are.
    """

    def __init__(self, walked: Walked, rounds: int) -> None:
        self.fleet = walked.fleet
        self.rounds = rounds
        self._pieces = walked.pieces
        self._spent = [by_client(one.ops, one.participants, one.started_s, one.ended_s) for one in walked.pieces]

    @property
    def round_s(self) -> float:
        """Its length: that of all that happens, by the number of rounds."""
        return sum(piece.times * (piece.ended_s - piece.started_s) for piece in self._pieces) / self.rounds

    def figures(self, workers: float) -> dict[str, Any]:
        """Its length, where its average participant spends it, its traffic, and how busy the server's lanes are."""
        seconds = dict.fromkeys(BREAKDOWN, 0.0)
        moved = {"bytes_up": 0.0, "bytes_down": 0.0}
        busy_s = 0.0
        for piece, spent in zip(self._pieces, self._spent, strict=True):
            weight = piece.times / self.rounds
            for name, of_each_s in spent.items():
                seconds[name] += weight * float(of_each_s.mean())
            for name, size_bytes in traffic(piece.ops).items():
                moved[name] += weight * size_bytes
            jobs = piece.ops[piece.ops["node"] == b"server"]
            busy_s += weight * float((jobs["ended_s"] - jobs["started_s"]).sum())
        lane_s = workers * self.round_s
        return {
            "round_s": self.round_s, **{f"{name}_s": spent_s for name, spent_s in seconds.items()}, **moved,
            "server_busy": busy_s / lane_s if lane_s and np.isfinite(lane_s) else None,
        }  # fmt: skip

    def clients(self) -> pd.DataFrame:
        """One row per client: device, group, rates, and what it spends of time and energy where in an average round.

        Of the rounds in which it takes part; NaN for a client that never does, and for energy where no power is known.
        """
        n, power = len(self.fleet.macs_per_s), self.fleet.power
        seconds = {name: np.zeros(n) for name in (*OWN, "rest")}
        rounds, joule = np.zeros(n), np.full(n, np.nan if power is None else 0.0)
        for piece, spent in zip(self._pieces, self._spent, strict=True):
            who = np.asarray(piece.participants)
            rounds[who] += 0 if piece.is_aside else piece.times
            for name, of_each_s in spent.items():
                seconds[name if name in OWN else "rest"][who] += piece.times * of_each_s
            if power is not None:
                whole = piece.participants, piece.started_s, piece.ended_s
                joule += piece.times * client_joule(piece.ops, power, *whole, self.fleet.presence)
        rounds[rounds == 0] = np.nan
        return pd.DataFrame(
            {
                "client": np.arange(n), "device": self.fleet.devices, "group": device_groups(self.fleet),
                "macs_per_s": self.fleet.macs_per_s, "uplink_bps": self.fleet.uplink_bps,
                "downlink_bps": self.fleet.downlink_bps,
                **{f"{name}_s": spent_s / rounds for name, spent_s in seconds.items()}, "joule": joule / rounds,
            }
        )  # fmt: skip
