"""Panels and tables: what the sections of a page show, declared once.

Figures are drawn only when a page or a file needs them; tables are shown as HTML and as text in a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import pandas as pd
from markupsafe import Markup

from sfl_sim.report import style
from sfl_sim.report.display import reading
from sfl_sim.report.style import Named
from sfl_sim.store.schema import FolderKind, tables

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.table import Table as TerminalTable
    from rich.text import Text


# Tables


class Cell(NamedTuple):
    """Text of a cell, a smaller text below it, and how good it is: NaN if it is no candidate for the best.

    `number` is what it says, by which a page can sort rows: NaN for words.
    """

    text: str
    below: str = ""
    merit: float = math.nan
    number: float = math.nan

    @property
    def order(self) -> str:
        """The number as JavaScript reads it; empty for words."""
        return "" if math.isnan(self.number) else str(self.number).replace("inf", "Infinity")

    @property
    def unranked(self) -> Cell:
        """The same, but no candidate for the best."""
        return self._replace(merit=math.nan)


@dataclass(frozen=True)
class Table:
    """Titles of columns, and rows of cells, whose first one is the heading of the row.

    Attributes:
        titles: one for each cell of a row.
        title: what stands above the table.
        note: what stands below it.
        words: titles of the columns of words, which wrap; all others hold numbers, which do not.
        folded: whether a reader has to open it.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    note: str = ""
    words: Collection[str] = ()
    folded: bool = False

    @property
    def best(self) -> list[str | None]:
        """The best text of each column; None where there is nothing to choose from."""
        return [_best(column) for column in zip(*self.rows, strict=True)]

    def only(self, titles: Collection[str]) -> Table:
        """The table with the headings of its rows and the columns with these titles."""
        kept = [n for n, title in enumerate(self.titles) if n == 0 or title in titles]
        rows = [[row[n] for n in kept] for row in self.rows]
        return replace(self, titles=[self.titles[n] for n in kept], rows=rows)

    def in_terminal(self) -> TerminalTable:
        """The table as rich draws it."""
        from rich.markup import escape
        from rich.table import Table as TerminalTable

        table = TerminalTable(
            box=None, header_style="bold", pad_edge=False, title=escape(self.title) or None, title_justify="left",
            title_style="", caption=escape(self.note) or None, caption_justify="left",
        )  # fmt: skip
        for index, title in enumerate(self.titles):
            is_words = title in self.words
            side: Literal["left", "right"] = "left" if is_words or index == 0 else "right"
            table.add_column(escape(plain(title)), no_wrap=not is_words, justify=side)
        for row in self.rows:
            table.add_row(*map(_two_lines, row))
        return table

    def in_latex(self) -> str:
        """The table as LaTeX, with the rules of the package booktabs; the best of each column is bold."""
        lines = [
            rf"\begin{{tabular}}{{l{'r' * (len(self.titles) - 1)}}}",
            r"\toprule",
            " & ".join(map(_latex, self.titles)) + r" \\",
            r"\midrule",
        ]
        for heading, *cells in self.rows:
            texts = [_latex(heading.text)]
            for cell, best in zip(cells, self.best[1:], strict=True):
                text = _latex(cell.text)
                text = rf"\textbf{{{text}}}" if cell.text == best else text
                texts.append(f"{text} {_latex(cell.below)}".rstrip())
            lines.append(" & ".join(texts) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


LATEX = {
    "\\": r"\textbackslash{}", **{sign: rf"\{sign}" for sign in "&%$#_{}"}, "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "–": "--", "<": "$<$", ">": "$>$",
    "²": "$^2$", "µ": r"$\mu$", "\xa0": "~", "∞": r"$\infty$", "≤": r"$\le$", "≥": r"$\ge$",
}  # fmt: skip
"""What LaTeX reads otherwise than it looks."""


def _latex(text: str) -> str:
    """Text for LaTeX, without the mark that begins a variant's name."""
    return "".join(LATEX.get(letter, letter) for letter in plain(text).removeprefix("●").strip())


def _best(column: Sequence[Cell]) -> str | None:
    candidates = [cell for cell in column if not math.isnan(cell.merit)]
    if not candidates or len({cell.text for cell in column}) == 1:
        return None
    return max(candidates, key=lambda cell: cell.merit).text


def _two_lines(cell: Cell) -> Text:
    from rich.text import Text

    return Text.assemble(plain(cell.text), ("\n" + plain(cell.below) if cell.below else "", "dim"))


def plain(text: str) -> str:
    """HTML without its tags and entities; any other text as it is."""
    return text.striptags() if isinstance(text, Markup) else text


@dataclass(frozen=True)
class Column:
    """Column of numbers: its title, where the numbers are, and how they read.

    Attributes:
        key: of the numbers in a frame with a row per variant and seed.
        more_is_better: whether the largest is the best, or the smallest; None if none is.
        below: what stands below the median beside the spread, by the column and the rows of a variant.
    """

    title: str
    key: str
    text: Callable[[float], str]
    more_is_better: bool | None = False
    below: Callable[[Column, pd.DataFrame], str] = lambda column, seeds: ""

    def cell(self, seeds: pd.DataFrame) -> Cell:
        """The median over `seeds`, the rows of one variant; a dash if it is unknown."""
        middle = float(seeds[self.key].median())
        merit = math.nan if self.more_is_better is None else middle if self.more_is_better else -middle
        below = "; ".join(filter(None, [self.spread(seeds[self.key]), self.below(self, seeds)]))
        return Cell(self.read(middle), below, merit, middle)

    def read(self, number: float) -> str:
        """A number of this column; a dash for what is unknown."""
        return self.text(number) if math.isfinite(number) else "–"

    def spread(self, numbers: pd.Series) -> str:
        """The standard deviation; empty if there is none to tell: one seed, equal seeds, or infinite numbers."""
        return f"± {self.text(numbers.std())}" if numbers.nunique() > 1 and math.isfinite(numbers.sum()) else ""


def columns_of(table: str, *names: str, kind: FolderKind = "run") -> list[Column]:
    """Return columns of a stored table of this kind of folder as pages show them."""
    better = {"more": True, "less": False, "": None}
    of = tables(kind)[table].columns
    return [Column(of[name].title, name, reading(of[name]), better[of[name].better]) for name in names]


def by_variant(
    columns: Sequence[Column], rows: Sequence[tuple[Named | Cell, pd.DataFrame]], *, ranked: bool = True, **more: Any
) -> Table:
    """Medians over seeds and their spread, a row for each variant and its seeds.

    Args:
        columns: what is shown.
        rows: each variant, or the cell that heads its row, and its rows in a frame with the keys of `columns`.
        ranked: whether the best of a column is marked.
        more: attributes of the table.
    """
    cells = [
        [
            heading if isinstance(heading, Cell) else Cell(heading.html),
            *(column.cell(seeds) if ranked else column.cell(seeds).unranked for column in columns),
        ]
        for heading, seeds in rows
    ]
    return Table(["Variant", *(column.title for column in columns)], cells, **more)


# Panels

D = TypeVar("D")
Drawing = tuple[str, Callable[[], "go.Figure"]]
"""The heading of a figure, and what draws it."""


class LegendEntry(NamedTuple):
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
    def legend(self) -> list[LegendEntry]:
        """One legend for all figures. Unlike Plotly's own, it takes no room from plots."""
        traces: dict[str, Any] = {}
        for trace in chain.from_iterable(figure.data for _, figure in self.figures):
            if trace.name and trace.showlegend is not False:
                traces.setdefault(trace.name, trace)
        return [_entry(name, trace) for name, trace in traces.items()]


def _entry(name: str, trace: Any) -> LegendEntry:
    text = Markup(name).striptags()  # Plotly's names are HTML
    if trace.type == "bar":
        return LegendEntry(f"border-top: 10px solid {trace.marker.color}", "", text)
    if "lines" not in trace.mode:
        return LegendEntry(f"color: {trace.marker.color}", style.GLYPHS[trace.marker.symbol], text)
    dash = {"dash": "dashed", "dot": "dotted"}.get(trace.line.dash, "solid")
    return LegendEntry(f"border-top: {trace.line.width}px {dash} {trace.line.color}", "", text)


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
