"""One typical round in detail, from the operations: who waited for the server, and when the server waited."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames, Variant

MAX_VARIANTS = 6


@dataclass(frozen=True)
class RoundView:
    """The operations of the round that is drawn, of one variant and seed; times are seconds since its start.

    Attributes:
        ops: columns node, client, requested_s, started_s, ended_s.
        mean_waiting: jobs in the server's queue, averaged over the time of the whole run.
    """

    variant: Variant
    duration_s: float
    ops: pd.DataFrame
    mean_waiting: float

    @cached_property
    def queue(self) -> pd.DataFrame:
        """The server's queue over the round, as `queue_length` gives it."""
        return queue_length(self.ops[self.ops["node"] == "server"])

    @cached_property
    def held(self) -> pd.DataFrame:
        """When the server is held idle, as `held_idle` gives it."""
        return held_idle(self.queue)


def round_views(frames: Frames) -> list[RoundView]:
    """The typical round of each of the first variants."""
    return [_view(frames, variant) for variant in frames.variants[:MAX_VARIANTS]]


def _view(frames: Frames, variant: Variant) -> RoundView:
    times = ["requested_s", "started_s", "ended_s"]
    rounds = frames.rounds.query("variant == @variant.label and seed == @variant.seed").set_index("round")
    started_s, ended_s = rounds.loc[frames.typical_round, ["started_s", "ended_s"]].to_numpy(dtype=float)
    ops = variant.ops(["node", "client", *times], round=frames.typical_round)
    ops[times] -= started_s
    jobs = variant.ops(["requested_s", "started_s"], node="server")
    waited_s = (jobs["started_s"] - jobs["requested_s"]).sum()
    run_s = rounds["ended_s"].max() - rounds["started_s"].min()
    return RoundView(variant, ended_s - started_s, ops, float(waited_s / run_s))


def queue_length(jobs: pd.DataFrame) -> pd.DataFrame:
    """How many jobs wait for the server and how many it serves, as step functions of time.

    Args:
        jobs: columns requested_s, started_s, ended_s.

    Returns:
        Columns time_s (increasing), waiting, serving: the counts that hold from that time until the next.
    """
    changes = [
        pd.DataFrame({"time_s": jobs["requested_s"], "waiting": 1, "serving": 0}),
        pd.DataFrame({"time_s": jobs["started_s"], "waiting": -1, "serving": 1}),
        pd.DataFrame({"time_s": jobs["ended_s"], "waiting": 0, "serving": -1}),
    ]
    return pd.concat(changes).groupby("time_s").sum().cumsum().reset_index()


def held_idle(queue: pd.DataFrame) -> pd.DataFrame:
    """The intervals (started_s, ended_s) in which jobs wait while the server serves nobody.

    It is held for a client whose turn it is and whose job has not come.
    """
    spans = pd.DataFrame({"started_s": queue["time_s"], "ended_s": queue["time_s"].shift(-1)})
    return spans[(queue["waiting"] > 0) & (queue["serving"] == 0)].dropna()
