"""Places of recorded operations: the words in column `node`, and what they mean."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfl_sim import ops

DEVICE, UPLINK, DOWNLINK, PEER, BACKBONE = "client", "uplink", "downlink", "peer", "backbone"
"""Device of a client, and links of messages: up from a client, down to one, from one client to another, and between two
servers."""
SERVER, AGGREGATOR = ops.SERVER.role, ops.AGGREGATOR.role
SENT, RECEIVED = (UPLINK, PEER), (DOWNLINK, PEER)
"""Messages that clients send, and that they receive."""
LINKS = (UPLINK, DOWNLINK, PEER)
"""Links of clients."""
OWN = {"device": (DEVICE,), "uplink": SENT, "downlink": (DOWNLINK,), "backbone": (BACKBONE,)}
"""Places without a queue of jobs, by the part of a round (`store.columns.BREAKDOWN`) as which they count."""
NOBODY = -1
"""What column `client` holds for operations that belong to no client."""


def at_servers(node: Any) -> NDArray[np.bool_]:
    """Mark the operations at any server with a queue: the main one, and those of all tiers; `node` as for `at`."""
    return ~at(node, DEVICE, *LINKS, BACKBONE, AGGREGATOR)


def at(node: Any, *places: str) -> NDArray[np.bool_]:
    """Mark the operations at any of the `places`.

    Args:
        node: (N,) that column of the records: an array of bytes or of text, or a series.
    """
    if isinstance(node, np.ndarray):
        return np.isin(node, np.array(places, dtype=node.dtype.kind))
    return np.asarray(node.isin(places))
