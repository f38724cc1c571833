"""Live table of a study in a terminal: a row for every variant with its seed, or as many as the screen can show."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from sfl_sim.engine.walk import Round
from sfl_sim.metrics.scores import SCORES
from sfl_sim.report.display import duration
from sfl_sim.runs.news import Began, Counted, Ended, Failed, News, Notify, Planned, Reused

REFRESHES_PER_S = 2
FRAME_LINES = 4
"""Lines of the screen that are no rows: the heading, the counts, the command above and the cursor below."""
STATES = {"running": "bold", "failed": "red", "done": "green", "reused": "cyan", "waiting": "dim"}
"""States of a trial, the most important first, and their styles."""

WallClock = Callable[[], float]


def learned(round: Round) -> str:
    """Return the accuracy, or another goal's first score, after a round as text; an empty one without training."""
    known = [f"{name} {round.row[name]:.3f}" for name in SCORES if round.row.get(name) is not None]
    if not known:
        return ""
    return known[0] if math.isfinite(round.row["loss"]) else f"diverged, loss {round.row['loss']}"


@dataclass
class TrialRow:
    """The state of a trial: its rounds, `resumed` of them by an interrupted run, its beginning, and its latest news."""

    name: str
    rounds: int
    state: str = "waiting"
    done: int = 0
    resumed: int = 0
    began_s: float | None = None
    changed_s: float = 0.0
    ended: str = ""
    news: str = ""

    def left_s(self, now_s: float) -> float | None:
        """Return the remaining time if all rounds take equally long; None while it is unknown."""
        trained = self.done - self.resumed
        if self.state != "running" or not trained or self.began_s is None:
            return None
        round_s = (self.changed_s - self.began_s) / trained
        return max(0.0, self.changed_s + round_s * (self.rounds - self.done) - now_s)


@dataclass
class StudyProgress:
    """The state of all trials of a study; `whose` seconds rounds are told in: simulated or measured."""

    rows: list[TrialRow]
    clock: WallClock = time.monotonic
    whose: str = "simulated"

    def notify(self, news: News) -> None:
        """Note the news of a trial."""
        if isinstance(news, Counted) and news.trial is not None:
            self.rows[news.trial].news = f"{news.what}  {news.unit} {news.done}/{news.total}"
        if not isinstance(news, Began | Ended | Reused | Failed):
            return
        row = self.rows[news.trial]
        row.changed_s = self.clock()
        match news:
            case Began(_, after):
                row.state, row.began_s = "running", row.changed_s
                row.done = row.resumed = after
            case Ended(_, round):
                row.done = round.row["round"]
                row.rounds = row.done if round.stopped else row.rounds
                row.state = "done" if row.done == row.rounds else "running"
                row.ended, row.news = duration(round.row["ended_s"]), round.stopped or learned(round)
            case Reused(_, run):
                row.state, row.news = "reused", f"from {run}"
            case Failed(_, why):
                row.state, row.news = "failed", str(why)

    def left_s(self) -> float | None:
        """Return the remaining time of all trials at the present speed; None while it is unknown."""
        trained = sum(row.done - row.resumed for row in self.rows)
        left = sum(row.rounds - row.done for row in self.rows if row.state in ("running", "waiting"))
        began_s = min((row.began_s for row in self.rows if row.began_s is not None), default=None)
        return None if began_s is None or not trained else (self.clock() - began_s) / trained * left

    def shown(self, n: int) -> list[TrialRow]:
        """Return the `n` most important rows, in the order of the study."""
        states = list(STATES)

        def rank(number: int) -> tuple[int, float]:
            row = self.rows[number]
            return states.index(row.state), -row.changed_s

        return [self.rows[number] for number in sorted(sorted(range(len(self.rows)), key=rank)[:n])]

    def counts(self) -> Text:
        """Return the number of trials in each state, and the remaining time."""
        counted = Counter(row.state for row in self.rows)
        states = [(f"{counted[state]} {state}", style) for state, style in STATES.items() if counted[state]]
        left_s = self.left_s()
        if left_s:
            states.append((f"about {duration(left_s)} left", ""))
        return Text(" · ").join(Text(text, style) for text, style in states)

    def table(self, n_rows: int) -> Group:
        """Return the trials as a table of at most so many rows, and below it the counts of all."""
        table = Table(
            Column("Variant", no_wrap=True, ratio=1), Column("", no_wrap=True),
            *(Column(title, no_wrap=True, justify="right") for title in ("Round", self.whose.capitalize())),
            Column("Left", no_wrap=True, justify="right"), Column("", no_wrap=True, ratio=1),
            box=None, pad_edge=False, expand=True, header_style="dim",
        )  # fmt: skip
        now_s = self.clock()
        for row in self.shown(n_rows):
            left_s = row.left_s(now_s)
            left = "" if left_s is None else duration(round(left_s))
            rounds = "" if row.state == "reused" else f"{row.done}/{row.rounds}"
            texts = row.name, row.state, rounds, row.ended, left, row.news
            table.add_row(*map(Text, texts), style=STATES[row.state])
        return Group(table, self.counts())


@contextmanager
def live_table(planned: Planned, console: Console) -> Iterator[Notify]:
    """Yield a `Notify` that keeps the table of the planned trials up to date."""
    progress = StudyProgress([TrialRow(name, rounds) for name, rounds in planned.trials], whose=planned.clock)
    with Live(
        console=console,
        get_renderable=lambda: progress.table(max(1, console.height - FRAME_LINES)),
        refresh_per_second=REFRESHES_PER_S,
    ):
        yield progress.notify


@contextmanager
def notebook_line(planned: Planned, console: Console) -> Iterator[Notify]:
    """Yield a `Notify` that keeps one line on the planned trials up to date below the cell of a notebook."""
    from IPython.display import display  # every notebook has it

    progress = StudyProgress([TrialRow(name, rounds) for name, rounds in planned.trials], whose=planned.clock)
    shown_s, counted = -math.inf, ""

    def picture() -> dict[str, str]:
        (latest,) = progress.shown(1)
        words = [str(progress.counts()), f"{latest.name}: round {latest.done}/{latest.rounds}", latest.ended]
        return {"text/plain": "  ".join(filter(None, [*words, counted or latest.news]))}

    handle = display(picture(), raw=True, display_id=True)

    def notify(news: News) -> None:
        nonlocal shown_s, counted
        progress.notify(news)
        counted = f"{news.what}  {news.unit} {news.done}/{news.total}" if isinstance(news, Counted) else ""
        if time.monotonic() - shown_s > 1 / REFRESHES_PER_S:
            handle.update(picture(), raw=True)
            shown_s = time.monotonic()

    yield notify
    counted = ""
    handle.update(picture(), raw=True)
