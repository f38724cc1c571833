"""What a section of the page is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfl_sim.report.round_view import MAX_VARIANTS

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.frames import Frames


@dataclass(frozen=True)
class Panel:
    """One section of figures: a title, what to see in them, each figure with its heading, a table below (all HTML)."""

    title: str
    caption: str
    figures: list[tuple[str, go.Figure]]
    columns: int = 1
    table: str = ""


def drawn(frames: Frames) -> str:
    """What to say where only the first variants are drawn."""
    n_variants = len(frames.variants)
    return f"; the first {MAX_VARIANTS} of {n_variants} variants" if n_variants > MAX_VARIANTS else ""
