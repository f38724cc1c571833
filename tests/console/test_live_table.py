"""The table that a person watches: what becomes of every variant, and how long it will take."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sfl_sim.console.live_table import StudyProgress, TrialRow
from sfl_sim.runs.news import Began, Counted, Failed, Reused
from sfl_sim.store.trial import Failure


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


def printed(progress, n_rows=20, width=140):
    console = Console(width=width, file=StringIO(), color_system=None)
    console.print(progress.table(n_rows))
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


@pytest.fixture
def clock():
    return Clock()


def test_it_says_what_every_variant_is_at(clock, ended):
    names = ["first", "second", "third", "fourth", "fifth"]
    progress = StudyProgress([TrialRow(name, 4) for name in names], clock)
    progress.notify(Reused(1, Path("reports/small")))
    progress.notify(Began(0))
    clock.now_s += 10
    progress.notify(ended(0, 1))
    progress.notify(Began(2))
    progress.notify(Failed(2, Failure("third", 0, 1, "RuntimeError: no [bold]more")))
    progress.notify(Began(3))
    clock.now_s += 5
    assert printed(progress) == [
        "Variant Round Simulated Left",
        "first running 1/4 1 min 25 s accuracy 0.500",
        "second reused from reports/small",
        "third failed 0/4 RuntimeError: no [bold]more (round 1)",
        "fourth running 0/4",
        "fifth waiting 0/4",
        "2 running · 1 failed · 1 reused · 1 waiting · about 2 min 45 s left",
    ]  # 15 s for a round; 3 + 4 + 4 rounds are left, none of what failed or was reused


def test_work_within_a_round_is_told_and_is_no_round(clock, ended):
    progress = StudyProgress([TrialRow("first", 4)], clock)
    progress.notify(Began(0))
    clock.now_s += 5
    progress.notify(ended(0, 1))
    clock.now_s += 5
    for news in (Counted("decoder at cut 2", "epoch", 3, 30, trial=0), Counted("what if", "point", 1, 2)):
        progress.notify(news)
    assert printed(progress)[1] == "first running 1/4 1 min 10 s decoder at cut 2 epoch 3/30"


def test_rounds_of_an_interrupted_run_took_no_time_of_this_one(clock, ended):
    progress = StudyProgress([TrialRow("first", 100)], clock)
    progress.notify(Began(0, after=50))
    assert printed(progress)[1] == "first running 50/100"
    clock.now_s += 10
    progress.notify(ended(0, 51))
    shown = printed(progress)
    assert shown[1] == "first running 51/100 51 min 8 min 10 s accuracy 0.500"
    assert shown[-1] == "1 running · about 8 min 10 s left"


def test_a_round_that_is_late_is_not_there_in_less_than_no_time(clock, ended):
    progress = StudyProgress([TrialRow("first", 2)], clock)
    progress.notify(Began(0))
    clock.now_s += 10
    progress.notify(ended(0, 1, accuracy=None))
    clock.now_s += 500
    assert printed(progress)[1] == "first running 1/2 1 min 0 s"


def test_of_200_variants_a_small_screen_shows_those_that_run_or_failed_and_the_last_that_ended(clock, ended):
    progress = StudyProgress([TrialRow(f"variant {i}", 1) for i in range(200)], clock)
    for number in range(100):
        clock.now_s += 1
        progress.notify(Began(number))
        progress.notify(Failed(number, Failure("", 0, None, "killed")) if number == 7 else ended(number, 1))
    progress.notify(Began(150))
    shown = printed(progress, n_rows=6)
    assert [line.rpartition("/")[0] for line in shown[1:-1]] == [
        "variant 7 failed 0",
        *(f"variant {i} done 1" for i in (96, 97, 98, 99)),
        "variant 150 running 0",
    ]
    assert shown[-1].startswith("1 running · 1 failed · 99 done · 99 waiting · about ")


def test_divergence_is_said(clock, ended):
    progress = StudyProgress([TrialRow("first", 1)], clock)
    progress.notify(ended(0, 1, loss=float("nan")))
    assert printed(progress)[1] == "first done 1/1 1 min diverged, loss nan"
