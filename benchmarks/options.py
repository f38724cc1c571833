"""Command line of all benchmarks: what to measure, and whether it is only a quick try.

    python -m benchmarks.NAME [--quick] [MODEL ...]

`--quick` runs two pairs of the smallest size, to see that a benchmark works; its figures mean nothing and go to
`results/quick/`, apart from the real ones.
"""

from argparse import ArgumentParser
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pairs import RESULTS, publish


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    chosen: list[str]
    quick: bool

    def pairs(self, usual: int = 8) -> int:
        return 2 if self.quick else usual

    def publish(self, name: str, rows: list[dict[str, Any]], folder: Path = RESULTS) -> None:
        publish(name, rows, folder / "quick" if self.quick else folder)


def options(about: str, choices: Iterable[str] = ()) -> Options:
    """Read the command line; everything of `choices` is measured unless some are named."""
    names = list(choices)
    parser = ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="see that it works; the figures mean nothing")
    if names:
        parser.add_argument("chosen", nargs="*", metavar="NAME", help=f"what to measure: {', '.join(names)}")
    given = parser.parse_args()
    chosen = getattr(given, "chosen", [])
    if unknown := set(chosen) - set(names):
        parser.error(f"there is no {', '.join(unknown)}: choose from {', '.join(names)}")
    return Options(chosen or names, given.quick)
