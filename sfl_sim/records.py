"""The shape of what is recorded: one flat row per operation, and the tables that the store keeps.

Times are simulated seconds since the start of the run. `round` counts from 1.
"""

from __future__ import annotations

import numpy as np

OP_DTYPE = np.dtype(
    [
        (
            "node",
            "S10",
        ),  # client, server, aggregator; for messages the link: uplink, downlink, peer, backbone
        ("kind", "S24"),  # the step's name, or what the message holds
        ("round", "<i4"),
        ("step", "<i4"),  # mini-batch index within the round, -1 if none
        ("client", "<i4"),  # whose device, link or job it is; -1 if nobody's
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
    "loss",
    "bytes_up",
    "bytes_down",
]
LABEL_COLUMNS = ["round", "label", "position", "accuracy", "samples"]
CLIENT_COLUMNS = [
    "client", "device", "macs_per_s", "uplink_bps", "downlink_bps", "latency_s", "samples", "dominant_label"
]  # fmt: skip

BREAKDOWN = ["device", "uplink", "queue", "server", "downlink", "barrier", "aggregate"]
