"""Progress without a terminal: a line for some rounds, and all warnings."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sfl_sim.console.progress import progress
from sfl_sim.runs.news import Began, Counted, Failed, Planned, Reused, Warned
from sfl_sim.store.trial import Failure

PLANNED = Planned([("fedavg", 20), ("[hydra]", 2)])


@pytest.fixture
def printed():
    """Tell all news, and give the lines that were printed."""

    def tell(*news, quiet=False):
        console = Console(file=StringIO(), width=40)
        with progress(console, quiet) as notify:
            for each in news:
                notify(each)
        return console.file.getvalue().replace("\u00a0", " ").splitlines()

    return tell


def test_every_tenth_of_the_rounds_is_a_line(printed, ended):
    lines = printed(PLANNED, Began(0), *(ended(0, number) for number in range(1, 21)))
    assert len(lines) == 10
    assert lines[-1] == "fedavg  round 20/20  20 min simulated  accuracy 0.500"


def test_seconds_of_live_runs_are_called_measured(printed, ended):
    live = replace(PLANNED, clock="measured")
    assert printed(live, ended(1, 2)) == ["[hydra]  round 2/2  2 min measured  accuracy 0.500"]


def test_rounds_that_a_resumed_run_takes_over_are_not_printed_again(printed, ended):
    old = [replace(ended(1, 1), is_new=False)]
    assert printed(PLANNED, Began(1, after=1), *old, ended(1, 2)) == [
        "[hydra]  goes on after round 1",
        "[hydra]  round 2/2  2 min simulated  accuracy 0.500",
    ]


def test_whatever_else_becomes_of_a_trial_is_one_too(printed):
    failure = Failure("[hydra]", 0, 2, "RuntimeError: no")
    news = Began(0, after=3), Reused(0, Path("reports/earlier")), Failed(1, failure)
    assert printed(PLANNED, *news) == [
        "fedavg  goes on after round 3",
        "fedavg  reused from reports/earlier",
        "[hydra]  failed: RuntimeError: no (round 2)",
    ]


def test_what_is_counted_after_training_is_told_when_it_begins(printed, ended):
    news = (Counted(name, "request", done, 9) for name in ("fedavg", "hydra") for done in (0, 5, 9))
    assert printed(PLANNED, ended(1, 2), *news)[1:] == ["fedavg  request 0/9", "hydra  request 0/9"]


def test_what_is_counted_within_a_trial_is_told_as_its_own_when_it_begins(printed, ended):
    decoder = [Counted("decoder at cut 2", "epoch", done, 30, trial=1) for done in range(3)]
    lines = printed(PLANNED, *decoder, ended(1, 2))
    assert lines[0] == "[hydra]  decoder at cut 2  epoch 0/30"
    assert [line.split("  ")[1] for line in lines] == ["decoder at cut 2", "round 2/2"]


def test_the_quiet_are_warned_alone(printed, ended):
    warning = Warned(1, "no checkpoint can be used")
    lines = printed(PLANNED, Began(0), warning, ended(0, 20), Counted("what if", "point", 1, 2), quiet=True)
    assert lines == ["[hydra]  warning: no checkpoint can be used"]


def test_a_warning_about_the_whole_study_names_no_trial(printed):
    assert printed(PLANNED, Warned(None, "report.html is left out")) == ["warning: report.html is left out"]
