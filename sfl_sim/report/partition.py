"""Samples that clients hold: heat maps of label counts, and page and table of a preview before anything is trained."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.metrics.divergence import label_divergence
from sfl_sim.report import display, figures, style
from sfl_sim.report.display import percent, plural
from sfl_sim.report.frames import distinct
from sfl_sim.report.html_page import write_page
from sfl_sim.report.panel import Panel
from sfl_sim.report.table import Cell, Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import plotly.graph_objects as go
    from rich.console import Group

    from sfl_sim.report.frames import Frames

MAX_CLIENTS = 400
MAX_CLIENT_TICKS = 30
HOLDINGS = (
    "Each column is a client, with its number of samples above. The darker a cell, the larger the share "
    "of that label among the client's samples; white means none. A dark diagonal means that every client "
    "mainly holds labels of its own. Columns that look alike mean similar label distributions."
)
READING = "Over clients: least · median · most. Divergence (Jensen-Shannon, bits): mean · most."


@dataclass(frozen=True)
class Partition:
    """Result of one partition.

    Attributes:
        name: what tells it from the others.
        counts: samples of each label (column) that each client (row) holds.
        n_samples: that there are to deal.
    """

    name: str
    counts: pd.DataFrame
    n_samples: int


@dataclass(frozen=True)
class Preview:
    """The partitions of the study `name`, what they have in common, and how many more there are."""

    name: str
    common: str
    partitions: list[Partition]
    left_out: int


def preview_in_terminal(preview: Preview) -> Group:
    """The partitions in numbers, one a row, and what else is to be known of them."""
    from rich.console import Group
    from rich.text import Text

    return Group(Text(preview.common), preview_table(preview).in_terminal(), *map(Text, _notes(preview)))


def write_preview(preview: Preview, out: Path) -> Path:
    """Write the page to the file `out` and return its path.

    Raises:
        ScenarioError: the page cannot be written.
    """
    held = distinct((escape(p.name), p.counts.rename(columns=escape)) for p in preview.partitions)
    return write_page(
        out, "preview", title=preview.name, kind="partition", about=preview.common, panels=[holdings_panel(held)],
        table=preview_table(preview), notes=_notes(preview),
    )  # fmt: skip


def preview_table(preview: Preview) -> Table:
    """The partitions in numbers, those that are alike in one row."""
    titles = ["Partition", "Clients", "Empty", "Samples", "Labels", "Divergence"]
    alike = distinct((partition, partition.counts) for partition in preview.partitions)
    known = [replace(own[0], name=_alike([each.name for each in own], len(alike))) for own, _ in alike]
    return Table(titles, [_numbers(partition) for partition in known], words=["Partition"])


def _numbers(partition: Partition) -> list[Cell]:
    counts = partition.counts.to_numpy()
    sizes, labels, divergence = counts.sum(axis=1), (counts > 0).sum(axis=1), label_divergence(counts)
    texts = [
        partition.name,
        f"{len(counts):,}",
        f"{(sizes == 0).sum():,}",
        f"{sizes.min():,} · {np.median(sizes):,.0f} · {sizes.max():,}",
        f"{labels.min()} · {np.median(labels):.0f} · {labels.max()}",
        f"{np.nanmean(divergence):.3f} · {np.nanmax(divergence):.3f}",
    ]
    return list(map(Cell, texts))


def _alike(names: Sequence[str], n_tables: int) -> str:
    """Say whose the same partition is: its only owner's, or that it is the same for all, or for some."""
    first, *others = names
    if not others:
        return first
    noun = "seed" if all(re.fullmatch(r"seed \d+", name) for name in names) else "variant"
    if n_tables == 1:
        return f"Same for all {plural(len(names), noun)}"
    return first + f" and {plural(len(others), 'more ' + noun)}"


def _notes(preview: Preview) -> list[str]:
    """List what the table does not say: how to read it, what is not used, what is not shown."""
    notes = [READING]
    for partition in preview.partitions:
        sizes = partition.counts.sum(axis=1)
        if unused := partition.n_samples - sizes.sum():
            share = percent(unused / partition.n_samples)
            notes.append(f"{partition.name}: {unused:,} of {partition.n_samples:,} samples ({share}) are not used.")
        if empty := (sizes == 0).sum():
            notes.append(f"{partition.name}: {plural(empty, 'client')} without samples, which no run accepts.")
    if preview.left_out:
        notes.append(f"{plural(preview.left_out, 'more partition')} of other variants or seeds left out.")
    return notes


def holdings_panels(frames: Frames) -> list[Panel]:
    """The panel on what clients hold, if that was stored."""
    found = held(frames)
    return [holdings_panel(found)] if found else []


def holdings_panel(held: Sequence[tuple[list[Markup], pd.DataFrame]]) -> Panel:
    """Heat maps of label counts (clients x labels), each with the names of the variants that have it."""
    drawn = [(_alike(names, len(held)), holdings(counts)) for names, counts in held]
    return Panel("Labels held by each client", HOLDINGS, drawn, columns=min(len(drawn), 2))


def holdings(counts: pd.DataFrame) -> go.Figure:
    """The label distributions of the clients as a heat map, below their numbers of samples; `counts`: clients x labels.

    The scale is always that of all shares, so that small differences between the clients look small.
    """
    drawn = display.thin(_sorted(counts), MAX_CLIENTS)
    clients = [f"client {client}" for client in drawn.index]
    figure = figures.canvas(460, rows=2, shared_xaxes=True, vertical_spacing=0.05, row_heights=[0.22, 0.78])
    figure.update_layout(bargap=0.15 if len(clients) <= 40 else 0)
    figure.add_bar(
        x=clients, y=drawn.sum(axis=1).to_numpy(), marker={"color": style.MUTED, "line": {"width": 0}},
        hovertemplate="%{x}: %{y:,} samples<extra></extra>", row=1, col=1,
    )  # fmt: skip
    figures.heat(
        figure, clients, list(drawn.columns), _shares(drawn).T, "%{z:.1f} % of %{x} is %{y}<extra></extra>",
        colorscale=style.SHARE_SCALE, colorbar=figures.percent_bar(0.78, "bottom"), row=2, col=1,
    )  # fmt: skip
    names = figures.some(list(drawn.columns))
    some = f"{len(drawn):,} of {len(counts):,} " if len(drawn) < len(counts) else ""
    figure.update_yaxes(row=1, title="samples", nticks=3, rangemode="tozero")
    figure.update_yaxes(row=2, type="category", autorange="reversed", showgrid=False, tickvals=names)
    figure.update_xaxes(type="category", showgrid=False, showticklabels=False)
    figure.update_xaxes(row=2, title=f"{some}clients, by dominant label")
    if len(clients) <= MAX_CLIENT_TICKS:
        figure.update_xaxes(row=2, showticklabels=True, tickvals=clients, ticktext=list(map(str, drawn.index)))
    return figure


def held(frames: Frames) -> list[tuple[list[Markup], pd.DataFrame]]:
    """List the distinct partitions of the first seeds (clients x labels), each with the variants that have it."""
    found = []
    for variant in frames.variants:
        clients = frames.clients.query("variant == @variant.label and seed == @variant.seed").set_index("client")
        if clients["label_samples"].notna().all():
            labels = frames.labels.query("variant == @variant.label").drop_duplicates("label")
            names = dict(zip(labels["label"], labels["label_name"], strict=True))
            counts = pd.DataFrame(np.stack(list(clients["label_samples"])), index=clients.index)
            found.append((variant.html, counts.rename(columns=lambda label: names.get(label, str(label)))))  # noqa: B023
    return distinct(found)[: style.MAX_DETAILED]


def _sorted(counts: pd.DataFrame) -> pd.DataFrame:
    """The clients by dominant label, the most one-sided of each first; empty ones last."""
    shares = _shares(counts).to_numpy()
    return counts.iloc[np.lexsort((-shares.max(axis=1), shares.argmax(axis=1), shares.sum(axis=1) == 0))]


def _shares(counts: pd.DataFrame) -> pd.DataFrame:
    """The label distribution of each client; zeros for one without samples."""
    return counts.div(counts.sum(axis=1).clip(lower=1), axis=0)
