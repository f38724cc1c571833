"""Panels on several servers: the network as a picture, and what each tier has done."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from sfl_sim.metrics.busy import network_graph
from sfl_sim.ops import role_of
from sfl_sim.report import display, figures, style
from sfl_sim.report.frames import Frames, ShownVariant, distinct
from sfl_sim.report.panel import Cell, Declared, Drawing, Table
from sfl_sim.store import places

if TYPE_CHECKING:
    import networkx as nx


MAX_CLIENTS = 300
NAMED = 20
"""Number of servers up to which each is named in the picture."""


def served(variant: ShownVariant, round: int) -> pd.DataFrame:
    """Find which server of the first tier has served which client in a round: columns node, client."""
    ops = variant.rows("ops", ["node", "client", "started_s"], round=round)
    servers = variant.rows("servers", ["server", "above"])
    first = set(servers["server"]) - set(servers["above"])
    jobs = ops[ops["node"].isin(first) & (ops["client"] != places.NOBODY)]
    return jobs.sort_values("started_s")[["node", "client"]].drop_duplicates().astype({"node": str})


def graph_of(frames: Frames, variant: ShownVariant) -> nx.Graph[str]:
    """Make the graph of a variant's network in a typical round."""
    clients, servers = variant.first_seed(frames.clients), variant.rows("servers")
    if servers.empty:
        one = pd.DataFrame([{"server": places.SERVER, "above": ""}])
        return network_graph(clients, one, clients[["client"]].assign(node=places.SERVER))
    return network_graph(clients, servers, served(variant, frames.typical_round))


def picture(graph: nx.Graph[str]) -> go.Figure:
    """Draw the network: servers above those that they serve, the darker the busier, and clients as dots."""
    levels = _levels(graph)
    bottom = levels[-1][:MAX_CLIENTS]
    x = {name: float(column) for column, name in enumerate(bottom)}
    for level in reversed(levels[:-1]):
        for name in level:
            below = [x[one] for one in graph[name] if one in x and one not in level]
            x[name] = float(np.mean(below)) if below else 0.0
    y = {name: height for height, level in enumerate(reversed(levels)) for name in level}
    figure = figures.canvas(130 * len(levels))
    ends = [(one, other) for one, other in graph.edges if one in x and other in x]
    figure.add_scatter(
        x=[at for pair in ends for at in (x[pair[0]], x[pair[1]], None)],
        y=[at for pair in ends for at in (y[pair[0]], y[pair[1]], None)],
        mode="lines", line={"color": style.GRID, "width": 1}, hoverinfo="skip", showlegend=False,
    )  # fmt: skip
    servers = [name for level in levels[:-1] for name in level]
    busy = [100 * graph.nodes[name].get("busy", 0.0) for name in servers]
    figure.add_scatter(
        x=[x[name] for name in servers], y=[y[name] for name in servers], mode="markers+text", showlegend=False,
        text=servers if len(servers) <= NAMED else None, textposition="top center", cliponaxis=False,
        marker={"size": 18, "symbol": "square", "color": busy, "colorscale": style.SHARE_SCALE, "cmin": 0,
                "cmax": max([1.0, *busy]), "line": {"color": style.INK, "width": 1},
                "colorbar": {"title": {"text": "busy (%)", "side": "right"}, "thickness": 10, "len": 0.8}},
        customdata=[_about(graph, name) for name in servers], hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(
        x=[x[name] for name in bottom], y=[0] * len(bottom), mode="markers", showlegend=False,
        marker={"size": 6, "color": style.RESOURCE_COLOURS["device"]},
        customdata=[_about(graph, name) for name in bottom],
        hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip
    figure.update_yaxes(visible=False, range=[-0.3, len(levels) - 0.4])
    return figure.update_xaxes(visible=False)


def _levels(graph: nx.Graph[str]) -> list[list[str]]:
    """List the servers of each tier from the main one down, then the clients, in the order of their servers."""
    import networkx as nx

    return list(nx.bfs_layers(graph, places.SERVER))


def _about(graph: nx.Graph[str], name: str) -> str:
    node = graph.nodes[name]
    told = [name, f"{display.prefixed(node['macs_per_s'], 'MAC/s')}"]
    if "jobs" in node:
        told.append(f"{node['jobs']:,} jobs of {display.plural(node['clients'], 'client')}")
    if "busy" in node:
        told.append(f"busy {display.percent(node['busy'])}")
    if "waited_s" in node:
        told.append(f"a job waits {display.duration(node['waited_s'])}")
    return "<br>".join(told)


def tier_table(variants: Sequence[ShownVariant]) -> Table:
    """Tabulate what the servers of each tier have done: over its servers, least and most."""
    rows = []
    for variant in variants:
        servers = variant.rows("servers")
        for tier, own in servers.groupby(servers["server"].map(role_of), sort=False):
            jobs, waits = own["jobs"].sum(), (own["waited_s"] * own["jobs"]).sum()
            rows.append(
                [
                    Cell(variant.html), Cell(str(tier)), Cell(f"{len(own):,}"),
                    _range(own["clients"], "{:,.0f}".format),
                    Cell(f"{jobs:,}"), Cell(display.duration(waits / jobs) if jobs else "–"),
                    _range(own["busy"], display.percent),
                    _range(own["model_bytes"], lambda size: display.prefixed(size, "B")),
                ]
            )  # fmt: skip
    titles = ["Variant", "Tier", "Servers", "Clients", "Jobs", "Mean wait", "Busy", "Models"]
    note = "Clients, share of time busy, and most bytes of models: of one server, least to most."
    return Table(titles, rows, note=note, words=["Variant", "Tier"])


def _range(values: pd.Series, spelled: object) -> Cell:
    known = values.dropna().astype(float)
    if known.empty:
        return Cell("–")
    texts = [spelled(known.min()), spelled(known.max())]  # type: ignore[operator]
    return Cell(texts[0] if texts[0] == texts[1] else " to ".join(texts))


def _with_tiers(frames: Frames) -> list[ShownVariant]:
    return [variant for variant in frames.variants[: style.MAX_DETAILED] if len(variant.rows("servers"))]


def _drawings(frames: Frames) -> list[Drawing]:
    """The distinct networks."""
    graphs = [(variant, graph_of(frames, variant)) for variant in _with_tiers(frames)]
    alike = distinct((variant, pd.DataFrame(sorted(map(sorted, graph.edges)))) for variant, graph in graphs)
    drawn = {variant.label: graph for variant, graph in graphs}
    return [(display.listed([one.html for one in own]), partial(picture, drawn[own[0].label])) for own, _ in alike]


server_panels = Declared(
    "The servers",
    "Each square is a server, above the servers or clients (dots) that it serves; the darker, the larger the share of "
    "time for which its workers are busy. A server for which others wait while its neighbours idle has too many "
    "clients, or too slow ones (round {round}, a typical one, of the first seed).",
    _drawings,
    words=lambda frames: {"round": frames.typical_round},
    tables=lambda frames: [tier_table(found)] if (found := _with_tiers(frames)) else [],
    when=lambda frames: bool(_with_tiers(frames)),
)
