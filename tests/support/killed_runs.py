"""Runs of a trial that are killed, for tests: `python killed_runs.py JOBS.json`, whose jobs run one after another.

Each job runs in a fork of this process, which has imported everything and runs nothing itself. A job says what is run
(`scenario`), where (`place`, the folder of a trial or of a study), how (`settings`), and where it kills itself: `kill`
is a function by its path, `before` or `after`, and at which of its calls; a share is one of the calls of the job that
was not killed.
"""

import json
import os
import signal
import sys
from itertools import count
from pathlib import Path
from pydoc import locate

import torch
import torch.fx.experimental.symbolic_shapes  # as what follows, would else be imported by every job, in half a second
from torch import nn

import sfl_sim.engine.checkpointing
import sfl_sim.studies.bottlenecks
from sfl_sim.build.code_version import code_version
from sfl_sim.engine.experiment import Experiment
from sfl_sim.report.pages import run as page
from sfl_sim.runs.trial import Settings, attempt
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.own_code import Permission, permitted
from sfl_sim.studies.train import run_study

STEP = "sfl_sim.training.executors.Eager.run"


def drawing(shape, n_labels):
    """Layers that draw random numbers, and layers that keep statistics."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3)),
        nn.Sequential(nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3)),
        nn.Sequential(nn.Flatten(), nn.Linear(4 * (shape[1] // 2) * (shape[2] // 2), 8), nn.ReLU()),
        nn.Linear(8, n_labels),
    )


def watch(path, when, nth):
    """Count the calls of a function; kill this process at one of them."""
    place, name = path.rsplit(".", 1)
    owner, calls = locate(place), count(1)
    function = getattr(owner, name)

    def watched(*args, **kwargs):
        watched.calls = next(calls)
        if (watched.calls, when) == (nth, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if (watched.calls, when) == (nth, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    watched.calls = 0
    setattr(owner, name, watched)
    return watched


def run(scenario, place, settings, kill, is_study):
    """One job; what was warned of and how many steps it took are left beside the folder."""
    place, settings, told = Path(place), Settings(threads=1, **settings), []
    steps = place.parent / "steps"
    path, when, nth = kill or (STEP, "never", 0)
    watched = watch(path, when, round(nth * int(steps.read_text())) if isinstance(nth, float) else nth)
    place.parent.mkdir(parents=True, exist_ok=True)
    study = parse(scenario)
    with permitted(Permission(everything=True)):
        if is_study:
            run_study(study, place, settings, told.append)
        else:
            attempt(0, *study.variants, place, settings, told.append)
    problems = [news.problem for news in told if hasattr(news, "problem")]
    place.with_suffix(".warnings").write_text(json.dumps(problems))
    if not (kill or settings.resume):
        steps.write_text(str(watched.calls))


def main(jobs):
    """Run the jobs; gives by which signal each has ended, 0 for none."""
    torch.set_num_threads(1)
    code_version()  # once for all jobs, as is what the first experiment of a process takes
    Experiment(parse(jobs[0]["scenario"]).variants[0].scenario, device=None)
    page.write_report = lambda folders, out, parts: out.write_text("a page")  # which would take seconds
    sfl_sim.engine.checkpointing.SHARE = 1e9  # a checkpoint after every round, whatever it takes
    signals = []
    for job in jobs:
        child = os.fork()
        if not child:
            run(**job)
            os._exit(0)
        signals.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return signals


if __name__ == "__main__":
    sys.modules["killed_runs"] = sys.modules["__main__"]
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
