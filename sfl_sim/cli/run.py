"""Commands that simulate a scenario: train it, or serve what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfl_sim.cli.app import (
    Device,
    Jobs,
    ScenarioFile,
    SetOption,
    Terminal,
    Threads,
    Vary,
    app,
    conclude,
    conclude_trials,
    read_study,
    say,
)

if TYPE_CHECKING:
    from sfl_sim.studies.launch import Outcome


@app.command()
def run(
    scenario: ScenarioFile,
    overrides: SetOption = [],
    out: Annotated[Path | None, typer.Option(help="The run's folder; by default reports/<name>.")] = None,
    jobs: Jobs = None,
    threads: Threads = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run: from the last checkpoint of each variant.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again what earlier runs have finished.")] = False,
    timing_only: Annotated[bool, typer.Option("--timing-only", help="Simulate time without training.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A Ray cluster: auto or ray://..., or local for Ray on this machine."),
    ] = None,
    device: Device = "auto",
    log: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=PLACE",
            help="Log every round: tensorboard=FOLDER, wandb=PROJECT, mlflow=STORE, or package.module:function.",
        ),
    ] = [],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the report.")] = False,
) -> None:
    """Run a scenario and write its report.

    Example: sfl-sim run heterogeneous_bw --set train.rounds=5 --jobs 2
    """
    study = read_study(scenario, overrides)
    from sfl_sim.cli.progress import progress
    from sfl_sim.runs.trial import Settings
    from sfl_sim.studies.loggers import logging
    from sfl_sim.studies.train import run_study

    console = Terminal(stderr=True)
    settings = Settings(
        timing_only=timing_only,
        device=device,
        jobs=jobs,
        threads=threads or Settings.threads,
        resume=resume,
        reuse=not fresh,
        backend="ray" if ray else "local",
        address=None if ray == "local" else ray,
    )

    def train() -> Outcome:
        with progress(console, quiet) as shown, logging(study, log, shown) as notify:
            return run_study(study, out, settings, notify)

    conclude_trials(train, quiet=quiet)


@app.command()
def benchmark(
    scenario: ScenarioFile,
    add: Annotated[
        list[str], typer.Option(help="A further method, with default options: a name, or package.module:Method.")
    ] = [],
    overrides: SetOption = [],
    out: Annotated[Path | None, typer.Option(help="The folder; by default reports/<name>-benchmark.")] = None,
    jobs: Jobs = None,
    threads: Threads = None,
    device: Device = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the page.")] = False,
) -> None:
    """Compare methods: each is tuned alike, trained with new seeds and timed on several links. It goes on if repeated.

    Example: sfl-sim benchmark benchmark/small --add my_package.my_module:MyMethod --allow-code
    """
    study = read_study(scenario, overrides)
    from sfl_sim.cli.progress import progress
    from sfl_sim.report.pages.benchmark import benchmark_in_terminal, write_benchmark
    from sfl_sim.runs.trial import Settings
    from sfl_sim.studies.benchmark import run_benchmark

    settings = Settings(device=device, jobs=jobs, threads=threads or Settings.threads)
    folder = run_benchmark(study, add, out, settings, lambda: progress(Terminal(stderr=True), quiet))
    if not quiet:
        Terminal().print(benchmark_in_terminal(folder))
    say(write_benchmark(folder, folder / "benchmark.html"))


@app.command()
def privacy(
    scenario: ScenarioFile,
    vary: Vary = [],
    overrides: SetOption = [],
    out: Annotated[Path | None, typer.Option(help="The run's folder; by default reports/<name>-privacy.")] = None,
    jobs: Jobs = None,
    threads: Threads = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    device: Device = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the page.")] = False,
) -> None:
    """Train a scenario at all combinations of what varies, and show what the cut gives away of the clients' samples.

    Example: sfl-sim privacy heterogeneous_bw --vary model.cut=all --set train.rounds=5
    """
    from sfl_sim.scenario.vary import read_axes

    axes = read_axes(vary)
    study = read_study(scenario, overrides)
    from sfl_sim.cli.progress import progress
    from sfl_sim.runs.trial import Settings
    from sfl_sim.studies.privacy import attacked
    from sfl_sim.studies.train import run_study

    study = attacked(study, axes)
    with progress(Terminal(stderr=True), quiet) as notify:
        settings = Settings(device=device, jobs=jobs, threads=threads or Settings.threads, resume=resume, reuse=True)
        outcome = run_study(study, out, settings, notify)
    from sfl_sim.report.pages.privacy import privacy_in_terminal

    conclude(outcome, "privacy.html", None if quiet else privacy_in_terminal)


@app.command()
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the page.")] = False,
) -> None:
    """Serve requests with the trained model of a scenario, and write the report of latency and accuracy.

    Example: sfl-sim serve serving/fleet --timing-only
    """
    study = read_study(scenario, overrides)
    from sfl_sim.cli.progress import progress
    from sfl_sim.features.serve.study import ServedStudy
    from sfl_sim.runs.trial import Settings

    served = ServedStudy(study, Settings(timing_only, device, resume=True, reuse=True))
    with progress(Terminal(stderr=True), quiet) as notify:
        outcome = served.run(run, out, notify)
    from sfl_sim.report.terminal import served_in_terminal

    conclude(outcome, "serving.html", None if quiet else served_in_terminal)
