"""Columns of the records: one flat row per operation, and the tables in the store.

Times are simulated seconds since the start of the run. `round` counts from 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

OP_DTYPE = np.dtype(
    [
        (
            "node",
            "S10",
        ),  # client, server, aggregator; for messages the link: uplink, downlink, peer
        ("kind", "S24"),  # the step's name, or what the message holds
        ("round", "<i4"),
        ("step", "<i4"),  # mini-batch index within the round, -1 if none
        ("client", "<i4"),  # owner of the device, link or job; -1 if none
        ("requested_s", "<f8"),
        ("started_s", "<f8"),
        ("ended_s", "<f8"),
        ("macs", "<f8"),
        ("bytes", "<i8"),
    ]
)

OP_COLUMNS = list(OP_DTYPE.names or ())

ROUND_COLUMNS = [
    "round",
    "started_s",
    "ended_s",
    "participants",
    "accuracy",
    "client_accuracy",
    "loss",
    "bytes_up",
    "bytes_down",
]
REPLAY_COLUMNS = [
    "replay_proportion", "replay_requested", "replay_collected", "replay_assistants", "replay_late", "replay_bytes",
    "replay_gradient_norm",
]  # fmt: skip
"""Further columns of rounds, of methods that replay samples of clients that do not take part (KoReA-SFL)."""
ATTENDANCE_COLUMNS = ["present", "lost", "lost_device_s", "lost_link_s", "lost_bytes"]
"""Further columns of rounds, where clients may go away: numbers of clients that are present at the beginning and that
are lost, and what the lost ones have spent."""
STALENESS_COLUMNS = ["staleness_mean", "staleness_max", "updates_discarded"]
"""Further columns of rounds, of asynchronous methods."""
ADAPTER_COLUMN = "adapter_error"
"""Further column of rounds, where the factors of adapters are averaged each by itself: the norm of
sum k BA - (sum k B)(sum k A) over that of sum k BA."""
LABEL_COLUMNS = ["round", "label", "position", "accuracy", "samples"]
CONFUSION_COLUMNS = ["round", "job", "time_s", "true_label", "predicted_label", "share"]
LEAKAGE_COLUMNS = ["round", "cut", "attack", "client", "metric", "value", "labels_sent"]
RECONSTRUCTION_COLUMNS = ["round", "cut", "attack", "client", "sample", "label", "shape", "original", "drawn"]
CLIENT_COLUMNS = [
    "client", "device", "macs_per_s", "uplink_bps", "downlink_bps", "latency_s", "trace_phase_s", "samples",
    "dominant_label", "label_samples", "cut", "cost", "training_factor", "joule",
]  # fmt: skip
LOSS_COLUMNS = ["round", "client", "lost_s", "returned_s", "node", "kind", "step", "cause"]
PRESENCE_COLUMNS = ["client", "from_s", "until_s"]
LAYER_COLUMNS = ["model", "layer", "name", "out_shape", "macs", "parameters", "activation_bytes", "pareto"]

BREAKDOWN = ["device", "uplink", "queue", "assistants", "server", "downlink", "barrier", "aggregate"]


def in_order(rows: NDArray[np.void]) -> NDArray[np.void]:
    """Sort operations by their end; those with equal ends by their contents.

    So the same operations give the same table and the same digest, from either clock.
    """
    ended_s = rows["ended_s"]
    if (ended_s[1:] < ended_s[:-1]).any():
        rows = rows.take(np.argsort(ended_s, kind="stable"))
        ended_s = rows["ended_s"]
    with_next = ended_s[1:] == ended_s[:-1]
    if not with_next.any():
        return rows
    together = np.append(with_next, False) | np.insert(with_next, 0, False)
    tied = rows[together]
    numbers = ("bytes", "macs", "step", "started_s", "requested_s", "client", "ended_s")
    names = [np.unique(tied[column], return_inverse=True)[1] for column in ("node", "kind")]
    rows = rows.copy()
    rows[together] = tied[np.lexsort((*names, *(tied[column] for column in numbers)))]
    return rows
