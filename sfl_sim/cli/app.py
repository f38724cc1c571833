"""What all commands share: the application, options that several of them have, and the way out."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Simulate split federated learning: real PyTorch training in simulated-time order.\n\n"
    "`sfl-sim SCENARIO.yaml` runs a scenario; it is short for `sfl-sim run SCENARIO.yaml`.",
)  # fmt: skip

ScenarioFile = Annotated[str, typer.Argument(help="A YAML file, or the name of a shipped scenario.")]
Overrides = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario.")]
Runs = Annotated[list[Path], typer.Argument(help="Folders of earlier runs, shown side by side.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


class Interrupted(Exception):
    """Ctrl-C was pressed, and what there is has been kept."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("sfl-sim"))
        raise typer.Exit


@app.callback()
def common(
    show: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """What all commands share."""
