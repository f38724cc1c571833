"""Pages: one HTML file each that opens offline, made of headline sentences, panels and tables by Jinja templates.

Everything that a template is given is escaped, but for `Markup`: names become `Markup` once, when a folder is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from sfl_sim.errors import ScenarioError, in_short
from sfl_sim.report.load import flat
from sfl_sim.report.panel import Cell, Panel, Table
from sfl_sim.store.files import write_file

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from sfl_sim.report.lead import Sentence

T = TypeVar("T")
PLOTLY = "plotly.min.js"
"""Name of the file that pages of one folder share."""
PLOT_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
}


def _ignore(*_: object) -> None:
    """Tell nobody."""


@dataclass
class Parts:
    """The parts of a page, made one after another: one that fails is left out with a sentence, and the others are made.

    Attributes:
        forgiven: errors that do not stop the page.
        warn: called with the sentence on each part that is left out.
        count: called with the number of parts that have been made, and of all.
        left_out: the sentences.
    """

    forgiven: type[Exception] = MemoryError
    warn: Callable[[str], object] = _ignore
    count: Callable[[int, int], object] = _ignore
    left_out: list[str] = field(default_factory=list)

    def try_(self, name: str, make: Callable[[], T], default: T) -> T:
        """The part of the page that `make` gives; `default` if that fails."""
        try:
            return make()
        except self.forgiven as error:
            self.left_out.append(
                f"{name} is left out: {in_short(error)}. The numbers are in the tables beside the page."
            )
            self.warn(self.left_out[-1])
            return default

    def draw(self, sections: Mapping[str, Callable[[], list[Panel]]]) -> list[Panel]:
        """Make the panels of these sections, draw their figures, and count the sections."""

        def drawn(section: Callable[[], list[Panel]]) -> list[Panel]:
            return [panel.drawn() for panel in section()]

        made: list[Panel] = []
        for number, (name, section) in enumerate(sections.items()):
            self.count(number, len(sections))
            made += self.try_(f"The section “{name}”", partial(drawn, section), [])
        self.count(len(sections), len(sections))
        return made


def write_page(
    out: Path,
    template: str,
    *,
    title: str,
    kind: str = "page",
    about: str = "",
    setup: str = "",
    headlines: Sequence[Sentence] = (),
    warnings: Sequence[str] = (),
    panels: Iterable[Panel] = (),
    parts: Parts | None = None,
    runs: Sequence[object] = (),
    digests: Table | None = None,
    **more: object,
) -> Path:
    """Write a page to the file `out` and return its path.

    Args:
        out: an earlier page there stays whole until the new one is.
        template: the name of a file `templates/<template>.html.j2`.
        title: of the page.
        kind: what page it is, in a word or two, for the tab and the line below the title.
        about: the rest of that line.
        setup: one more line: what was simulated.
        headlines: what was found.
        warnings: what a reader must know before believing the rest.
        panels: the sections.
        parts: makes the figures.
        runs: what has a name, the text of a scenario and a manifest; shown at the end, folded.
        digests: of these runs.
        more: what else the template asks for; `plotly` is the script that draws figures, of which lists need none.

    Raises ScenarioError if the page cannot be written.
    """
    ids = count(1)
    parts = parts or Parts()

    def plot(figure: go.Figure) -> Markup:
        figure.update_layout(showlegend=False)
        div_id = f"figure-{next(ids)}"
        draw = partial(figure.to_html, config=PLOT_CONFIG, include_plotlyjs=False, full_html=False, div_id=div_id)
        text = parts.try_("A figure", draw, "")
        return Markup(text) if text else Markup('<p class="caption">{}</p>').format(parts.left_out[-1])

    sections: list[tuple[str, str]] = []

    def enter(heading: str) -> str:
        """Enter a section in the contents, and give the name by which they lead there."""
        sections.append((f"section-{len(sections) + 1}", heading))
        return sections[-1][0]

    page = _templates().get_template(f"{template}.html.j2")
    text = page.render(
        title=title, kind=kind, about=about, setup=setup, headlines=[sentence.text for sentence in headlines],
        warnings=warnings, panels=list(panels), runs=runs, digests=digests, plot=plot, enter=enter, sections=sections,
        **{"plotly": Markup(get_plotlyjs()), **more},
    )  # fmt: skip
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_file(out, text.encode())
    except OSError as error:
        raise ScenarioError(f"cannot be written: {error.strerror}", key="report", found=str(out)) from error
    return out


def share_plotly(page: Path) -> None:
    """Move Plotly, nearly all of a page's size, out of it into a file beside it that other pages there can use.

    Raises ScenarioError if one of them cannot be written.
    """
    script = get_plotlyjs()
    text = page.read_text(encoding="utf-8")
    text = text.replace(f"<script>\n{script}\n</script>", f'<script src="{PLOTLY}"></script>', 1)
    text = text.replace("script-src 'unsafe-inline';", "script-src 'unsafe-inline' 'self' file:;", 1)
    try:
        write_file(page.with_name(PLOTLY), script.encode())
        write_file(page, text.encode())
    except OSError as error:
        raise ScenarioError(f"cannot be written: {error.strerror}", key="--plotly", found=str(page.parent)) from error


def table_html(table: Table) -> Markup:
    """A table as HTML, as pages have it."""
    return Markup(_templates().get_template("parts.html.j2").module.shown(table))  # type: ignore[attr-defined]


def facts(manifest: Mapping[str, Any]) -> Table:
    """Tabulate a manifest: how and where something was done."""
    rows = [[Cell(key), Cell(str(value))] for key, value in flat(manifest).items()]
    return Table(["Key", "Value"], rows, words=["Value"])


def glossary_for(terms: str, content: str) -> Markup:
    """Keep those entries of a list of terms that are needed to read the content of a page.

    They are of the form `<dt data-if="word|other">...</dt><dd>...</dd>`; one without words is always needed.
    """
    text = content.lower()
    entries = re.findall(r'<dt(?: data-if="([^"]*)")?>(.*?)</dt><dd>(.*?)</dd>', terms, re.DOTALL)
    needed = [entry for words, *entry in entries if any(word in text for word in words.split("|"))]
    return Markup("\n").join(Markup("<dt>{}</dt><dd>{}</dd>".format(*entry)) for entry in needed)


def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("sfl_sim.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"facts": facts, "glossary_for": glossary_for}
    return templates
