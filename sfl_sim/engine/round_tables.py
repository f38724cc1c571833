"""Rows of the tables in a run folder (docs/output.md), made from an experiment's results."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from sfl_sim.engine.walk import WalkedRound
from sfl_sim.goals import Goal
from sfl_sim.metrics import scores
from sfl_sim.metrics.breakdown import breakdown, traffic
from sfl_sim.metrics.busy import server_load
from sfl_sim.metrics.scores import performance_gap
from sfl_sim.ops import ServerNode
from sfl_sim.sim.event_clock import Queueing
from sfl_sim.system.fleet import Fleet
from sfl_sim.training.deployed import Answers
from sfl_sim.training.evaluate import Evaluation

Ints = NDArray[np.int64]


MAX_NAMED_GROUPS = 8


def device_groups(fleet: Fleet) -> Sequence[str]:
    """Name each client's group: its device, or slow, middle or fast with more than MAX_NAMED_GROUPS devices."""
    if len(set(fleet.devices)) <= MAX_NAMED_GROUPS:
        return fleet.devices
    rank = np.argsort(np.argsort(fleet.macs_per_s, kind="stable"))
    thirds = np.searchsorted(np.quantile(rank, [1 / 3, 2 / 3]), rank)
    return [("slow", "middle", "fast")[third] for third in thirds]


def client_table(fleet: Fleet, counts: Ints, cuts: Sequence[int]) -> pd.DataFrame:
    """Make a table with one row per client: device, rates, samples, dominant label, and last layer that it holds.

    Args:
        counts: (C, L) training samples of each label that each client holds.
        cuts: the clients' cuts; empty without a split, or if the cut changes every round.
    """
    return pd.DataFrame(
        {
            "client": np.arange(len(counts)),
            "device": fleet.devices,
            "macs_per_s": fleet.macs_per_s,
            "uplink_bps": fleet.uplinks.mean_bps,
            "downlink_bps": fleet.downlinks.mean_bps,
            "latency_s": fleet.latency_s,
            "trace_phase_s": fleet.uplinks.phases_s if fleet.uplinks.patterns else np.nan,
            "samples": counts.sum(axis=1),
            "dominant_label": counts.argmax(axis=1),
            "label_samples": _lists(counts),
            "cost": fleet.cost,
            "training_factor": fleet.training_factor,
            "cut": pd.Series(cuts, dtype="Int64").reindex(range(len(counts))),
        },
        copy=False,
    )


def _lists(rows: Ints) -> pd.arrays.ArrowExtensionArray:
    """Make a column of lists, which take a tenth of the memory of as many arrays."""
    offsets = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    return pd.arrays.ArrowExtensionArray(pa.ListArray.from_arrays(offsets, rows.ravel()))


def round_row(walked: WalkedRound) -> dict[str, Any]:
    """Make the round's row of rounds.parquet, with None in the columns that need power or a trained model."""
    spent = breakdown(walked.busy, walked.clients, walked.started_s, walked.ended_s)
    return {
        "round": walked.number, "started_s": walked.started_s, "ended_s": walked.ended_s,
        "participants": len(walked.clients),
        "accuracy": None, "client_accuracy": None, "loss": None, "performance_gap": None, "client_joule": None,
        **traffic(walked.ops),
        **{f"{name}_s": seconds for name, seconds in spent.items()},
    }  # fmt: skip


def learned(evaluation: Evaluation, test_sets: Sequence[Ints], counts: Ints) -> dict[str, Any]:
    """Give the columns of the round's row that need the trained model.

    Args:
        test_sets: the clients' own.
        counts: (C, L) training samples of each label that each client holds.
    """
    if not evaluation.goal.scores_labels:
        return {"loss": evaluation.loss, **_scores(evaluation)}
    return {
        "accuracy": evaluation.accuracy,
        "client_accuracy": evaluation.client_accuracy(test_sets),
        "loss": evaluation.loss,
        "performance_gap": performance_gap(evaluation.by_label),
        **_of_clients(evaluation, counts),
        **_of_labels(evaluation),
        **({"perplexity": evaluation.perplexity} if evaluation.goal is Goal.TOKENS else {}),
    }


def _of_clients(evaluation: Evaluation, counts: Ints) -> dict[str, float | None]:
    """Score the worst clients by their labels; with a single label all clients have the same score."""
    if counts.shape[1] == 1:
        return {}
    return {"worst_clients": scores.worst_decile(scores.by_client(evaluation.by_label, counts))}


def _of_labels(evaluation: Evaluation) -> dict[str, float | None]:
    """Score how sure the answers are, and of two labels how well they are told apart."""
    if evaluation.confidence is None:
        return {}
    scored = {"calibration_error": scores.calibration_error(evaluation.confidence, evaluation.hits.astype(bool))}
    if evaluation.margins is None:
        return scored
    is_second = (evaluation.margins > 0) == evaluation.hits  # ties answer the first
    return scored | {"auroc": scores.auroc(evaluation.margins, is_second)}


def _scores(evaluation: Evaluation) -> Mapping[str, float | None]:
    """Score what is predicted other than labels."""
    if evaluation.goal is Goal.PIXELS:
        assert evaluation.confusion is not None
        return scores.of_pixels(evaluation.confusion)
    assert evaluation.outputs is not None
    assert evaluation.targets is not None
    outputs, targets = (tensor.double().cpu().numpy() for tensor in (evaluation.outputs, evaluation.targets))
    return (scores.of_numbers if evaluation.goal is Goal.NUMBERS else scores.of_sets)(outputs, targets)


def label_rows(number: int, evaluation: Evaluation, names: Sequence[str], order: Ints) -> list[dict[str, Any]]:
    """Make the round's rows of labels.parquet, in the `order` of the labels in the cyclic list; none without labels."""
    if not evaluation.goal.scores_labels:
        return []
    return [
        {
            "round": number,
            "label": label,
            "label_name": names[label],
            "position": position,
            "accuracy": float(evaluation.by_label[label]),
            "samples": int(evaluation.samples[label]),
        }
        for position, label in enumerate(map(int, order))
    ]


def answer_table(answers: Sequence[Answers], test_sets: Sequence[Ints], labels: Ints, counts: Ints) -> pd.DataFrame:
    """Make the rows of answers.parquet: each client's test samples in order, and which model answers them correctly.

    Args:
        labels: labels of all test samples.
        counts: (C, L) training samples of each label that each client holds.
    """
    client = np.repeat(np.arange(len(test_sets)), [len(samples) for samples in test_sets])
    sample = np.concatenate(test_sets)
    return pd.DataFrame(
        {
            "client": client,
            "sample": sample,
            "label": labels[sample],
            "seen": counts[client, labels[sample]] > 0,
            "entropy": np.concatenate([of_client.entropy for of_client in answers]),
            "device_correct": np.concatenate([of_client.device_correct for of_client in answers]),
            "server_correct": np.concatenate([of_client.server_correct for of_client in answers]),
        }
    )


class ServerTable:
    """Sums over the rounds of a run what each server does.

    Args:
        queues: how each server serves jobs.
    """

    def __init__(self, fleet: Fleet, queues: Mapping[ServerNode, Queueing]) -> None:
        self.fleet = fleet
        self.queues = queues
        self._sums: dict[tuple[str, str], float] = defaultdict(float)
        self._clients: dict[str, frozenset[int]] = defaultdict(frozenset)
        self._most_bytes: dict[ServerNode, int] = {}
        self._ended_s = 0.0

    def hold(self, size_bytes: Mapping[ServerNode, int]) -> None:
        """Note the bytes of models that servers hold in a round."""
        for server, held in size_bytes.items():
            self._most_bytes[server] = max(held, self._most_bytes.get(server, 0))

    def add(self, rows: Any, ended_s: float) -> None:
        """Add the operations of a round (`OP_DTYPE`), and its end."""
        self._ended_s = ended_s
        load = server_load(rows)
        for name, clients in load.pop("clients").dropna().items():
            self._clients[str(name)] |= clients
        for column, by_name in load.fillna(0).items():
            for name, value in by_name.items():
                self._sums[str(name), str(column)] += value

    def table(self) -> pd.DataFrame:
        """Make the table: servers.parquet."""
        rows = [self._row(node) for node in self.queues]
        return pd.DataFrame(rows).astype({"model_bytes": "Int64", "jobs": "int64"})

    def _row(self, node: ServerNode) -> dict[str, Any]:
        name, workers = str(node), self.queues[node].workers
        busy_s, jobs = self._sums[name, "busy_s"], int(self._sums[name, "jobs"])
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
            "server": name, "above": above, "workers": workers, "macs_per_s": rate, **links,
            "clients": len(self._clients[name]), "jobs": jobs, "busy_s": busy_s,
            "waited_s": self._sums[name, "waited_s"] / jobs if jobs else np.nan,
            "busy": busy_s / (workers * self._ended_s) if self._ended_s and np.isfinite(workers) else np.nan,
            "model_bytes": self._most_bytes.get(node, pd.NA),
        }  # fmt: skip
