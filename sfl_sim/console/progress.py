"""Progress of a study for the user: a live table or a bar in a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sfl_sim.console.live_table import learned, live_table, notebook_line
from sfl_sim.report.display import duration
from sfl_sim.runs.news import Began, Counted, Ended, Failed, News, Notify, Planned, Reused, Warned, silent

LINES_PER_TRIAL = 10


@contextmanager
def progress(console: Console, quiet: bool = False) -> Iterator[Notify]:
    """Yield a `Notify` that shows all news of a study, and the remaining time; if `quiet`, warnings alone."""
    names: list[str] = []
    show: Notify = silent
    is_counting = False
    with ExitStack() as shown:  # what is on the screen: first the trials, then perhaps what is counted

        def turn_to(display: AbstractContextManager[Notify]) -> None:
            nonlocal show
            shown.close()
            show = shown.enter_context(display)

        def notify(news: News) -> None:
            nonlocal is_counting
            match news:
                case Planned(trials):
                    names[:] = [name for name, _ in trials]
                    if not quiet:
                        turn_to(_display(console)(news, console))
                case Warned(trial, problem):
                    _say(console, f"{'' if trial is None else names[trial] + '  '}warning: {problem}")
                case Counted(trial=None) if not (quiet or is_counting or (names and console.is_jupyter)):
                    is_counting = True
                    turn_to(_bar(console) if console.is_terminal else _beginnings(console))
            show(news)

        yield notify


def _display(console: Console) -> Callable[[Planned, Console], AbstractContextManager[Notify]]:
    if console.is_jupyter:
        return notebook_line
    return live_table if console.is_terminal else _lines


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _lines(planned: Planned, console: Console) -> Iterator[Notify]:
    """Print a line for some of the rounds of each trial, and for all other news of it."""

    def notify(news: News) -> None:
        match news:
            case Ended(trial, round, True):
                of, done = planned.trials[trial][1], round.row["round"]
                if done != of and not round.stopped and done % -(-of // LINES_PER_TRIAL):
                    return
                words = [f"round {done}/{of}", f"{duration(round.row['ended_s'])} {planned.clock}", learned(round)]
                words += [f"stopped: {round.stopped}"] if round.stopped else []
            case Began(trial, after) if after:
                words = [f"goes on after round {after}"]
            case Reused(trial, run):
                words = [f"reused from {run}"]
            case Failed(trial, why):
                words = [f"failed: {why}"]
            case Counted(what, unit, 0, total, int(trial)):
                words = [f"{what}  {unit} 0/{total}"]
            case _:
                return
        _say(console, "  ".join(filter(None, [planned.trials[trial][0], *words])))

    yield notify


@contextmanager
def _bar(console: Console) -> Iterator[Notify]:
    """Show a piece of work as a bar, with the remaining time."""
    columns = [TextColumn("{task.description}", markup=False), BarColumn(bar_width=12), MofNCompleteColumn()]
    with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
        task = bars.add_task("", total=None)

        def notify(news: News) -> None:
            if isinstance(news, Counted):
                bars.update(task, description=news.what, completed=news.done, total=news.total)

        yield notify


@contextmanager
def _beginnings(console: Console) -> Iterator[Notify]:
    """Print a line when a piece of work begins."""
    begun: set[str] = set()

    def notify(news: News) -> None:
        if isinstance(news, Counted) and news.what not in begun:
            begun.add(news.what)
            _say(console, f"{news.what}  {news.unit} {news.done}/{news.total}")

    yield notify
