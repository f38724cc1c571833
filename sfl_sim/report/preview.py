"""What the clients would hold, before anyone trains: a table for the terminal, and a page with heat maps."""

from __future__ import annotations

import html
from dataclasses import dataclass
from itertools import count
from string import Template
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from rich.console import Group
from rich.table import Table
from rich.text import Text

from sfl_sim.metrics.divergence import label_divergence
from sfl_sim.report.display import escaped, percent, plural
from sfl_sim.report.frames import distinct
from sfl_sim.report.page import asset, panel_html, paragraphs, write_page
from sfl_sim.report.panels import holdings_panel

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Partition:
    """What one partition deals.

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
    table = Table(box=None, header_style="bold", pad_edge=False)
    rows = [_numbers(partition) for partition in preview.partitions]
    for title in rows[0]:
        table.add_column(title, no_wrap=title != "Partition", justify="left" if title == "Partition" else "right")
    for row in rows:
        table.add_row(*row.values())
    return Group(Text(preview.common), table, *map(Text, _notes(preview)))


def write_preview(preview: Preview, out: Path) -> Path:
    """Write the page to the file `out` and return its path.

    Raises:
        ScenarioError: the page cannot be written.
    """
    rows = [_numbers(partition) for partition in preview.partitions]
    held = distinct((escaped(p.name), p.counts.rename(columns=escaped)) for p in preview.partitions)
    title = html.escape(preview.name)
    body = Template(asset("preview.html")).substitute(
        title=title,
        about=html.escape(preview.common),
        notes=paragraphs([html.escape(note) for note in _notes(preview)], "caption"),
        table=_table(rows),
        panel=panel_html(holdings_panel(held), (f"figure-{number}" for number in count(1))),
    )
    return write_page(title, body, out)


def _numbers(partition: Partition) -> dict[str, str]:
    """A partition's row of the table, by column."""
    counts = partition.counts.to_numpy()
    sizes, labels, divergence = counts.sum(axis=1), (counts > 0).sum(axis=1), label_divergence(counts)
    return {
        "Partition": partition.name,
        "Clients": f"{len(counts):,}",
        "Empty": f"{(sizes == 0).sum():,}",
        "Samples": f"{sizes.min():,} · {np.median(sizes):,.0f} · {sizes.max():,}",
        "Labels": f"{labels.min()} · {np.median(labels):.0f} · {labels.max()}",
        "Divergence": f"{np.nanmean(divergence):.3f} · {np.nanmax(divergence):.3f}",
    }


def _notes(preview: Preview) -> list[str]:
    """What the table does not say: how to read it, what is not used, what is not shown."""
    notes = ["Of the clients: least · median · most. Divergence (Jensen-Shannon, bits): mean · most."]
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


def _table(rows: list[dict[str, str]]) -> str:
    head = "".join(f'<th scope="col">{title}</th>' for title in rows[0])
    body = "".join(
        "<tr>"
        + f'<th scope="row">{html.escape(title)}</th>'
        + "".join(f"<td>{text}</td>" for text in numbers)
        + "</tr>"
        for title, *numbers in (row.values() for row in rows)
    )
    return f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
