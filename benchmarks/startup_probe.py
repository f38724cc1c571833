"""Program that `benchmarks.startup` starts: a run of a scenario by the command line, with the end of each phase.

It is a module of its own so that nothing is imported too early. Arguments: when the process was started, the run's
folder, the scenario and its overrides.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ended = {"python": (time.perf_counter(), time.process_time())}  # the first is one clock for all processes under Linux


def mark(phase: str) -> None:
    ended.setdefault(phase, (time.perf_counter(), time.process_time()))


def marked(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    """Wrap `function` so that its first call ends the phase."""

    def call(*arguments: Any, **settings: Any) -> Any:
        result = function(*arguments, **settings)
        mark(phase)
        return result

    return call


def end(news: object) -> None:
    """Print wall and CPU seconds of each phase after the first round, and stop."""
    from sfl_sim.runs.news import Ended

    if not isinstance(news, Ended):
        return
    mark("round 1")
    starts = [(float(sys.argv[1]), 0.0), *ended.values()]
    spent = {
        phase: (wall - before_wall, cpu - before_cpu)
        for (phase, (wall, cpu)), (before_wall, before_cpu) in zip(ended.items(), starts, strict=False)
    }
    print(json.dumps(spent))
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    _, _, folder, scenario, *overrides = sys.argv
    import sfl_sim.cli

    mark("command line")
    from sfl_sim.console import read_study

    given = read_study(scenario, overrides)
    mark("read scenario")
    import torch  # noqa: F401  (its share of the imports)

    mark("torch")
    import pandas  # noqa: F401  (its share, too)

    mark("pandas")
    import sfl_sim.console.progress  # noqa: F401  (`sfl_sim.cli.run` imports it)
    from sfl_sim.engine.experiment import Experiment
    from sfl_sim.runs.trial import Settings
    from sfl_sim.studies import train

    mark("other imports")
    train.check = marked(train.check, "check")
    Experiment.rounds = marked(Experiment.rounds, "build")
    train.run_study(given, Path(folder) / "run", Settings(), end)


if __name__ == "__main__":
    main()
