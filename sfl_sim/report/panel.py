"""Panels: what the sections of a page show, declared once, and drawn only when a page or a file needs the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from markupsafe import Markup

from sfl_sim.report import style
from sfl_sim.report.table import Table

if TYPE_CHECKING:
    import plotly.graph_objects as go

D = TypeVar("D")
Drawing = tuple[str, Callable[[], "go.Figure"]]
"""The heading of a figure, and what draws it."""


class Entry(NamedTuple):
    """An entry of a legend: the style (CSS) and the glyph of its mark, and its name."""

    look: str
    glyph: str
    name: str


@dataclass(frozen=True)
class Panel:
    """Section of a page: a title, a caption that says what to see, figures with their headings, and tables below.

    Texts are escaped unless they are `Markup`. A `folded` section shows its title until a reader opens it. `drawings`
    draw the figures: whoever asks for titles, captions and tables alone waits for none of them.
    """

    title: str
    caption: str
    drawings: Sequence[Drawing] = ()
    columns: int = 1
    tables: Sequence[Table] = ()
    folded: bool = False

    @cached_property
    def figures(self) -> list[tuple[str, go.Figure]]:
        """The figures, each with its heading."""
        return [(heading, draw()) for heading, draw in self.drawings]

    def drawn(self) -> Panel:
        """The same panel, whose figures have been drawn."""
        _ = self.figures
        return self

    @property
    def legend(self) -> list[Entry]:
        """One legend for all figures. Unlike Plotly's own, it takes no room from plots."""
        traces: dict[str, Any] = {}
        for trace in chain.from_iterable(figure.data for _, figure in self.figures):
            if trace.name and trace.showlegend is not False:
                traces.setdefault(trace.name, trace)
        return [_entry(name, trace) for name, trace in traces.items()]


def _entry(name: str, trace: Any) -> Entry:
    text = Markup(name).striptags()  # Plotly's names are HTML
    if trace.type == "bar":
        return Entry(f"border-top: 10px solid {trace.marker.color}", "", text)
    if "lines" not in trace.mode:
        return Entry(f"color: {trace.marker.color}", style.GLYPHS[trace.marker.symbol], text)
    dash = {"dash": "dashed", "dot": "dotted"}.get(trace.line.dash, "solid")
    return Entry(f"border-top: {trace.line.width}px {dash} {trace.line.color}", "", text)


def at_most(columns: int) -> Callable[[int], int]:
    """Give as many columns as there are figures, but at most so many."""
    return lambda n_figures: min(n_figures, columns)


@dataclass(frozen=True)
class Declared(Generic[D]):
    """Declaration of a panel of a page on data of type `D`; called with the data, it gives the panel, or none.

    Attributes:
        title, caption: may have fields in braces, which `words` fill: `Markup` as it is, other texts escaped.
        figures: what draws each figure, by its heading; or a function of the data that gives the panel's `drawings`.
        when: whether there is something to show; by default, where there is a figure or a table.
        tables: below the figures.
        columns: how many figures stand side by side, or a function that tells it by their number.
    """

    title: str
    caption: str
    figures: Mapping[str, Callable[[D], go.Figure]] | Callable[[D], Sequence[Drawing]]
    _: KW_ONLY
    when: Callable[[D], object] | None = None
    words: Callable[[D], Mapping[str, object]] = lambda _: {}
    tables: Callable[[D], Sequence[Table]] = lambda _: ()
    columns: int | Callable[[int], int] = 1

    def __call__(self, data: D) -> list[Panel]:
        """Make the panel; none where there is nothing to show."""
        if self.when and not self.when(data):
            return []
        drawings: Sequence[Drawing]
        if callable(self.figures):
            drawings = self.figures(data)
        else:
            drawings = [(heading, partial(draw, data)) for heading, draw in self.figures.items()]
        tables = self.tables(data)
        if not (self.when or drawings or tables):
            return []
        columns = self.columns(len(drawings)) if callable(self.columns) else self.columns
        words = self.words(data)
        title, caption = (Markup(text).format(**words) for text in (self.title, self.caption))
        return [Panel(title, caption, drawings, columns, tables)]


def panels_of(sections: Sequence[Callable[[D], list[Panel]]], data: D) -> list[Panel]:
    """List the panels of all sections in their order."""
    return [panel for section in sections for panel in section(data)]
