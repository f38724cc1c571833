"""Figures of a fleet: profiles, shipped or the user's own, read strictly, and numbers given for the clients.

A profile is a CSV file: lines `# key: value` that say where the figures come from, then the column names,
then the rows. `profiles/README.md` describes the shipped ones and how to write another.
"""

import csv
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import LARGEST, SMALLEST, in_units, quantity, units_of
from sfl_sim.scenario.files import MAX_TABLE_BYTES, read_text

FloatArray = npt.NDArray[np.float64]
RatePerClient = float | Sequence[float] | str
"""A setting that holds for all clients, or one for each, or the CSV file with a column of them."""

MAX_ROWS = 1_000_000
_NUMBER = re.compile(r"[\s<>=~≈≤≥±]*[+-]?\.?\d[\d\s.,'_eE+-]{0,40}[^\W\d]{0,20}(\s*/\s*[a-z]+)?\s*|[\[{].*\d.*")
"""What stands for a number, or holds one: 1,000 or < 10 Gbit/s, too, and a mapping or a list."""
OWNERS = {"client", "clients", "client_id", "id"}
"""Names, in small letters, by which a column may say whose rows they are; only `client` does."""


def available(kind: str) -> list[str]:
    """List the names of the shipped profiles of a kind: `devices`, `network`, `availability`, ..."""
    return sorted(path.stem for path in _folder(kind).glob("*.csv"))


def find(kind: str, profile: str | Path, key: str) -> Path:
    """Return the file of the shipped profile of this name, else the user's file at this path.

    Raises ScenarioError if there is neither; `key` is the scenario key that names the profile.
    """
    names = available(kind)
    if str(profile) in names:
        return _folder(kind) / f"{profile}.csv"
    with suppress(ValueError):  # of a name that no file can have
        if os.path.isfile(path := os.path.expanduser(profile)):
            return Path(path)
    raise ScenarioError("no file and no shipped profile of this name", key=key, found=str(profile), allowed=names)


def said(kind: str, profile: str, what: str) -> str:
    """Return what a shipped profile's notes say after `what`; empty if they do not, and of a profile of one's own."""
    if profile not in available(kind):
        return ""
    lines = find(kind, profile, kind).read_text(encoding="utf-8").splitlines()
    return next((line.removeprefix(f"# {what}: ") for line in lines if line.startswith(f"# {what}: ")), "")


def _folder(kind: str) -> Path:
    package = Path(__file__).parents[1]
    in_wheel = package / "profiles"
    return (in_wheel if in_wheel.is_dir() else package.parent / "profiles") / kind


@dataclass(frozen=True)
class ProfileTable:
    """Cells of a profile by column, and the line in the file of each row; None if it has none."""

    path: Path
    key: str
    lines: Sequence[int | None]
    columns: dict[str, list[str]]
    _numbers: dict[str, FloatArray] = field(default_factory=dict, repr=False, compare=False)

    def numbers(self, column: str) -> FloatArray:
        """Convert a column to finite numbers (rows,), once.

        Raises ScenarioError if a cell is no number, or out of range.
        """
        if column not in self._numbers:
            self._numbers[column] = self._converted(column)
        return self._numbers[column]

    def _converted(self, column: str) -> FloatArray:
        values = np.array([_number(cell, self._measured(column)) for cell in self.columns[column]])
        self.require(column, np.isfinite(values), in_units(self._measured(column)) or "a number")
        self.require(column, _in_range(values), f"0, or a number from {SMALLEST:g} to {LARGEST:g}")
        values.setflags(write=False)
        return values

    def _measured(self, column: str) -> str:
        """Return the name that tells the unit of a column: its own, or the key of `edge1`, `edge2`, ..."""
        return column if column == "client" or units_of(column) else self.key

    def by_client(self) -> npt.NDArray[np.int64]:
        """Give the rows in the order of the clients, which a column `client` numbers from 0 on if there is one.

        Raises ScenarioError if a client has no row, or two.
        """
        n = len(self.lines)
        if "client" not in self.columns:
            if meant := next((name for name in self.columns if name.casefold() in OWNERS), None):
                problem = "says in no column 'client' whose rows they are"
                raise ScenarioError(problem, key=self.key, file=str(self.path), found=meant, allowed=["client"])
            return np.arange(n)
        clients = self.numbers("client")
        self.require("client", np.isin(clients, np.arange(n)), f"0 to {n - 1}, one for each row")
        is_first = np.isin(np.arange(n), np.unique(clients, return_index=True)[1])
        self.require("client", is_first, "a client that has no row above")
        return np.argsort(clients)

    def require_no_others(self, known: Iterable[str], besides: Collection[str] = ()) -> None:
        """Raise ScenarioError for a column that holds numbers and is neither known nor of those `besides`."""
        for name in self.columns.keys() - {*known, *besides}:
            if number := next(filter(_NUMBER.fullmatch, self.columns[name]), None):
                problem = f"gives {name!r} ({number}), which means nothing here"
                raise ScenarioError(problem, key=self.key, file=str(self.path), found=name, allowed=known)

    def require(self, column: str, fits: npt.NDArray[np.bool_], allowed: str) -> None:
        """Raise ScenarioError for the first row of `column` whose entry of `fits` (rows,) is False."""
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


def per_client(value: RatePerClient, n: int, key: str, *, zero_allowed: bool = False) -> FloatArray:
    """Expand `value` to n numbers above 0 (or 0, if that is allowed), one per client.

    Raises ScenarioError with `key`, if a file cannot be read, a list or a column does not have n entries, or a number
    is out of range.
    """
    if isinstance(value, str):
        column = key.rpartition(".")[2]
        table = read_table(Path(value), [column], key)
        if len(table.lines) != n:
            problem = "needs a row for each client"
            raise ScenarioError(problem, key=key, file=value, found=len(table.lines), allowed=[n])
        numbers = table.numbers(column)
        for fits, allowed in _limits(numbers, zero_allowed):
            table.require(column, fits, allowed)
        value = numbers[table.by_client()].tolist()
    values = np.asarray(value, dtype=float)
    if values.ndim and values.shape != (n,):
        raise ScenarioError("a list needs one entry per client", key=key, found=values.size, allowed=f"{n} entries")
    for fits, allowed in _limits(values, zero_allowed):
        if not fits.all():
            found = float(values[~fits][0])
            raise ScenarioError("number out of range", key=key, found=found, allowed=allowed)
    return np.broadcast_to(values, n)


def _limits(values: FloatArray, zero_allowed: bool) -> list[tuple[npt.NDArray[np.bool_], str]]:
    """Mark the values within each limit on a client's number, and say what is allowed."""
    signed = np.isfinite(values) & ((values >= 0) if zero_allowed else (values > 0))
    return [
        (signed, "a number, 0 or above" if zero_allowed else "a number above 0"),
        (_in_range(values), f"from {SMALLEST:g} to {LARGEST:g}"),
    ]


def _in_range(values: FloatArray) -> npt.NDArray[np.bool_]:
    """Mark values that are 0, or of a size from `SMALLEST` to `LARGEST`."""
    sizes = np.abs(values)
    return np.asarray((sizes <= LARGEST) & ((sizes >= SMALLEST) | (values == 0)))


def read_table(path: Path, needed: Sequence[str], key: str) -> ProfileTable:
    """Read the CSV file at `path`, which must have the columns `needed` and a row; other columns are not checked.

    Raises ScenarioError with file, line, `key`, what was found and what is allowed.
    """
    return _table(path, tuple(needed), key, read_text(path, MAX_TABLE_BYTES, key))


@lru_cache(maxsize=8)  # what-if studies read the same profiles again and again
def _table(path: Path, needed: Sequence[str], key: str, text: str) -> ProfileTable:
    error = partial(ScenarioError, key=key, file=str(path))
    try:
        rows = _rows(text)
    except csv.Error as reason:
        raise error("cannot be read as a CSV file", found=str(reason)) from reason
    if len(rows) > MAX_ROWS:
        raise error("has too many rows", found=len(rows), allowed=f"at most {MAX_ROWS}")

    heading_line, heading = rows.pop(0) if rows else (None, [])
    often = Counter(filter(None, heading))
    if twice := next((name for name, times in often.items() if times > 1), None):
        raise error(f"column {twice!r} is given twice", line=heading_line, found=heading)
    for column in needed:
        if column not in often:
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
    return ProfileTable(path, key, [line for line, _ in rows], by_name)


def read_row(path: Path, needed: Sequence[str], key: str) -> ProfileTable:
    """Read a CSV file as `read_table` does, and raise ScenarioError if it has more than one row."""
    table = read_table(path, needed, key)
    if len(table.lines) > 1:
        raise ScenarioError("a second row", key=key, file=str(path), line=table.lines[1], allowed="one row")
    return table


def _rows(text: str) -> list[tuple[int, list[str]]]:
    """Return the rows of a CSV file and their line numbers, without comments and empty lines."""
    lines = enumerate(text.splitlines(), start=1)
    return [(n, _cells(line)) for n, line in lines if line.strip() and not line.startswith("#")]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line]))]


def _number(cell: str, column: str) -> float:
    try:
        # Python reads 2_0 and digits of any script.
        return float(cell) if cell.isascii() and "_" not in cell else np.nan
    except ValueError:
        return found if isinstance(found := quantity(cell, column), int | float) else np.nan
