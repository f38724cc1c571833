"""sfl-sim's side: a scenario, run as the command line runs it."""

import sys
from pathlib import Path

from benchmarks.child import rounds

if __name__ == "__main__":
    turns = rounds()
    next(turns)
    from sfl_sim.cells import News, Settings
    from sfl_sim.compose import Round
    from sfl_sim.config.source import load
    from sfl_sim.study import run_study

    scenario, folder = sys.argv[1:]

    def notify(number: int, news: News) -> None:
        if isinstance(news, Round):
            next(turns)

    run_study(load(scenario), Path(folder) / "run", Settings(device="cpu"), notify)
