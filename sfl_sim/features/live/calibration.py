"""Calibration by a live run: its scenario with the rates of devices, links and server that its nodes have measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import SERVER
from sfl_sim.scenario.load import Study, extended, load
from sfl_sim.store.folder import check_unchanged
from sfl_sim.store.places import DEVICE, DOWNLINK, UPLINK
from sfl_sim.store.reading import file_of, read_table
from sfl_sim.store.schema import tables
from sfl_sim.system.cost import read_cost, work_of_amounts

KEY = "live run"
FIRST = 2
"""The first round that tells a rate: processes may still have been loading code in the one before."""
APART = 4.0
"""Ratio of the sizes of messages from which on they tell a latency apart from a rate."""


@dataclass(frozen=True)
class Calibrated:
    """What a live run has told.

    Attributes:
        study: its scenario with these rates.
        errors: a row for each node, kind and part: mean seconds measured, and what the scenario now says.
    """

    study: Study
    errors: pd.DataFrame


def measured_steps(run: Path) -> pd.DataFrame:
    """Read what the nodes of a live run have measured, in seconds of the run, from the round on that tells rates.

    Raises ScenarioError if it is no live run, or of several variants or seeds.
    """
    steps, nodes = (tables("run")[name] for name in ("steps", "nodes"))
    if file_of(run, steps) is None:
        raise ScenarioError("is no live run (sfl-sim live)", key=KEY, found=str(run))
    check_unchanged(run, KEY)
    rows, slowdown = read_table(run, steps), read_table(run, nodes)["slowdown"].iloc[0]
    if len(rows[["variant", "seed"]].drop_duplicates()) > 1:
        raise ScenarioError("holds several variants or seeds; one is calibrated", key=KEY, found=str(run))
    rows = rows[rows["round"] >= FIRST] if rows["round"].max() >= FIRST else rows
    return rows.assign(lasts_s=rows["lasts_s"] / slowdown)


def calibrate_live(run: Path, cost: str | None = None) -> Calibrated:
    """Fit rates of devices, links and server to a live run.

    A node's rate is that at which all its steps together take what they took; a link's rate and latency are fitted to
    the sizes of its messages. A client that took part in no round gets the median of the others. Links stay the
    scenario's where clients share others behind them: messages do not tell their rates.

    Args:
        run: its folder.
        cost: cost profile of the devices and the server; None: that of the scenario.

    Raises ScenarioError if the run cannot tell them.
    """
    rows, study = measured_steps(run), load(run / "scenario.yaml")
    own = study.base.clients.compute.cost
    cost = cost or own or "macs"
    processor, n = read_cost(cost).processor(1.0), len(read_table(run, tables("run")["clients"]))
    steps = rows[rows["macs"] > 0]
    steps = steps.assign(at_one=[processor.seconds(work_of_amounts(row)) for row in steps.to_dict("records")])
    devices = {client: _rate(steps[(steps["node"] == DEVICE) & (steps["client"] == client)]) for client in range(n)}
    if not any(devices.values()):
        raise ScenarioError("tells no rate: no client computes in it", key=KEY, found=str(run))
    usual = float(np.median([rate for rate in devices.values() if rate]))
    are_alone = study.base.clients.network.shared is None
    links = {place: _links(rows, place, n) for place in (UPLINK, DOWNLINK) if are_alone}
    server = _rate(steps[steps["node"] == SERVER.role])
    layer: dict[str, Any] = {
        "clients.compute.profile": None,
        "clients.compute.macs_per_s": [_short(devices[client] or usual) for client in range(n)],
        "clients.compute.training_factor": None,
        "clients.compute.cost": cost,
    }
    if links:
        both = zip(links[UPLINK], links[DOWNLINK], strict=True)
        layer |= {
            "clients.network.profile": None,
            "clients.network.uplink_bps": [_short(rate) for rate, _ in links[UPLINK]],
            "clients.network.downlink_bps": [_short(rate) for rate, _ in links[DOWNLINK]],
            "clients.network.latency_s": [_short((up + down) / 2) for (_, up), (_, down) in both],
        }
    if server:
        layer |= {"server.macs_per_s": _short(server), "server.speedup": None, "server.cost": cost}
    found = extended(study, layer)
    return Calibrated(found, _errors(rows, steps, devices, server, links))


def _rate(steps: pd.DataFrame) -> float | None:
    """Give the MACs per second at which steps together take what they took; None without any."""
    return float(steps["at_one"].sum() / steps["lasts_s"].sum()) if len(steps) else None


def _links(rows: pd.DataFrame, place: str, n: int) -> list[tuple[float, float]]:
    """Give bits per second and latency in seconds of each client; the median ones to clients without messages."""
    sent = rows[(rows["node"] == place) & (rows["size_bytes"] > 0)]
    if sent.empty:
        raise ScenarioError(f"tells no rate: no client has messages on its {place}", key=KEY)
    known = {client: _link(messages) for client, messages in sent.groupby("client")}
    rate, latency_s = np.median(list(known.values()), axis=0)
    return [known.get(client, (rate, latency_s)) for client in range(n)]


def _link(sent: pd.DataFrame) -> tuple[float, float]:
    """Fit bits per second and latency in seconds to a client's messages; without several sizes, there is no latency."""
    by_size = sent.groupby("size_bytes")["lasts_s"].median()
    sizes = by_size.index.to_numpy(float)
    if sizes.max() < APART * sizes.min():
        return 8 * sent["size_bytes"].sum() / sent["lasts_s"].sum(), 0.0
    slope, latency_s = np.polyfit(sizes, by_size.to_numpy(float), 1)
    if slope <= 0 or latency_s < 0:
        return 8 * sent["size_bytes"].sum() / sent["lasts_s"].sum(), 0.0
    return float(8 / slope), float(latency_s)


def _errors(
    rows: pd.DataFrame, steps: pd.DataFrame, devices: Mapping[int, float | None], server: float | None, links: Any
) -> pd.DataFrame:
    rate = [
        devices.get(client) if node == DEVICE else server
        for node, client in zip(steps["node"], steps["client"], strict=True)
    ]
    computed = steps.assign(priced_s=steps["at_one"] / np.array(rate, float))
    sent = rows[rows["node"].isin(links)]
    told = [links[place][client] for place, client in zip(sent["node"], sent["client"], strict=True)]
    bps, latency_s = np.array(told, float).reshape(-1, 2).T
    sent = sent.assign(priced_s=8 * sent["size_bytes"] / bps + latency_s)
    both = pd.concat([computed, sent])
    means = both.groupby(["node", "kind", "part"])[["lasts_s", "priced_s"]].mean()
    return means.assign(ratio=means["lasts_s"] / means["priced_s"]).reset_index()


def _short(number: float) -> float:
    return float(f"{number:.6g}")
