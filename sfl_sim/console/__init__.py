"""What commands share: options, the reading of a scenario, progress, and the printing of results."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sfl_sim.errors import ScenarioError, in_one_line, in_short
from sfl_sim.scenario.files import scenario_file

if TYPE_CHECKING:
    from sfl_sim.runs.news import Notify
    from sfl_sim.scenario.load import Study
    from sfl_sim.studies.launch import Outcome  # imports torch

ScenarioFile = Annotated[str, typer.Argument(help="A YAML file, or the name of a shipped scenario.")]
SetOption = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario.")]
Vary = Annotated[
    list[str],
    typer.Option(
        help="A key and the values to try, in all combinations; model.cut=all tries every cut.", metavar="KEY=VALUE,..."
    ),
]
Runs = Annotated[list[Path], typer.Argument(help="Folders of earlier runs, shown side by side.")]


def _jobs(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or not int(text):
        raise typer.BadParameter(f"{text!r} is neither a whole number above 0 nor auto")
    return int(text)


Jobs = Annotated[
    int | None,
    typer.Option(
        parser=_jobs,
        metavar="N|auto",
        help="Variants and seeds to run side by side; with Ray, on one GPU. By default auto, as many as pay.",
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of a trial; all cores unless given.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the page.")]


class Terminal(Console):
    """A console that shows any text as it is: markup and control characters in names have no effect."""

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render as rich does, with control characters escaped."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else _harmless(text), style, control)


def say(text: object, *, err: bool = False) -> None:
    """Print a line."""
    typer.echo(_harmless(str(text)), err=err)


def _harmless(text: str) -> str:
    return text if text.isprintable() else re.sub(r"[^\n\u00a0]+", lambda part: in_one_line(part[0]), text)


OURS = b'<meta name="generator" content="sfl-sim">'
"""What the beginning of a page of ours holds."""


def writable(page: Path, suffix: str = ".html", *beside: str, key: str = "--out") -> Path:
    """Return the path of a page or table. Raises ScenarioError, before anything is computed, if it cannot be written.

    Args:
        suffix: its suffix.
        beside: suffixes of the files that are written beside it.
        key: the option that names it.
    """
    from sfl_sim.store.files import sealed  # imports pandas

    try:
        str(page).encode()  # pyarrow takes no other path for the table beside it
        if page.exists() and not page.is_file():  # a device would be replaced by the page
            raise OSError(errno.EINVAL, "Is a directory" if page.is_dir() else "Is no regular file")
        if page.suffix != suffix:
            raise ScenarioError(f"must end in {suffix}", key=key, found=str(page))
        is_there = page.exists() and not page.is_symlink()  # a link is replaced itself
        if suffix == ".html" and is_there and OURS not in page.read_bytes()[:1000]:
            raise ScenarioError("would replace a file of yours", key=key, found=str(page), allowed="another file")
        written = {page.with_suffix(ending).name for ending in (suffix, *beside)}
        if replaced := written & sealed(page.parent):
            raise ScenarioError(f"would replace {replaced.pop()} of the run there", key=key, found=str(page))
        part = page.with_name(page.name + ".part")
        page.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # a link would be followed
        part.touch()
        part.unlink()
    except OSError as error:
        raise ScenarioError(f"cannot be written: {error.strerror}", key=key, found=str(page)) from error
    except UnicodeEncodeError as error:
        raise ScenarioError("is not UTF-8 text", key=key, found=str(page)) from error
    return page


def read_study(scenario: str, overrides: list[str]) -> Study:
    """Read a scenario and check its names, before what trains is imported: mistakes are told at once."""
    from sfl_sim.build.catalogue import check_names
    from sfl_sim.scenario.load import load

    file = scenario_file(scenario)
    if (inside := file / "scenario.yaml").is_file():
        raise ScenarioError("is the folder of a run", found=scenario, allowed=f"a scenario, as {inside}")
    study = load(file, overrides)
    check_names(study)
    return study


class Interrupted(Exception):
    """Ctrl-C was pressed; finished rounds have been kept."""


def conclude(
    work: Callable[[Notify], Outcome], page: str, table: Callable[[Path], RenderableType], *, quiet: bool
) -> None:
    """Do the work of a study and show its progress; print a table of its results, and the path of its page or folder.

    Args:
        work: the study.
        page: name of the page in the folder.
        table: makes the table of the folder.
        quiet: print the path alone.

    Raises Interrupted if the study was, and TrialsFailed if trials failed, after what the others gave has been shown.
    """
    from sfl_sim.console.progress import progress
    from sfl_sim.studies.launch import TrialsFailed

    failure = None
    try:
        with progress(Terminal(stderr=True), quiet) as notify:
            outcome = work(notify)
    except TrialsFailed as error:
        if error.outcome is None:
            raise
        outcome, failure = error.outcome, error
    if not quiet:
        try:
            shown = table(outcome.folder)
        except Exception as error:  # the results are stored, whatever is shown of them
            say(f"warning: the table of results is left out: {in_short(error)}", err=True)
        else:
            Terminal().print(shown)
    path = outcome.folder / page
    say(path if path.exists() else outcome.folder)
    if failure:
        raise failure
    if outcome.status == "interrupted":
        raise Interrupted
