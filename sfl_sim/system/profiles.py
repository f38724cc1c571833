"""Find a profile, shipped or the user's own, and read its table strictly.

A profile is a CSV file: lines `# key: value` that say where the figures come from, then the column names,
then the rows. `profiles/README.md` describes the shipped ones and how to write another.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.text_files import MAX_TABLE_BYTES, read_text

if TYPE_CHECKING:
    from collections.abc import Sequence


MAX_ROWS = 500_000
SMALLEST, LARGEST = 1e-30, 1e30
"""Of numbers that are not 0: times and rates made of them are still finite."""


def available(kind: str) -> list[str]:
    """Names of the shipped profiles in a folder: `devices`, `network`, `availability`, ..."""
    return sorted(path.stem for path in _folder(kind).glob("*.csv"))


def find(kind: str, profile: str | Path, key: str) -> Path:
    """The file of the shipped profile of this name, else the user's file at this path.

    Raises:
        ScenarioError: there is neither; `key` is the scenario key that asked for it.
    """
    names = available(kind)
    if str(profile) in names:
        return _folder(kind) / f"{profile}.csv"
    if os.path.isfile(profile):  # unlike Path.is_file, it takes any text
        return Path(profile)
    raise ScenarioError("no file and no shipped profile of this name", key=key, found=str(profile), allowed=names)


def _folder(kind: str) -> Path:
    package = Path(__file__).parents[1]
    in_wheel = package / "profiles"
    return (in_wheel if in_wheel.is_dir() else package.parent / "profiles") / kind


@dataclass(frozen=True)
class Table:
    """A profile's cells by column, with the line of the file that each row came from."""

    path: Path
    key: str
    lines: list[int]
    columns: dict[str, list[str]]

    def numbers(self, column: str) -> npt.NDArray[np.float64]:
        """A column as finite numbers, in the order of the rows."""
        values = np.array([_number(cell) for cell in self.columns[column]])
        self.require(column, np.isfinite(values), "a number")
        self.require(column, in_range(values), f"0, or a number from {SMALLEST:g} to {LARGEST:g}")
        return values

    def require(self, column: str, fits: npt.NDArray[np.bool_], allowed: str) -> None:
        """Raise ScenarioError for the first row of `column` that does not fit, saying what is allowed."""
        if not fits.all():
            row = int(fits.argmin())
            raise ScenarioError(
                f"column {column!r} cannot be used",
                key=self.key,
                file=str(self.path),
                line=self.lines[row],
                found=self.columns[column][row],
                allowed=allowed,
            )


def in_range(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Whether each is 0, or of a size that can be reckoned with."""
    sizes = np.abs(values)
    return np.asarray((sizes <= LARGEST) & ((sizes >= SMALLEST) | (values == 0)))


def read_table(path: Path, needed: Sequence[str], key: str) -> Table:
    """Read the CSV file at `path`. It must have the columns `needed` and a row; other columns are left alone.

    Raises:
        ScenarioError: with file, line, `key`, what was found and what is allowed.
    """
    error = partial(ScenarioError, key=key, file=str(path))
    try:
        rows = list(_rows(read_text(path, MAX_TABLE_BYTES, key)))
    except csv.Error as reason:
        raise error("cannot be read as a CSV file", found=str(reason)) from reason
    if len(rows) > MAX_ROWS:
        raise error("has too many rows", found=len(rows), allowed=f"at most {MAX_ROWS}")

    heading_line, heading = rows.pop(0) if rows else (None, [])
    for column in needed:
        if column not in heading:
            columns = ", ".join(needed)
            raise error(
                f"column {column!r} is missing",
                line=heading_line,
                found=heading,
                allowed=f"columns {columns}",
            )
    if not rows:
        raise error("no row follows the column names", line=heading_line, allowed="1 row or more")
    for line, cells in rows:
        if len(cells) != len(heading):
            raise error("row of another width", line=line, found=len(cells), allowed=f"{len(heading)} cells")

    columns_of_cells = zip(*(cells for _, cells in rows), strict=True)
    by_name = {name: list(cells) for name, cells in zip(heading, columns_of_cells, strict=True)}
    return Table(path, key, [line for line, _ in rows], by_name)


@lru_cache(maxsize=8)  # what-if studies read the same profiles again and again
def _rows(text: str) -> list[tuple[int, list[str]]]:
    """The lines of a CSV file that are no comment, with their numbers."""
    lines = enumerate(text.splitlines(), start=1)
    return [(n, _cells(line)) for n, line in lines if line.strip() and not line.startswith("#")]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line]))]


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan
