"""Colours that mean something, and the look that all figures share."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from sfl_sim.store.columns import BREAKDOWN

# Okabe and Ito (2008) without yellow, which is lost on white: strong colours, for variants only.
VARIANT_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", "dash", "dot")
SYMBOLS = dict(zip(DASHES, ("circle", "diamond", "square"), strict=True))
GLYPHS = {"circle": "●", "diamond": "◆", "square": "■", "triangle-down": "▼", "triangle-up": "▲", "star": "★"}
"""Plotly's symbols as they look in text."""

# Paul Tol's "light" scheme and a slate: pale fills, for resources only. Warm is waiting, all else is work.
RESOURCE_COLOURS = dict(
    zip(
        BREAKDOWN, ("#77AADD", "#44BB99", "#EE8866", "#EEDD88", "#3F4B63", "#BBCC33", "#FFAABB", "#D9D9D9"), strict=True
    )
)
RESOURCE_NAMES = dict(
    zip(
        BREAKDOWN,
        (
            "device",
            "uplink",
            "waiting in the queue",
            "waiting for assistants",
            "server",
            "downlink",
            "waiting for the others",
            "aggregation",
        ),
        strict=True,
    )
)

# Paul Tol's "muted" scheme and a brown, as strong as the variants' colours: for labels only.
LABEL_COLOURS = (
    "#332288", "#CC6677", "#DDCC77", "#117733", "#88CCEE", "#882255", "#44AA99", "#999933", "#AA4499", "#A5642E",
)  # fmt: skip

ACCURACY_SCALE = ((0.0, "#FBF3E4"), (0.35, "#B8D3DE"), (0.7, "#4C8DB0"), (1.0, "#123A5C"))
SHARE_SCALE = ((0.0, "#FFFFFF"), (0.001, ACCURACY_SCALE[0][1]), *ACCURACY_SCALE[1:])
"""White is nothing at all; the least share has a tint."""
TURN_SCALE = "Viridis"
INK, MUTED, GRID, ALARM = "#1F2933", "#66727F", "#E6E9ED", "#C0392B"
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif'


@dataclass(frozen=True)
class Named:
    """Something that has one name, colour and mark all over the page.

    Attributes:
        label: its name, HTML-escaped.
        colour, dash: of its lines.
    """

    label: str
    colour: str
    dash: str

    @property
    def symbol(self) -> str:
        """Its mark in figures; no other of the first 21 has this mark in this colour."""
        return SYMBOLS[self.dash]

    @property
    def html(self) -> str:
        """The label beside its mark, in tags that both HTML and Plotly know."""
        return f'<span style="color:{self.colour}">{GLYPHS[self.symbol]}</span>\u00a0<b>{self.label}</b>'


def canvas(height_px: int) -> go.Figure:
    """An empty figure: transparent, as wide as the page lets it be."""
    figure = go.Figure()
    figure.update_layout(
        height=height_px,
        template="none",
        font={"family": FONT, "size": 13, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 8, "r": 12, "t": 30, "b": 8},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#B6BDC5", "activecolor": MUTED},
        hoverlabel={"font": {"family": FONT, "size": 12}},
        legend={"orientation": "h", "y": -0.2},
    )
    return tidy(figure)


def tidy(figure: go.Figure) -> go.Figure:
    """Give every axis of `figure` the same quiet look."""
    axis = {"automargin": True, "gridcolor": GRID, "linecolor": GRID, "zeroline": False, "title_standoff": 10}
    return figure.update_xaxes(**axis).update_yaxes(**axis)


def percent_bar(length: float, at: str = "top") -> dict[str, object]:
    """The colour bar of a heat map of percentages that takes this share of a figure's height, at its top or bottom."""
    return {
        "thickness": 9, "outlinewidth": 0, "x": 1.01, "xpad": 2, "y": 1 if at == "top" else 0, "yanchor": at,
        "len": length, "title": {"text": "%"}, "tickvals": [0, 50, 100],
    }  # fmt: skip


def round_axis(last: int) -> dict[str, object]:
    """An axis of rounds: whole numbers, even if there are few."""
    return {"title": "round", "dtick": 1 if last <= 10 else None}
