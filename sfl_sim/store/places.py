"""Places of recorded operations: the words in column `node`, and what they mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfl_sim import ops

DEVICE, UPLINK, DOWNLINK, PEER = "client", "uplink", "downlink", "peer"
"""Device of a client, and links of messages: up from a client, down to one, and from one client to another."""
SERVER, AGGREGATOR = ops.SERVER.role, ops.AGGREGATOR.role
SENT, RECEIVED = (UPLINK, PEER), (DOWNLINK, PEER)
"""Messages that clients send, and that they receive."""
LINKS = (UPLINK, DOWNLINK, PEER)
STATIONS = (SERVER, AGGREGATOR)
"""Places where jobs of all clients wait for a worker; any other place belongs to one client."""
OWN = {"device": (DEVICE,), "uplink": SENT, "downlink": (DOWNLINK,)}
"""Places of a client's own, by the part of its round (`store.columns.BREAKDOWN`) that operations there count as."""
NOBODY = -1
"""What column `client` holds for operations that belong to no client."""


def at(node: Any, *places: str) -> NDArray[np.bool_]:
    """Mark the operations at any of the `places`.

    Args:
        node: (N,) that column of the records: an array of bytes or of text, or a series.
    """
    if isinstance(node, np.ndarray):
        return np.isin(node, np.array(places, dtype=node.dtype.kind))
    return np.asarray(node.isin(places))
