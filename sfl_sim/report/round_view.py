"""One typical round in detail, from its operations: which jobs waited for the server, and when the server waited."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sfl_sim.metrics.critical_path import CriticalPath, critical_path
from sfl_sim.metrics.queue import held_idle, queue_length, work_by_label
from sfl_sim.report.frames import label_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sfl_sim.report.frames import Frames, Variant

MAX_VARIANTS = 6
ASSISTING = ["request", "recall", "knowledge"]
"""Kinds of operations that only clients have who give features to others: what is asked, done and sent."""


@dataclass(frozen=True)
class RoundView:
    """The operations of the round that is drawn, of one variant and seed; times are seconds since its start.

    Attributes:
        ops: columns node, kind, step, client, requested_s, started_s, ended_s, macs.
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

    @cached_property
    def critical(self) -> CriticalPath:
        """Why the round takes so long."""
        return critical_path(self.ops, 0.0, self.duration_s)

    @cached_property
    def retimed(self) -> pd.DataFrame:
        """What changes of the world make of a round: columns round, change, before_s, after_s; no rows if unknown."""
        return self.variant.run.retimed(self.variant.name, self.variant.seed)

    @property
    def training(self) -> pd.DataFrame:
        """The training jobs of the server, in the order of service."""
        return self.ops[(self.ops["node"] == "server") & (self.ops["kind"] == "train")].sort_values("started_s")

    @cached_property
    def assistants(self) -> list[int]:
        """The clients that give features to others and do not train in the round themselves."""
        own = self.ops[self.ops["node"] == "client"]
        assisting = self.ops.loc[self.ops["kind"].isin(ASSISTING), "client"]
        return sorted(set(assisting) - set(own.loc[~own["kind"].isin(ASSISTING), "client"]))

    @cached_property
    def without_features(self) -> pd.DataFrame:
        """When mini-batches wait for features of assistants: from the arrival of the smashed data to the server's job.

        Columns client, started_s, ended_s.
        """
        smashed = self.ops[(self.ops["node"] == "uplink") & (self.ops["kind"] == "smashed")]
        are_any = (self.ops["kind"] == "knowledge").any()
        jobs = self.training[["client", "step", "requested_s"]]
        pairs = smashed[["client", "step", "ended_s"]].merge(jobs if are_any else jobs.head(0))
        return pairs.set_axis(["client", "step", "started_s", "ended_s"], axis=1)

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
    ops = variant.ops(["node", "kind", "step", "client", *times, "macs"], round=frames.typical_round)
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


def drawn(frames: Frames) -> str:
    """What captions say where only the first variants are drawn."""
    n_variants = len(frames.variants)
    return f"; the first {MAX_VARIANTS} of {n_variants} variants" if n_variants > MAX_VARIANTS else ""
