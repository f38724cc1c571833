"""Reads tables of pages and terminals as data."""

import html
import re

from sfl_sim.report.panel import Table, plain


def said(text: str) -> str:
    """Strip tags, entities, marks of variants and unbreakable blanks."""
    return plain(text).replace("\u00a0", " ").lstrip("●◆■ ")


def untagged(text: str) -> str:
    """Put blanks in the place of tags, entities and unbreakable blanks of a caption."""
    return html.unescape(re.sub(r"<[^>]*>", " ", text)).replace("\u00a0", " ")


def numbers(*texts: str) -> list[str]:
    """The numbers of sentences as they stand there, without those in names, which are bold."""
    return re.findall(r"\d+(?:[.,]\d+)*", untagged(re.sub(r"<b>.*?</b>", "", " ".join(texts))))


def read(table: Table) -> dict[str, dict[str, tuple[str, str]]]:
    """Read a table: by the heading of its row and the title of its column, a cell's text, large and small."""
    titles = list(map(said, table.titles))[1:]
    return {
        said(heading.text): {
            title: (said(cell.text), said(cell.below)) for title, cell in zip(titles, cells, strict=True)
        }
        for heading, *cells in table.rows
    }


def best(table: Table, title: str) -> list[str]:
    """The headings of the rows whose cell is marked in the column with this title."""
    place = list(map(said, table.titles)).index(title)
    return [said(row[0].text) for row in table.rows if row[place].text == table.best[place]]


def in_words(table: Table) -> str:
    """Titles and rows as lines."""
    lines = [[f"{said(cell.text)} {said(cell.below)}".strip() for cell in row] for row in table.rows]
    return "\n".join("  ".join(line) for line in [list(map(said, table.titles)), *lines])
