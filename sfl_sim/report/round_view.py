"""One typical round in detail, from the operations: who waited for the server, and when the server waited."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sfl_sim.report.labels import label_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sfl_sim.report.frames import Frames, Variant

MAX_VARIANTS = 6


@dataclass(frozen=True)
class RoundView:
    """The operations of the round that is drawn, of one variant and seed; times are seconds since its start.

    Attributes:
        ops: columns node, kind, client, requested_s, started_s, ended_s, macs.
        mean_waiting: jobs in the server's queue, averaged over the time of the whole run.
        label_samples: (the round's clients x labels in the cyclic order) how many samples of each label they hold;
            without columns if unknown.
    """

    variant: Variant
    duration_s: float
    ops: pd.DataFrame
    mean_waiting: float
    label_samples: pd.DataFrame

    @cached_property
    def queue(self) -> pd.DataFrame:
        """The server's queue over the round, as `queue_length` gives it."""
        return queue_length(self.ops[self.ops["node"] == "server"])

    @cached_property
    def held(self) -> pd.DataFrame:
        """When the server is held idle, as `held_idle` gives it."""
        return held_idle(self.queue)

    @property
    def training(self) -> pd.DataFrame:
        """The training jobs of the server, in the order of service."""
        return self.ops[(self.ops["node"] == "server") & (self.ops["kind"] == "train")].sort_values("started_s")

    def trained(self, edges_s: NDArray[np.float64]) -> pd.DataFrame:
        """What the server trains between two instants, as `work_by_label` gives it."""
        return work_by_label(self.training, self.label_samples, edges_s)

    def trained_in_turn(self, edges: NDArray[np.float64]) -> pd.DataFrame:
        """The same for jobs counted from 0 instead of instants."""
        jobs = self.training
        turns = np.arange(len(jobs))
        return work_by_label(jobs.assign(started_s=turns, ended_s=turns + 1), self.label_samples, edges)


def round_views(frames: Frames) -> list[RoundView]:
    """The typical round of each of the first variants."""
    return [_view(frames, variant) for variant in frames.variants[:MAX_VARIANTS]]


def _view(frames: Frames, variant: Variant) -> RoundView:
    times = ["requested_s", "started_s", "ended_s"]
    rounds = frames.rounds.query("variant == @variant.label and seed == @variant.seed").set_index("round")
    started_s, ended_s = rounds.loc[frames.typical_round, ["started_s", "ended_s"]].to_numpy(dtype=float)
    ops = variant.ops(["node", "kind", "client", *times, "macs"], round=frames.typical_round)
    ops[times] -= started_s
    jobs = variant.ops(["requested_s", "started_s"], node="server")
    waited_s = (jobs["started_s"] - jobs["requested_s"]).sum()
    run_s = rounds["ended_s"].max() - rounds["started_s"].min()
    held = _label_samples(frames, variant)
    held = held[held.index.isin(ops["client"])]
    return RoundView(variant, ended_s - started_s, ops, float(waited_s / run_s), held)


def _label_samples(frames: Frames, variant: Variant) -> pd.DataFrame:
    clients = frames.clients.query("variant == @variant.label and seed == @variant.seed").set_index("client")
    if clients["label_samples"].isna().any():
        return pd.DataFrame(index=clients.index)
    samples = pd.DataFrame(np.stack(list(clients["label_samples"])), clients.index)
    names = label_names(frames, variant)
    return samples[names.index].set_axis(list(names), axis=1) if len(names) else samples.add_prefix("label ")


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


def work_by_label(jobs: pd.DataFrame, label_samples: pd.DataFrame, edges_s: NDArray[np.float64]) -> pd.DataFrame:
    """MACs of training jobs by label and time; with one cut for all clients they are proportional to samples.

    Args:
        jobs: columns client, started_s, ended_s, macs. The work of a job is spread evenly over its service, and over
            labels as its client's samples are, or as those of all given clients if it is nobody's (client -1).
        label_samples: clients x labels.
        edges_s: N + 1 increasing instants.

    Returns:
        Labels x N.
    """
    samples = pd.concat([label_samples, label_samples.sum().rename(-1).to_frame().T])
    shares = samples.div(samples.sum(axis=1).clip(lower=1), axis=0)
    work = np.zeros((len(samples), len(edges_s) - 1))
    for client, own in jobs.sort_values("started_s").groupby("client"):
        times_s = own[["started_s", "ended_s"]].to_numpy().ravel()
        done = np.repeat(np.r_[0.0, own["macs"].cumsum()], 2)[1:-1]
        work[samples.index.get_loc(client)] = np.diff(np.interp(edges_s, times_s, done))
    return pd.DataFrame(shares.to_numpy().T @ work, index=samples.columns)
