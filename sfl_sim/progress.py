"""What a person sees while a study runs: live bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sfl_sim.compose import Round
from sfl_sim.config.source import Study
from sfl_sim.report.display import duration
from sfl_sim.study import Notify

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
    return "" if accuracy is None else f"accuracy {accuracy:.3f}"


@contextmanager
def _bars(study: Study, console: Console) -> Iterator[Notify]:
    columns = [
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"),
        TextColumn("{task.fields[simulated]}"), TextColumn("{task.fields[found]}"), TimeRemainingColumn(),
    ]  # fmt: skip
    with Progress(*columns, console=console) as bars:
        total = bars.add_task("[bold]all", total=0, simulated="", found="")
        bars.update(total, total=sum(v.scenario.train.rounds for v in study.variants))
        tasks: dict[int, object] = {}

        def notify(number: int, round: Round) -> None:
            if number not in tasks:
                of = study.variants[number].scenario.train.rounds
                tasks[number] = bars.add_task(_name(study, number), total=of, simulated="", found="")
            simulated = f"{duration(round.row['ended_s'])} simulated"
            bars.update(tasks[number], advance=1, simulated=simulated, found=_found(round))  # type: ignore[arg-type]
            bars.advance(total)

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
