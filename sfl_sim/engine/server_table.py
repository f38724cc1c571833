"""The table of the servers of a run with several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from sfl_sim.metrics.servers import server_load
from sfl_sim.ops import ServerNode
from sfl_sim.sim.event_clock import Queueing
from sfl_sim.system.fleet import Fleet


class ServerTable:
    """Sums over the rounds of a run what each server does.

    Args:
        queues: how each server serves jobs.
    """

    def __init__(self, fleet: Fleet, queues: Mapping[ServerNode, Queueing]) -> None:
        self.fleet = fleet
        self.queues = queues
        self._load: dict[str, dict[str, Any]] = {}
        self._most_bytes: dict[ServerNode, int] = {}
        self._ended_s = 0.0

    def hold(self, size_bytes: Mapping[ServerNode, int]) -> None:
        """Note the bytes of models that servers hold in a round."""
        for server, held in size_bytes.items():
            self._most_bytes[server] = max(held, self._most_bytes.get(server, 0))

    def add(self, rows: Any, ended_s: float) -> None:
        """Add the operations of a round (`OP_DTYPE`), and its end."""
        self._ended_s = ended_s
        for name, load in server_load(rows).iterrows():
            known = self._load.setdefault(
                str(name), {"jobs": 0, "busy_s": 0.0, "waited_s": 0.0, "clients": frozenset()}
            )
            for column, value in load.items():
                if value == value:  # no NaN
                    known[str(column)] = (
                        known[str(column)] | value if column == "clients" else known[str(column)] + value
                    )

    def table(self) -> pd.DataFrame:
        """Make the table: servers.parquet."""
        rows = [self._row(node) for node in self.queues]
        return pd.DataFrame(rows).astype({"model_bytes": "Int64", "jobs": "int64"})

    def _row(self, node: ServerNode) -> dict[str, Any]:
        load = self._load.get(str(node), {})
        workers, busy_s, jobs = self.queues[node].workers, load.get("busy_s", 0.0), int(load.get("jobs", 0))
        tier = self.fleet.tiers.get(node.role)
        above, links = "", {"uplink_bps": np.nan, "downlink_bps": np.nan, "latency_s": np.nan}
        rate = self.fleet.server_macs_per_s
        if tier is not None:
            k, of_tier = node.number - 1, tier.servers
            above, rate = str(tier.above[k]), of_tier.macs_per_s[k]
            links = {
                "uplink_bps": of_tier.uplinks.mean_bps[k], "downlink_bps": of_tier.downlinks.mean_bps[k],
                "latency_s": of_tier.latency_s[k],
            }  # fmt: skip
        return {
            "server": str(node), "above": above, "workers": workers, "macs_per_s": rate, **links,
            "clients": len(load.get("clients", ())), "jobs": jobs, "busy_s": busy_s,
            "waited_s": load.get("waited_s", 0.0) / jobs if jobs else np.nan,
            "busy": busy_s / (workers * self._ended_s) if self._ended_s and np.isfinite(workers) else np.nan,
            "model_bytes": self._most_bytes.get(node, pd.NA),
        }  # fmt: skip
