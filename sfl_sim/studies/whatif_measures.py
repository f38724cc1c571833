"""Measures of a walk through the rounds of a scenario: rows of the tables of a what-if study."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sfl_sim.engine.round_tables import device_groups
from sfl_sim.metrics.breakdown import by_client, traffic
from sfl_sim.store.columns import BREAKDOWN
from sfl_sim.studies.walk import Walked

OWN = ("device", "uplink", "queue", "server", "downlink")
"""Places where a client spends time by itself; in the rest of a round it waits for others."""


class Measured:
    """Measures of the average round of `walked`.

    Args:
        rounds: how many there are.
    """

    def __init__(self, walked: Walked, rounds: int) -> None:
        self.fleet = walked.fleet
        self.rounds = rounds
        self._walked = walked.rounds
        self._spent = [by_client(one.busy, one.clients, one.started_s, one.ended_s) for one in walked.rounds]

    @property
    def round_s(self) -> float:
        """Duration of the average round: the total duration over the number of rounds."""
        return sum(each.n_rounds * (each.ended_s - each.started_s) for each in self._walked) / self.rounds

    def figures(self, workers: float) -> dict[str, Any]:
        """Give its duration, its breakdown for the average participant, its traffic, and the server's load."""
        seconds = dict.fromkeys(BREAKDOWN, 0.0)
        moved = {"bytes_up": 0.0, "bytes_down": 0.0}
        busy_s = 0.0
        for each, spent in zip(self._walked, self._spent, strict=True):
            weight = each.n_rounds / self.rounds
            for name, of_each_s in spent.items():
                seconds[name] += weight * float(of_each_s.mean())
            for name, size_bytes in traffic(each.ops).items():
                moved[name] += weight * size_bytes
            jobs = each.ops[each.ops["node"] == b"server"]
            busy_s += weight * float((jobs["ended_s"] - jobs["started_s"]).sum())
        lane_s = workers * self.round_s
        return {
            "round_s": self.round_s,
            **{f"{name}_s": spent_s for name, spent_s in seconds.items()},
            **moved,
            "server_busy": busy_s / lane_s if lane_s and np.isfinite(lane_s) else None,
        }

    def clients(self) -> pd.DataFrame:
        """Make a table of the clients: device, group, rates, and time and energy by place in an average round.

        Averages are over the rounds in which a client takes part; NaN if it never does, and for energy without power.
        """
        n, power = len(self.fleet.macs_per_s), self.fleet.power
        seconds = {name: np.zeros(n) for name in (*OWN, "rest")}
        rounds, joule = np.zeros(n), np.full(n, np.nan if power is None else 0.0)
        for each, spent in zip(self._walked, self._spent, strict=True):
            who = np.asarray(each.clients)
            rounds[who] += 0 if each.is_aside else each.n_rounds
            for name, of_each_s in spent.items():
                seconds[name if name in OWN else "rest"][who] += each.n_rounds * of_each_s
            if power is not None:
                joule += each.n_rounds * each.client_joule(power, self.fleet.presence)
        rounds[rounds == 0] = np.nan
        return pd.DataFrame(
            {
                "client": np.arange(n), "device": self.fleet.devices, "group": device_groups(self.fleet),
                "macs_per_s": self.fleet.macs_per_s, "uplink_bps": self.fleet.uplinks.mean_bps,
                "downlink_bps": self.fleet.downlinks.mean_bps,
                **{f"{name}_s": spent_s / rounds for name, spent_s in seconds.items()}, "joule": joule / rounds,
            }
        )  # fmt: skip
