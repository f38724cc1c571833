"""The command whatif."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfl_sim.console import Quiet, ScenarioFile, SetOption, Vary, conclude, read_study

if TYPE_CHECKING:
    from sfl_sim.runs.news import Notify
    from sfl_sim.studies.launch import Outcome


def whatif(
    scenario: ScenarioFile,
    vary: Vary = [],
    overrides: SetOption = [],
    runs: Annotated[
        list[Path],
        typer.Option("--run", help="The folder of a training run whose accuracy is shown at its configurations."),
    ] = [],
    out: Annotated[Path | None, typer.Option(help="The folder; by default reports/<name>-whatif.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Configurations to walk side by side.")] = 1,
    uncertainty: Annotated[
        int | None,
        typer.Option(
            min=2, metavar="N", help="Time all again in N systems drawn from the errors of prices and profiles."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Time the rounds of a scenario at all combinations of what varies.

    Nothing is trained.

    Example: sfl-sim whatif cuts/mobilenet_v1 --vary model.cut=all --vary clients.network.scale=0.25,1,4
    """
    from sfl_sim.scenario.vary import read_axes

    axes = read_axes(vary)
    study = read_study(scenario, overrides)
    from sfl_sim.features.whatif.page import whatif_in_terminal
    from sfl_sim.features.whatif.study import run_whatif

    def ask(notify: Notify) -> Outcome:
        return run_whatif(study, axes, out, jobs=jobs, notify=notify, runs=runs, draws=uncertainty or 0)

    conclude(ask, "whatif.html", whatif_in_terminal, quiet=quiet)
