"""sfl-sim's side: a scenario, run as the command line runs it."""

import sys
from pathlib import Path

from benchmarks.child import rounds

if __name__ == "__main__":
    turns = rounds()
    next(turns)
    from sfl_sim.cells import Settings
    from sfl_sim.config.source import load
    from sfl_sim.study import run_study

    scenario, folder = sys.argv[1:]
    run_study(load(scenario), Path(folder) / "run", Settings(device="cpu"), lambda number, round: next(turns))
