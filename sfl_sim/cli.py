"""The command line: parse, call, print; no logic.

`sfl-sim SCENARIO.yaml` is short for `sfl-sim run SCENARIO.yaml`. Exit codes: 0 done, 1 failed, 2 bad input,
130 interrupted.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sfl_sim.errors import ScenarioError
from sfl_sim.shipped import scenario_file

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Simulate split federated learning: real PyTorch training in simulated-time order.\n\n"
    "`sfl-sim SCENARIO.yaml` runs a scenario; it is short for `sfl-sim run SCENARIO.yaml`.",
)  # fmt: skip

INTERRUPTED = 130
UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # click's, which newer versions of typer bundle

ScenarioFile = Annotated[str, typer.Argument(help="A YAML file, or the name of a shipped scenario.")]
Overrides = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario.")]
Runs = Annotated[list[Path], typer.Argument(help="Folders of earlier runs, shown side by side.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


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


@app.command()
def run(
    scenario: ScenarioFile,
    overrides: Overrides = [],  # noqa: B006  (typer copies it)
    out: Annotated[Path | None, typer.Option(help="The run's folder; by default reports/<name>.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Variants and seeds to run side by side.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of a run; all cores unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep what an interrupted run has finished.")] = False,
    timing_only: Annotated[bool, typer.Option("--timing-only", help="Simulate time without training.")] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Only measure, for a minute, which settings are fastest here.")
    ] = False,
    device: Device = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the report's place only.")] = False,
    debug: Debug = False,
) -> None:
    """Run a scenario and write its report."""
    from sfl_sim.cells import Settings
    from sfl_sim.config.source import load, training
    from sfl_sim.progress import progress, show_calibration
    from sfl_sim.study import run_study

    console = Console(stderr=True)
    settings = Settings(timing_only, device, jobs, threads or Settings.threads, resume)
    study = training(load(scenario_file(scenario), overrides))
    if calibrate:
        show_calibration(study, settings, console)
        return
    with progress(study, console, quiet) as notify:
        outcome = run_study(study, out, settings, notify)
    if not quiet:
        from sfl_sim.report.terminal import results_in_terminal

        Console().print(results_in_terminal(outcome.folder))
    typer.echo(outcome.folder / "report.html")
    if outcome.status == "interrupted":
        raise Interrupted


@app.command()
def serve(
    scenario: ScenarioFile,
    overrides: Overrides = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="The folder; by default reports/<name>-serving.")] = None,
    run: Annotated[
        Path | None, typer.Option(help="The folder of the run to serve; by default what reports/ has, or is trained.")
    ] = None,
    timing_only: Annotated[
        bool, typer.Option("--timing-only", help="Serve without training, exits by chance.")
    ] = False,
    device: Device = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the page's place only.")] = False,
    debug: Debug = False,
) -> None:
    """Let requests come to what a scenario trains, and write how they were answered."""
    from sfl_sim.cells import Settings
    from sfl_sim.config.source import load
    from sfl_sim.progress import progress, serving_progress
    from sfl_sim.serving import ServedStudy

    console = Console(stderr=True)
    settings = Settings(timing_only, device, resume=True)
    study = ServedStudy(load(scenario_file(scenario), overrides), settings)
    answers = study.answers(run, lambda trained: progress(trained, console, quiet))
    with serving_progress(console, quiet) as notify:
        outcome = study.serve(answers, out, notify)
    if not quiet:
        from sfl_sim.report.served import served_in_terminal

        Console().print(served_in_terminal(outcome.folder))
    typer.echo(outcome.folder / "serving.html")
    if outcome.status == "interrupted":
        raise Interrupted


@app.command()
def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="The page; by default report.html in the only run.")] = None,
    debug: Debug = False,
) -> None:
    """Write the report of stored runs again, or one page for several."""
    from sfl_sim.report.page import write_report

    typer.echo(write_report(runs, out or _page_of(runs, "report.html")))


@app.command()
def landscape(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="The page; by default landscape.html in the only run.")] = None,
    points: Annotated[int, typer.Option(help="Points of the line through each model; odd.")] = 25,
    plane_points: Annotated[int, typer.Option(help="Points along each side of the plane; odd.")] = 15,
    span: Annotated[float, typer.Option(help="How far they reach, in lengths of the model's filters.")] = 1.0,
    samples: Annotated[int, typer.Option(min=1, help="Test samples that the loss is measured on.")] = 1000,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Show how flat the loss is around the final models of stored runs."""
    from sfl_sim.landscape import Extent, survey
    from sfl_sim.progress import survey_progress

    page = out or _page_of(runs, "landscape.html")
    with survey_progress(Console(stderr=True)) as notify:
        survey(runs, page, Extent(points, plane_points, span, samples), device, notify)
    typer.echo(page)


def _page_of(runs: list[Path], name: str) -> Path:
    if len(runs) > 1:
        raise ScenarioError("several runs need a place for their common page", key="--out")
    return runs[0] / name


@app.command()
def validate(
    scenario: ScenarioFile,
    overrides: Overrides = [],  # noqa: B006
    debug: Debug = False,
) -> None:
    """Check a scenario, its data and its profiles without running it."""
    from sfl_sim.cells import Settings
    from sfl_sim.config.source import load, training
    from sfl_sim.serving import ServedStudy
    from sfl_sim.study import check

    study = load(scenario_file(scenario), overrides)
    check(training(study))
    if any(variant.scenario.serving for variant in study.variants):
        ServedStudy(study, Settings())
    names = dict.fromkeys(variant.name for variant in study.variants)
    typer.echo(f"{scenario}: fine ({len(study.variants)} runs: {'; '.join(names)})")


@app.command()
def partition(
    scenario: ScenarioFile,
    overrides: Overrides = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="The page; by default reports/<name>-partition.html.")] = None,
    debug: Debug = False,
) -> None:
    """Show which samples the clients would hold, before anything is trained."""
    from sfl_sim.config.source import load
    from sfl_sim.partitions import preview
    from sfl_sim.report.preview import preview_in_terminal, write_preview

    found = preview(load(scenario_file(scenario), overrides))
    Console().print(preview_in_terminal(found))
    typer.echo(write_preview(found, out or Path("reports", f"{found.name}-partition.html")))


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenarios, for editors."""
    from sfl_sim.catalogue import choices
    from sfl_sim.config.schema import json_schema
    from sfl_sim.methods import METHODS

    options = {name: method.Options.model_json_schema() for name, method in METHODS.items()}
    typer.echo(json.dumps(json_schema(options, choices()), indent=2))


@app.command()
def model(
    name: Annotated[str, typer.Argument(help="A model's name, or package.module:make for one of your own.")],
    input_shape: Annotated[
        str | None, typer.Option("--input", metavar="SHAPE", help="One sample's shape, as 3x32x32; 80 for 80 tokens.")
    ] = None,
    n_labels: Annotated[int | None, typer.Option("--labels", min=1, help="Number of labels.")] = None,
    debug: Debug = False,
) -> None:
    """Show what the layers of a model cost, and where it is best cut."""
    from sfl_sim.catalogue import find_model
    from sfl_sim.config.scenario import Model
    from sfl_sim.models.layer_table import layer_table, usual_data
    from sfl_sim.models.zoo import network
    from sfl_sim.report.layers import layers_in_terminal

    usual_shape, usual_labels = usual_data(name)
    shape = _shape(input_shape) if input_shape else usual_shape
    chosen = find_model(Model(factory=name, name=None) if ":" in name else Model(name=name))
    net = network(chosen, shape, n_labels or usual_labels)
    table = layers_in_terminal(layer_table(net).assign(model=name), shape, net.n_labels)
    Console(soft_wrap=True, markup=False, emoji=False).print(table)


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split("x")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise ScenarioError("is not the shape of a sample", key="--input", found=text, allowed="such as 3x32x32 or 80")
    return tuple(map(int, sizes))


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="methods, models, datasets, partitions, orders, profiles or scenarios.")],
    debug: Debug = False,
) -> None:
    """List what comes with sfl-sim, with a line of explanation each."""
    from sfl_sim.catalogue import catalogue

    entries = catalogue()
    if what not in entries:
        raise ScenarioError("there is no such list", key="list", found=what, allowed=entries)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, about in entries[what].items():
        table.add_row(name, about)
    Console(soft_wrap=True).print(table)


class Interrupted(Exception):
    """Ctrl-C was pressed, and what there is has been kept."""


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    if arguments and arguments[0] not in commands | {"--help", "-h", "--version"}:
        arguments.insert(0, "run")
    debug = "--debug" in arguments
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` keeps what there is, as Ctrl-C does
    sys.path.insert(0, "")  # methods and orders of a user's own may lie where the command is called
    try:
        if app(arguments, standalone_mode=False) == INTERRUPTED:  # newer versions of typer catch Ctrl-C themselves
            raise KeyboardInterrupt
    except (Interrupted, KeyboardInterrupt, typer.Abort):
        _fail("interrupted", INTERRUPTED)
    except ScenarioError as error:
        _fail(str(error), 2, error if debug else None)
    except UsageError as error:
        if not arguments:
            raise SystemExit(2) from error  # the help has been shown
        _fail(getattr(error, "format_message", error.__str__)(), 2)
    except Exception as error:
        _fail(f"failed: {error}", 1, error if debug else None)


def _fail(line: str, code: int, error: BaseException | None = None) -> None:
    typer.echo(f"sfl-sim: {line}", err=True)
    if error is not None:
        raise error
    raise SystemExit(code)


if __name__ == "__main__":
    main()
