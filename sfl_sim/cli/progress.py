"""What a person sees while a study runs: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from sfl_sim.cli.live_table import cell_name, found, live_table
from sfl_sim.engine.experiment import Round
from sfl_sim.engine.trial import Began, News, Notify, Settings, Taken, Warned
from sfl_sim.report.display import duration
from sfl_sim.scenario.load import Study
from sfl_sim.store import Failure
from sfl_sim.studies.calibrate import calibrate, proposal
from sfl_sim.studies.landscape import Notify as NotifyPoint
from sfl_sim.studies.serve import Notify as NotifyRequest
from sfl_sim.studies.whatif import Notify as NotifyCount

LINES_PER_CELL = 10


@contextmanager
def progress(study: Study, console: Console, quiet: bool) -> Iterator[Notify]:
    """A `Notify` that shows how far the variants are, and the remaining time; if `quiet`, it only warns."""
    shown: AbstractContextManager[Notify]
    if quiet:
        shown = nullcontext(lambda number, news: None)
    else:
        shown = live_table(study, console) if console.is_terminal else nullcontext(_lines(study, console))
    with shown as show:

        def notify(number: int, news: News) -> None:
            if isinstance(news, Warned):
                told = f"{cell_name(study, number)}  warning: {news.problem}"
                console.print(told, highlight=False, markup=False, soft_wrap=True)
            show(number, news)

        yield notify


def _lines(study: Study, console: Console) -> Notify:
    def notify(number: int, news: News) -> None:
        of = study.variants[number].scenario.train.rounds
        match news:
            case Round():
                done = news.row["round"]
                if done != of and done % -(-of // LINES_PER_CELL):
                    return
                told = [f"round {done}/{of}", f"{duration(news.row['ended_s'])} simulated", found(news)]
            case Began(after) if after:
                told = [f"goes on after round {after}"]
            case Taken():
                told = [f"taken from {news.run}"]
            case Failure():
                told = [f"failed: {news}"]
            case _:
                return
        line = "  ".join(filter(None, [cell_name(study, number), *told]))
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    return notify


@contextmanager
def survey_progress(console: Console) -> Iterator[NotifyPoint]:
    """A `Notify` that shows which model's landscape is looked at, and the remaining time."""
    with _counted("landscape", "point", console) as notify:
        yield notify


@contextmanager
def whatif_progress(console: Console, quiet: bool) -> Iterator[NotifyCount]:
    """A `Notify` that shows how many points have been walked, and the remaining time."""
    if quiet:
        yield lambda done, total: None
    else:
        with _counted("what if", "point", console) as notify:
            yield lambda done, total: notify("what if", done, total)


@contextmanager
def serving_progress(console: Console, quiet: bool) -> Iterator[NotifyRequest]:
    """A `Notify` that shows which cell is served, and how many of its requests have come."""
    if quiet:
        yield lambda name, done, total: None
    else:
        with _counted("serving", "request", console) as notify:
            yield notify


@contextmanager
def _counted(what: str, unit: str, console: Console) -> Iterator[Callable[[str, int, int], None]]:
    if console.is_terminal:
        columns = [TextColumn("{task.description}", markup=False), BarColumn(bar_width=12), MofNCompleteColumn()]
        with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
            task = bars.add_task(what, total=None)
            yield lambda name, done, total: bars.update(task, description=name, completed=done, total=total)
    else:
        begun: set[str] = set()

        def notify(name: str, done: int, total: int) -> None:
            if name not in begun:
                begun.add(name)
                console.print(f"{name}  {unit} {done}/{total}", highlight=False, markup=False, soft_wrap=True)

        yield notify


def show_calibration(study: Study, settings: Settings, console: Console, out: Console) -> None:
    """Calibrate; what is being measured goes to `console`, the findings and the proposal to `out`."""
    findings = calibrate(study, settings, lambda what: console.print(f"measuring {what}", highlight=False))
    table = Table(
        Column("setting", no_wrap=True), "ms per step", "of the time now", "weights", box=None, pad_edge=False
    )
    for finding in findings:
        if finding.refusal is None:
            weights = "equal to the bit" if finding.exact else "rounding differs"
            name = finding.choice.flags or "as it is"
            table.add_row(name, f"{1000 * finding.step_s:.3g}", f"{finding.ratio:.2f}", weights)
    out.print(table)
    for finding in findings:
        if finding.refusal is not None:
            out.print(f"not {finding.choice.flags}: {finding.refusal}")
    if len(study.variants) > 1:
        out.print(f"Measured on the first of {len(study.variants)} runs, {study.variants[0].name}.")
    best = proposal(findings)
    if best is None:
        out.print("Nothing is clearly faster: leave the settings as they are.")
    else:
        out.print(f"Fastest, in {best.ratio:.2f} of the time: {best.choice.flags}")
