"""Panels on the system: the fleet, cuts and their costs, samples that clients hold; and the preview of a partition."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup, escape

from sfl_sim.metrics.geometry import label_divergence
from sfl_sim.report import display, figures, style
from sfl_sim.report.display import percent, plural
from sfl_sim.report.frames import Frames, ShownVariant, distinct, label_names
from sfl_sim.report.html_page import write_page
from sfl_sim.report.panel import Cell, Declared, Drawing, Panel, Table
from sfl_sim.store.reading import matrix
from sfl_sim.store.schema import tables
from sfl_sim.system.profiles import said

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table as TerminalTable


# The fleet

LINES = {
    "macs_per_s": ("device", "solid"),
    "uplink_bps": ("uplink", "solid"),
    "downlink_bps": ("downlink", "dash"),
    "joule": ("device", "solid"),
}
"""The resource of each rate, and the dash of its line; energy is paid by the device."""


def distributions(frames: Frames, columns: list[str], title: str) -> go.Figure:
    """Share of clients with at most so much: of the fleet that all variants share, or of each in a variant's colour."""
    by_variant = frames.clients[["variant", "seed", "client", *columns]].groupby("variant")
    fleets = distinct(
        (variant, by_variant.get_group(variant.label).drop(columns="variant").reset_index(drop=True))
        for variant in frames.variants
        if variant.label in by_variant.groups
    )
    figure = figures.canvas(290)
    for variants, fleet in fleets:
        alike = f" and {len(variants) - 1} alike" if len(variants) > 1 else ""
        cuts = _cuts(frames, variants)
        for column in columns:
            part, dash = LINES[column]
            neutral = {"name": part, "line_color": style.RESOURCE_COLOURS[part]}
            coloured = {"name": variants[0].label + alike, "line_color": variants[0].colour}
            look = neutral if len(fleets) == 1 else coloured
            hover = "%{y:.0f} % are at most %{x:.3s}%{customdata}"
            figures.ecdf(figure, fleet[column], cuts, _told, hover, line_dash=dash, **look)
    rates = np.log10(frames.clients[columns])
    low, high = rates.min(axis=None) - 0.05, rates.max(axis=None) + 0.05
    dtick = "D2" if 1 < high - low < 3 else None
    figure.update_xaxes(type="log", exponentformat="SI", range=[low, high], dtick=dtick, title=title)
    return figure.update_yaxes(title="share of clients (%)", range=[0, 102])


def _cuts(frames: Frames, variants: list[ShownVariant]) -> pd.Series:
    """Each client's cut, clients in the order of their fleet; NaN where variants differ."""
    clients = frames.clients[frames.clients["variant"].isin([variant.label for variant in variants])]
    cut = clients.groupby(["seed", "client"], sort=False)["cut"].agg(["min", "max"])
    return cut["min"].where(cut["min"] == cut["max"]).reset_index(drop=True)


def _told(cut: float) -> str:
    """The cut as the end of a sentence."""
    return "" if pd.isna(cut) else f", cut after layer {cut:.0f}"


def energy(frames: Frames) -> go.Figure:
    """Share of the clients that took part whose battery pays at most this much for the whole run."""
    paying = replace(frames, clients=frames.clients[frames.clients["joule"] > 0])
    return distributions(paying, ["joule"], "energy of a client in the run (J)")


def cost_model(frames: Frames) -> str:
    """Say in a sentence how the time of a step follows from its work; nothing about runs that do not tell."""
    follows = [
        "its MACs" if cost == "macs" else f"its kinds of layers and their calls (cost profile {cost})"
        for cost in frames.clients["cost"].dropna().unique()
    ]
    if not follows:
        return ""
    factors = frames.clients["training_factor"]
    low, high = f"{factors.min():.3g}", f"{factors.max():.3g}"
    times = low if low == high else f"{low} to {high}"
    slower = "" if times == "1" else f" Training takes {times} times as long as the devices' rates say."
    judged = [said("costs", cost, "judged") for cost in frames.clients["cost"].dropna().unique()]
    wrong = "".join(f" {text}." for text in judged if text)
    return f"A step's time follows from {' or '.join(follows)}.{slower}{wrong}"


def shared_radio(frames: Frames) -> str:
    """Say that uploads and downloads share the access points; nothing where they do not, or runs do not tell."""
    key = "clients.network.shared"
    capacities = {
        float(settings[f"{key}.capacity_bps"])
        for run in frames.runs
        for settings in run.settings.values()
        if settings.get(f"{key}.capacity_bps") is not None and settings.get(f"{key}.duplex") != "full"
    }
    if not capacities:
        return ""
    rates = " or ".join(display.prefixed(capacity, "bit/s") for capacity in sorted(capacities))
    return f" Access points send and receive in turn: uploads and downloads share {rates}."


def fleet_drawings(frames: Frames) -> list[Drawing]:
    """Devices and links, and energy if it is known."""
    links = ["uplink_bps", "downlink_bps"]
    drawings: list[Drawing] = [
        ("Device speeds", partial(distributions, frames, ["macs_per_s"], "device speed (MAC/s)")),
        ("Link rates: uplink solid, downlink dashed", partial(distributions, frames, links, "link rate (bit/s)")),
    ]
    if frames.clients["joule"].gt(0).any():
        drawings.append(("Energy that the run takes", partial(energy, frames)))
    return drawings


fleet_panels = Declared(
    "The fleet",
    "The wider a curve spreads along its logarithmic axis, the longer fast clients wait for slow ones. {costs}{radio}",
    fleet_drawings,
    words=lambda frames: {"costs": cost_model(frames), "radio": shared_radio(frames)},
    columns=2,
)

# Where to cut

LAYER_COLUMNS = list(tables("whatif")["layers"].columns)
MAX_NAMES = 12
BAR_WIDTH, PALE = 0.72, 0.3
LANE_PX, BYTES_PX, MACS_PX = 18, 170, 110
BARS = (
    (2, "activations at the cut", "uplink", "activation_bytes", "bytes_text"),
    (3, "work of the client", "device", "share", "macs_text"),
)
"""The bars of each cut: row, name, resource, and the columns of their height and of what is said of it."""
PARETO = "Pareto cut: no other has fewer MACs or activations without more of the other"


def models(frames: Frames) -> list[tuple[list[ShownVariant], pd.DataFrame]]:
    """The layers (`LAYER_COLUMNS`) of each distinct model that can be cut, and the variants that have it."""
    tables = ((v, v.first_seed(frames.layers)[LAYER_COLUMNS].reset_index(drop=True)) for v in frames.variants)
    return [(variants, table) for variants, table in distinct(tables) if len(table) > 1]


cut_panels: Declared[Frames] = Declared(
    "Where to cut",
    "Each bar is a cut. Above: how many bytes a sample's activations take on the uplink (and their gradient on "
    "the downlink). Below: how much of the model the client computes. Strong colours are Pareto cuts: no other cut has "
    "fewer bytes without more work at the client, or less work without more bytes. Triangles mark the cuts in use, "
    "larger where more clients have them.",
    lambda frames: [
        (model_title(layers), partial(cut_costs, frames, variants, layers)) for variants, layers in models(frames)
    ],
)


def model_title(layers: pd.DataFrame) -> Markup:
    """The model in a line; its name is escaped."""
    macs, parameters = (display.prefixed(layers[column].sum()) for column in ("macs", "parameters"))
    text = f": {len(layers)} layers, {macs} MACs a sample, {parameters} parameters"
    return Markup(layers["model"].iloc[0]) + text


def cut_costs(frames: Frames, variants: list[ShownVariant], layers: pd.DataFrame) -> go.Figure:
    """Bytes of a sample's activations at each cut above the MACs before it, and the cuts of `variants` on top.

    Args:
        layers: of the variants' model, with `LAYER_COLUMNS`.
    """
    uses: dict[tuple[tuple[int, int], ...], list[ShownVariant]] = {}  # whose it is that so many clients have a cut
    for variant in variants:
        by_cut = Counter(variant.first_seed(frames.clients)["cut"].dropna().astype(int))
        if by_cut:
            uses.setdefault(tuple(sorted(by_cut.items())), []).append(variant)
    heights_px = [LANE_PX * max(len(uses), 1), BYTES_PX, MACS_PX]
    figure = figures.canvas(
        90 + sum(heights_px), rows=3, shared_xaxes=True, vertical_spacing=0.06, row_heights=heights_px
    )
    figure.update_layout(barmode="overlay")
    macs = layers["macs"].cumsum()
    cuts = layers.assign(
        about=layers["layer"].astype(str) + " " + layers["name"],
        share=100 * macs / layers["macs"].sum(),
        macs_text=macs.map(display.prefixed) + " MACs",
        bytes_text=layers["activation_bytes"].map(display.data_size),
    )[:-1]
    for lane, (used, owners) in enumerate(uses.items()):
        n_clients = sum(n for _, n in used)
        alike = f" and {len(owners) - 1} alike" if len(owners) > 1 else ""
        said = [f"{n} of {plural(n_clients, 'client')} after {cuts['about'].iloc[cut - 1]}" for cut, n in used]
        figure.add_scatter(
            x=[cut for cut, _ in used], y=[lane] * len(used), row=1, col=1, mode="markers",
            name=f"cut of {owners[0].label}{alike}" if len(uses) > 1 else "cut in use",
            marker={"symbol": "triangle-down", "size": [6 + 8 * (n / n_clients) ** 0.5 for _, n in used],
                    "color": owners[0].colour if len(uses) > 1 else style.INK, "opacity": 1},
            customdata=said, hovertemplate="%{customdata}",
        )  # fmt: skip
    for pareto, rows in cuts.groupby("pareto"):
        for row, name, resource, y, text in BARS:
            figure.add_bar(
                x=rows["layer"].to_numpy(), y=rows[y].to_numpy(), row=row, col=1, width=BAR_WIDTH,
                name=name, showlegend=bool(pareto), opacity=1.0 if pareto else PALE,
                marker_color=style.RESOURCE_COLOURS[resource], customdata=rows[["about", text]].to_numpy(),
                hovertemplate="cut after %{customdata[0]}: %{customdata[1]} a sample",
            )  # fmt: skip
    figure.update_xaxes(showgrid=False, range=[0.4, len(layers) - 0.4])
    figure.update_xaxes(row=1, visible=False)
    figure.update_xaxes(row=3, title="cut after layer", tickformat="d")
    if len(cuts) <= MAX_NAMES:
        figure.update_xaxes(row=3, tickvals=cuts["layer"], ticktext=cuts["name"])
    figure.update_yaxes(row=1, visible=False, range=[len(uses) - 0.5, -0.5])
    figure.update_yaxes(row=2, title="activations", rangemode="tozero", tickformat="~s", ticksuffix="B", nticks=5)
    figure.update_yaxes(row=3, title="MACs (%)", range=[0, 100], nticks=4)
    return figure


def layers_in_terminal(layers: pd.DataFrame, sample_shape: tuple[int, ...], n_labels: int) -> TerminalTable:
    """One row per layer, within 80 columns; `layers` has `LAYER_COLUMNS`, its names as they are."""
    sample = "x".join(map(str, sample_shape))
    share = layers["macs"] / layers["macs"].sum()
    columns = {
        "": layers["layer"].astype(str),
        "Layer": layers["name"],
        "Output": layers["out_shape"],
        "MACs": layers["macs"].map(display.prefixed),
        "Share": share.map(percent),
        "Sum": share.cumsum().map(percent),
        "Activations": layers["activation_bytes"].map(display.data_size),
        "Params": layers["parameters"].map(display.prefixed),
        "Pareto": layers["pareto"].map({True: "*", False: ""}),
    }
    title = f"{model_title(layers)}\nfor samples of {sample} and {plural(n_labels, 'label')}"
    rows = [[Cell(text) for text in row] for row in zip(*columns.values(), strict=True)]
    return Table(list(columns), rows, title, PARETO, words=("Layer", "Output")).in_terminal()


# Samples that clients hold

MAX_CLIENTS = 400
MAX_CLIENT_TICKS = 30
SAME = "Same for all"
"""How the heading of a partition begins that all variants or seeds have."""
Held = list[tuple[list[Markup], pd.DataFrame]]
"""Tables of label counts (clients x labels), each with the names of the variants that have it."""
READING = (
    "Over clients: least · median · most. Divergence (Jensen-Shannon, bits): mean · most, of each client from all "
    "samples together, its own among them: it depends on the number of clients and on their sizes."
)


def holdings_panels(held: Held, group: str = "label") -> list[Panel]:
    """The panel on the samples that clients hold, by label or by what stands in its place; none if nothing is known."""
    caption = (
        "Each column is a client, with its number of samples above. The darker a cell, the larger the share of that "
        f"{group} among the client's samples; white means none. A dark diagonal means that every client mainly holds "
        f"{group}s of its own. Columns that look alike mean similar {group} distributions."
    )
    figures_of = [(_alike(names, len(held)), partial(holdings, counts, group)) for names, counts in held]
    title = f"{group.capitalize()}s held by each client"
    return [Panel(title, caption, figures_of, min(2, len(held)))] if held else []


def holdings(counts: pd.DataFrame, group: str = "label") -> go.Figure:
    """The label distributions of the clients as a heat map, below their numbers of samples.

    The scale is always that of all shares, so that small differences between the clients look small.

    Args:
        counts: clients x labels.
        group: what stands in the place of labels.
    """
    shares = _shares(counts).to_numpy()
    # By dominant label, the most one-sided of each first; empty ones last.
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1), shares.sum(axis=1) == 0))
    drawn = display.thin(counts.iloc[order], MAX_CLIENTS)
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
    names = figures.evenly_spaced(list(drawn.columns))
    some = f"{len(drawn):,} of {len(counts):,} " if len(drawn) < len(counts) else ""
    figure.update_yaxes(row=1, title="samples", nticks=3, rangemode="tozero")
    figure.update_yaxes(row=2, type="category", autorange="reversed", showgrid=False, tickvals=names)
    figure.update_xaxes(type="category", showgrid=False, showticklabels=False)
    figure.update_xaxes(row=2, title=f"{some}clients, by dominant {group}")
    if len(clients) <= MAX_CLIENT_TICKS:
        figure.update_xaxes(row=2, showticklabels=True, tickvals=clients, ticktext=list(map(str, drawn.index)))
    return figure


def _shares(counts: pd.DataFrame) -> pd.DataFrame:
    """The label distribution of each client; zeros for one without samples."""
    return counts.div(counts.sum(axis=1).clip(lower=1), axis=0)


def held(frames: Frames) -> Held:
    """List the distinct partitions of the first seeds (clients x labels), each with the variants that have it."""
    found = []
    for variant in frames.variants:
        clients = variant.first_seed(frames.clients).set_index("client")
        if clients["label_samples"].notna().all():
            counts = pd.DataFrame(matrix(clients["label_samples"]), index=clients.index)
            names = label_names(frames, variant)
            found.append((variant.html, counts.set_axis([names.get(label, str(label)) for label in counts], axis=1)))
    return distinct(found)[: style.MAX_DETAILED]


# The preview of a partition


@dataclass(frozen=True)
class PartitionResult:
    """Result of one partition.

    Attributes:
        name: what tells it from the others.
        counts: samples of each label (column) that each client (row) holds.
        n_samples: that there are to deal.
        group: what stands in the place of labels.
    """

    name: str
    counts: pd.DataFrame
    n_samples: int
    group: str = "label"


@dataclass(frozen=True)
class Preview:
    """The partitions of the study `name`, what they have in common, and how many more there are."""

    name: str
    common: str
    partitions: list[PartitionResult]
    left_out: int

    @property
    def group(self) -> str:
        """What is counted: labels, unless a partition has none."""
        return next((each.group for each in self.partitions if each.group != "label"), "label")


def preview_in_terminal(preview: Preview) -> Group:
    """The partitions in numbers, one a row, and what else is to be known of them."""
    from rich.console import Group
    from rich.text import Text

    return Group(Text(preview.common), preview_table(preview).in_terminal(), *map(Text, _notes(preview)))


def write_preview(preview: Preview, out: Path) -> Path:
    """Write the page to the file `out` and return its path. Raises ScenarioError if the page cannot be written."""
    held = distinct((escape(p.name), p.counts.rename(columns=escape)) for p in preview.partitions)
    return write_page(
        out, "preview", title=preview.name, kind="partition", about=preview.common, group=preview.group,
        panels=holdings_panels(held, preview.group), table=preview_table(preview), notes=_notes(preview),
    )  # fmt: skip


def preview_table(preview: Preview) -> Table:
    """The partitions in numbers, those that are alike in one row."""
    titles = ["Partition", "Clients", "Empty", "Samples", f"{preview.group.capitalize()}s", "Divergence"]
    alike = distinct((partition, partition.counts) for partition in preview.partitions)
    known = [replace(own[0], name=_alike([each.name for each in own], len(alike))) for own, _ in alike]
    return Table(titles, [_numbers(partition) for partition in known], words=["Partition"])


def _numbers(partition: PartitionResult) -> list[Cell]:
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
        return f"{SAME} {plural(len(names), noun)}"
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
