"""What a person sees while a study runs: live bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from sfl_sim.calibrate import calibrate, proposal
from sfl_sim.cells import Notify, Settings
from sfl_sim.compose import Round
from sfl_sim.config.source import Study
from sfl_sim.landscape import Notify as NotifyPoint
from sfl_sim.report.display import duration
from sfl_sim.serving import Notify as NotifyRequest

LINES_PER_CELL = 10


@contextmanager
def progress(study: Study, console: Console, quiet: bool) -> Iterator[Notify]:
    """A `Notify` that shows rounds, simulated time, accuracy and the remaining time."""
    if quiet:
        yield lambda number, round: None
    elif console.is_terminal:
        with _bars(study, console) as notify:
            yield notify
    else:
        yield _lines(study, console)


def _name(study: Study, number: int) -> str:
    variant = study.variants[number]
    return variant.name + (f" (seed {variant.scenario.seed})" if study.base.repeats > 1 else "")


def _found(round: Round) -> str:
    accuracy = round.row["accuracy"]
    if accuracy is None:
        return ""
    return f"accuracy {accuracy:.3f}" if math.isfinite(round.row["loss"]) else f"diverged, loss {round.row['loss']}"


@contextmanager
def _bars(study: Study, console: Console) -> Iterator[Notify]:
    whole = Column(no_wrap=True)
    columns = [
        TextColumn("{task.description}", table_column=whole), BarColumn(bar_width=12), MofNCompleteColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[news]}", table_column=whole),
    ]  # fmt: skip
    with Progress(*columns, console=console) as bars:
        total = sum(variant.scenario.train.rounds for variant in study.variants)
        everything = bars.add_task("[bold]rounds", total=total, news="")
        tasks: dict[int, TaskID] = {}

        def notify(number: int, round: Round) -> None:
            rounds = study.variants[number].scenario.train.rounds
            if number not in tasks:
                tasks[number] = bars.add_task(_name(study, number), total=rounds, news="")
            news = f"{_found(round)} at {duration(round.row['ended_s'])}".strip()
            # A cell that is done leaves the screen to those that run; the table at the end shows them all.
            bars.update(tasks[number], advance=1, news=news, visible=round.row["round"] < rounds)
            bars.advance(everything)

        yield notify


def _lines(study: Study, console: Console) -> Notify:
    def notify(number: int, round: Round) -> None:
        of = study.variants[number].scenario.train.rounds
        done = round.row["round"]
        if done == of or done % -(-of // LINES_PER_CELL) == 0:
            parts = [
                _name(study, number), f"round {done}/{of}",
                f"{duration(round.row['ended_s'])} simulated", _found(round),
            ]  # fmt: skip
            console.print("  ".join(filter(None, parts)), highlight=False, soft_wrap=True)

    return notify


@contextmanager
def survey_progress(console: Console) -> Iterator[NotifyPoint]:
    """A `Notify` that shows which model's landscape is looked at, and the remaining time."""
    with _counted("landscape", "point", console) as notify:
        yield notify


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
        columns = [TextColumn("{task.description}"), BarColumn(bar_width=12), MofNCompleteColumn()]
        with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
            task = bars.add_task(what, total=None)
            yield lambda name, done, total: bars.update(task, description=name, completed=done, total=total)
    else:
        begun: set[str] = set()

        def notify(name: str, done: int, total: int) -> None:
            if name not in begun:
                begun.add(name)
                console.print(f"{name}  {unit} {done}/{total}", highlight=False, soft_wrap=True)

        yield notify


def show_calibration(study: Study, settings: Settings, console: Console) -> None:
    """Calibrate; what is being measured goes to `console`, the findings and the proposal to the standard output."""
    findings = calibrate(study, settings, lambda what: console.print(f"measuring {what}", highlight=False))
    out = Console(soft_wrap=True, highlight=False)
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
