"""Commands that train a scenario, or time it: run, benchmark, privacy, reprice, advise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfl_sim.console import (
    Device,
    Jobs,
    Quiet,
    ScenarioFile,
    SetOption,
    Terminal,
    Threads,
    Vary,
    conclude,
    read_study,
    say,
)
from sfl_sim.errors import blamed_on

if TYPE_CHECKING:
    from sfl_sim.runs.news import Notify
    from sfl_sim.studies.launch import Outcome


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
    quiet: Quiet = False,
) -> None:
    """Run a scenario and write its report.

    Example: sfl-sim run heterogeneous_bw --set train.rounds=5 --jobs 2
    """
    study = read_study(scenario, overrides)
    from sfl_sim.report.terminal import results_in_terminal
    from sfl_sim.runs.trial import Settings
    from sfl_sim.studies.loggers import logging
    from sfl_sim.studies.train import run_study

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

    def train(notify: Notify) -> Outcome:
        outcome = None
        try:
            with logging(study, log, notify) as notify_all:
                outcome = run_study(study, out, settings, notify_all)
                outcome.ended()  # loggers are told if it was interrupted
        except KeyboardInterrupt:
            if outcome is None:
                raise
        return outcome

    conclude(train, "report.html", results_in_terminal, quiet=quiet)


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
    quiet: Quiet = False,
) -> None:
    """Compare methods that are tuned alike.

    Each is trained with new seeds and timed on several links. It goes on if repeated.

    Example: sfl-sim benchmark benchmark/small --add my_package.my_module:MyMethod --allow-code
    """
    study = read_study(scenario, overrides)
    from sfl_sim.console.progress import progress
    from sfl_sim.report.pages.benchmark import benchmark_in_terminal, write_benchmark
    from sfl_sim.runs.trial import Settings
    from sfl_sim.studies.benchmark import run_benchmark

    settings = Settings(device=device, jobs=jobs, threads=threads or Settings.threads)
    folder = run_benchmark(study, add, out, settings, lambda: progress(Terminal(stderr=True), quiet))
    if not quiet:
        Terminal().print(benchmark_in_terminal(folder))
    say(write_benchmark(folder, folder / "benchmark.html"))


def privacy(
    scenario: ScenarioFile,
    vary: Vary = [],
    overrides: SetOption = [],
    out: Annotated[Path | None, typer.Option(help="The run's folder; by default reports/<name>-privacy.")] = None,
    jobs: Jobs = None,
    threads: Threads = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Show what the cut gives away of the clients' samples.

    The scenario is trained at all combinations of what varies.

    Example: sfl-sim privacy heterogeneous_bw --vary model.cut=all --set train.rounds=5
    """
    from sfl_sim.scenario.vary import read_axes

    axes = read_axes(vary)
    study = read_study(scenario, overrides)
    from sfl_sim.report.pages.privacy import privacy_in_terminal
    from sfl_sim.runs.trial import Settings
    from sfl_sim.studies.points import attacked
    from sfl_sim.studies.train import run_study

    study = attacked(study, axes)
    settings = Settings(device=device, jobs=jobs, threads=threads or Settings.threads, resume=resume, reuse=True)
    conclude(lambda notify: run_study(study, out, settings, notify), "privacy.html", privacy_in_terminal, quiet=quiet)


def reprice(
    run: Annotated[Path, typer.Argument(help="The folder of a training run.")],
    overrides: SetOption = [],
    out: Annotated[Path | None, typer.Option(help="The folder; by default reports/<name>-repriced.")] = None,
    quiet: Quiet = False,
) -> None:
    """Time a stored run again with other devices, links or server.

    The page says whether what the run has learned still holds.

    Example: sfl-sim reprice reports/heterogeneous_bw --set clients.network.scale=4
    """
    from sfl_sim.report.terminal import repriced_in_terminal
    from sfl_sim.studies.reprice import Repricing

    with blamed_on(run):
        repricing = Repricing(run, overrides)
        conclude(lambda notify: repricing.run(out, notify), "report.html", repriced_in_terminal, quiet=quiet)


def advise(
    scenario: ScenarioFile,
    overrides: SetOption = [],
    per_client: Annotated[bool, typer.Option("--per-client", help="Choose a cut for each client.")] = False,
    memory: Annotated[str | None, typer.Option(help="Memory of a client: 256MB, 1.5GB ...")] = None,
    accuracy: Annotated[
        float | None, typer.Option(help="Accuracy that a cut must have reached in recorded runs.")
    ] = None,
    runs: Annotated[list[Path], typer.Option("--run", help="The folder of a recorded run.")] = [],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what to paste.")] = False,
) -> None:
    """Choose the cuts with the shortest rounds, by the clock alone.

    Example: sfl-sim advise cuts/mobilenet_v1 --memory 100MB
    """

    study = read_study(scenario, overrides)
    from sfl_sim.console.progress import progress
    from sfl_sim.report.terminal import advice_in_terminal, advised_settings
    from sfl_sim.studies.advise import Criteria, find_advice, read_bytes

    criteria = Criteria(per_client, None if memory is None else read_bytes(memory), accuracy, runs)
    with progress(Terminal(stderr=True), quiet) as notify:
        advice = find_advice(study, criteria, notify)
    if not quiet:
        Terminal().print(advice_in_terminal(advice.choices, advice.cuts, advice.clients))
    for line in advised_settings(advice.choices):
        say(line)
