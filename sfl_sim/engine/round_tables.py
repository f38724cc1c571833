"""Rows of the tables that a run leaves (docs/output.md), from what an experiment knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sfl_sim.metrics.accuracy import performance_gap
from sfl_sim.metrics.breakdown import breakdown, traffic
from sfl_sim.system.fleet import Fleet
from sfl_sim.training.deployed import Answers
from sfl_sim.training.evaluate import Evaluation

Ints = NDArray[np.int64]


MAX_NAMED_GROUPS = 8


def device_groups(fleet: Fleet) -> Sequence[str]:
    """What clients are told apart by: their devices, or how fast these are where there are many."""
    if len(set(fleet.devices)) <= MAX_NAMED_GROUPS:
        return fleet.devices
    return list(pd.qcut(pd.Series(fleet.macs_per_s).rank(method="first"), 3, labels=["slow", "middle", "fast"]))


def client_table(fleet: Fleet, counts: Ints, cuts: Sequence[int]) -> pd.DataFrame:
    """One row per client: device, rates, samples, dominant label, and the last layer that it holds.

    Args:
        counts: (C, L) training samples of each label that each client holds.
        cuts: of the clients; empty where there is no split, or another one in every round.
    """
    return pd.DataFrame(
        {
            "client": np.arange(len(counts)),
            "device": fleet.devices,
            "macs_per_s": fleet.macs_per_s,
            "uplink_bps": fleet.uplink_bps,
            "downlink_bps": fleet.downlink_bps,
            "latency_s": fleet.latency_s,
            "samples": counts.sum(axis=1),
            "dominant_label": counts.argmax(axis=1),
            "label_samples": list(counts),
            "cost": fleet.cost,
            "cut": pd.Series(cuts, dtype="Int64").reindex(range(len(counts))),
        }
    )


def round_row(
    number: int, clients: Sequence[int], started_s: float, ended_s: float, ops: NDArray[np.void]
) -> dict[str, Any]:
    """The round's row of rounds.parquet, without what only a trained model can tell.

    Args:
        clients: the participants.
        ops: the round's operations (`OP_DTYPE`).
    """
    spent = breakdown(ops, clients, started_s, ended_s)
    return {
        "round": number, "started_s": started_s, "ended_s": ended_s, "participants": len(clients),
        "accuracy": None, "client_accuracy": None, "loss": None, "performance_gap": None, "client_joule": None,
        **traffic(ops),
        **{f"{name}_s": seconds for name, seconds in spent.items()},
    }  # fmt: skip


def learned(found: Evaluation, test_sets: Sequence[Ints]) -> dict[str, Any]:
    """What the round's row says of the trained model; `test_sets` are the clients' own."""
    return {
        "accuracy": found.accuracy,
        "client_accuracy": found.client_accuracy(test_sets),
        "loss": found.loss,
        "performance_gap": performance_gap(found.by_label),
    }


def label_rows(number: int, found: Evaluation, names: Sequence[str], order: Ints) -> list[dict[str, Any]]:
    """The round's rows of labels.parquet, in the `order` of the labels in the cyclic list."""
    return [
        {
            "round": number,
            "label": label,
            "label_name": names[label],
            "position": position,
            "accuracy": float(found.by_label[label]),
            "samples": int(found.samples[label]),
        }
        for position, label in enumerate(map(int, order))
    ]


def answer_table(answers: Sequence[Answers], test_sets: Sequence[Ints], labels: Ints, counts: Ints) -> pd.DataFrame:
    """Rows of answers.parquet: each client's test samples in the order of its test set, and who answers them right.

    Args:
        labels: of all test samples.
        counts: (C, L) training samples of each label that each client holds.
    """
    client = np.repeat(np.arange(len(test_sets)), [len(own) for own in test_sets])
    sample = np.concatenate(test_sets)
    return pd.DataFrame(
        {
            "client": client,
            "sample": sample,
            "label": labels[sample],
            "seen": counts[client, labels[sample]] > 0,
            "entropy": np.concatenate([found.entropy for found in answers]),
            "device_correct": np.concatenate([found.device_correct for found in answers]),
            "server_correct": np.concatenate([found.server_correct for found in answers]),
        }
    )
