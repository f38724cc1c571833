"""Tables of the page: a row per variant, and the best of each column shaded."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Cell(NamedTuple):
    """What a cell reads, what stands small below it, and how good it is: NaN if it is no candidate for the best."""

    text: str
    below: str = ""
    merit: float = math.nan


def table(titles: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell]]], first: str = "Variant") -> str:
    """The table as HTML: the titles of its columns, and for each row its heading (HTML) in the first one and cells."""
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    best = [_best(column) for column in zip(*(cells for _, cells in rows), strict=True)]
    body = ""
    for heading, cells in rows:
        body += f'<tr><th scope="row">{heading}</th>{"".join(map(_cell, cells, best))}</tr>'
    return (
        f'<table class="numbers"><thead><tr><th scope="col">{first}</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _best(column: Sequence[Cell]) -> str | None:
    """The best text of a column; None if there is nothing to choose from."""
    candidates = [cell for cell in column if not math.isnan(cell.merit)]
    if not candidates or len({cell.text for cell in column}) == 1:
        return None
    return max(candidates, key=lambda cell: cell.merit).text


def _cell(cell: Cell, best: str | None) -> str:
    mark = ' class="best"' if cell.text == best else ""
    return f"<td{mark}>{html.escape(cell.text)}<small>{html.escape(cell.below)}</small></td>"
