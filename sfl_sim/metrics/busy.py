"""What devices, links and servers have done, from recorded operations, and the network that servers make up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sfl_sim.store import places

if TYPE_CHECKING:
    import networkx as nx


def busy(rows: NDArray[np.void]) -> tuple[dict[int, tuple[float, ...]], tuple[float, float]]:
    """Sum a round's operations (`OP_DTYPE`).

    Returns:
        of each client that has computed or sent: seconds and MACs of its device, seconds and bytes of its uplink, and
            of its downlink; of its jobs at servers seconds, their number, and the seconds for which they waited.
        MACs of servers, and seconds of their workers.
    """
    lasted_s, waited_s = rows["ended_s"] - rows["started_s"], rows["started_s"] - rows["requested_s"]
    at_servers, ones = places.at_servers(rows["node"]) & (rows["macs"] > 0), np.ones(len(rows))
    n = int(rows["client"].max(initial=-1)) + 1
    sums = []
    for where, amounts in (
        (places.at(rows["node"], places.DEVICE), (lasted_s, rows["macs"])),
        (places.at(rows["node"], places.UPLINK), (lasted_s, rows["bytes"])),
        (places.at(rows["node"], places.DOWNLINK), (lasted_s, rows["bytes"])),
        (at_servers, (lasted_s, ones, waited_s)),
    ):
        counted = where & (rows["client"] >= 0) & ((lasted_s > 0) | at_servers)  # what takes no time has no rate
        sums += [np.bincount(rows["client"][counted], each[counted], minlength=n) for each in amounts]
    table = np.stack(sums, axis=1)
    known = np.flatnonzero((table[:, 0] > 0) | (table[:, 2] > 0))
    return (
        {c: tuple(table[c].tolist()) for c in known.tolist()},
        (float(rows["macs"][at_servers].sum()), float(lasted_s[at_servers].sum())),
    )


def server_load(rows: NDArray[np.void]) -> pd.DataFrame:
    """Sum over the jobs at each server.

    Args:
        rows: operations (`OP_DTYPE`).

    Returns:
        By name of the server: `jobs` of clients, `busy_s` with all its jobs, `waited_s` of the clients' jobs in its
        queue, and `clients` whose jobs they were (a set).
    """
    jobs = pd.DataFrame(rows[places.at_servers(rows["node"])])
    jobs["node"] = jobs["node"].str.decode("ascii")
    of_clients = jobs[jobs["client"] != places.NOBODY]
    by_name = of_clients.groupby("node")
    return pd.DataFrame(
        {
            "jobs": by_name.size(),
            "busy_s": (jobs["ended_s"] - jobs["started_s"]).groupby(jobs["node"]).sum(),
            "waited_s": (of_clients["started_s"] - of_clients["requested_s"]).groupby(of_clients["node"]).sum(),
            "clients": by_name["client"].agg(frozenset),
        }
    )


def network_graph(clients: pd.DataFrame, servers: pd.DataFrame, served: pd.DataFrame) -> nx.Graph[str]:
    """Make the graph of a network whose nodes are clients (`client0`, ...) and servers, each with what is known of it.

    Args:
        clients: rows of clients.parquet.
        servers: rows of servers.parquet, from the clients up.
        served: columns node, client: which server of the first tier serves which client; the last row counts.
    """
    import networkx as nx  # takes 0.15 s to import

    graph: nx.Graph[str] = nx.Graph()
    about = ["workers", "macs_per_s", "clients", "jobs", "busy", "waited_s", "model_bytes"]
    links = ["uplink_bps", "downlink_bps", "latency_s"]
    for row in servers.to_dict("records"):
        graph.add_node(row["server"], **{key: row[key] for key in about if _is_known(row.get(key))})
        if row["above"]:
            graph.add_edge(row["server"], row["above"], **{key: row[key] for key in links if _is_known(row[key])})
    homes = dict(zip(served["client"], served["node"], strict=True))
    for row in clients.to_dict("records"):
        graph.add_node(f"client{row['client']}", device=row["device"], macs_per_s=row["macs_per_s"])
        if row["client"] in homes:
            graph.add_edge(f"client{row['client']}", homes[row["client"]], **{key: row[key] for key in links})
    return graph


def _is_known(value: Any) -> bool:
    return bool(pd.notna(value) and np.isfinite(value))
