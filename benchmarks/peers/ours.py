"""sfl-sim's side: a scenario, run as the command line runs it."""

import sys
from pathlib import Path

from benchmarks.child import rounds

if __name__ == "__main__":
    turns = rounds()
    next(turns)
    from sfl_sim.runs.news import Ended, News
    from sfl_sim.runs.trial import Settings
    from sfl_sim.scenario.load import load
    from sfl_sim.studies.train import run_study

    scenario, folder = sys.argv[1:]

    def notify(news: News) -> None:
        if isinstance(news, Ended):
            next(turns)

    run_study(load(scenario), Path(folder) / "run", Settings(device="cpu"), notify)
