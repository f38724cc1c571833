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

ended_s = {"python": time.perf_counter()}  # one clock for all processes of a Linux machine


def mark(phase: str) -> None:
    ended_s.setdefault(phase, time.perf_counter())


def marked(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    """Wrap `function` so that its first call ends the phase."""

    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        mark(phase)
        return result

    return call


def end(number: int, news: object) -> None:
    """Print the seconds of each phase after the first round, and stop."""
    from sfl_sim.engine.experiment import Round

    if not isinstance(news, Round):
        return
    mark("round 1")
    starts_s = [float(sys.argv[1]), *ended_s.values()]
    print(json.dumps({phase: s - start_s for (phase, s), start_s in zip(ended_s.items(), starts_s, strict=False)}))
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    _, _, folder, scenario, *overrides = sys.argv
    import sfl_sim.cli

    mark("command line")
    import torch  # noqa: F401  (its share of the imports)

    mark("torch")
    import sfl_sim.cli.progress
    import sfl_sim.report.terminal  # noqa: F401  (what `sfl_sim.cli.run` imports)
    from sfl_sim import compose, study
    from sfl_sim.scenario.load import load
    from sfl_sim.scenario.shipped import scenario_file

    mark("other imports")
    given = load(scenario_file(scenario), overrides)
    mark("read scenario")
    study.check = marked(study.check, "check")
    compose.Experiment.rounds = marked(compose.Experiment.rounds, "compose")
    study.run_study(given, Path(folder) / "run", study.Settings(), end)


if __name__ == "__main__":
    main()
