"""The command serve."""

from pathlib import Path
from typing import Annotated

import typer

from sfl_sim.console import Device, Quiet, ScenarioFile, SetOption, conclude, read_study


def serve(
    scenario: ScenarioFile,
    overrides: SetOption = [],
    out: Annotated[Path | None, typer.Option(help="The folder; by default reports/<name>-serving.")] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="The folder of the run to serve; by default one in reports/, or it is trained first."),
    ] = None,
    timing_only: Annotated[
        bool, typer.Option("--timing-only", help="Serve without training, with exits drawn at random.")
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Serve requests with the trained model of a scenario.

    The page shows latency and accuracy.

    Example: sfl-sim serve serving/fleet --timing-only
    """
    study = read_study(scenario, overrides)
    from sfl_sim.features.serve.page import serving_in_terminal
    from sfl_sim.features.serve.study import ServedStudy
    from sfl_sim.runs.trial import Settings

    served = ServedStudy(study, Settings(timing_only, device, resume=True, reuse=True))
    conclude(lambda notify: served.run(run, out, notify), "serving.html", serving_in_terminal, quiet=quiet)
