"""The commands live run, live agent and compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sfl_sim.console import Quiet, ScenarioFile, SetOption, Terminal, conclude, read_study, say, writable
from sfl_sim.errors import ScenarioError, blamed_on
from sfl_sim.scenario.own_code import permission

if TYPE_CHECKING:
    from sfl_sim.runs.news import Notify
    from sfl_sim.studies.launch import Outcome

live = typer.Typer(name="live", no_args_is_help=True, help="Run a scenario on real machines: sfl-sim live SCENARIO.")


@live.command()
def run(
    scenario: ScenarioFile,
    overrides: SetOption = [],
    out: Annotated[Path | None, typer.Option(help="The run's folder; by default reports/<name>_live.")] = None,
    emulate: Annotated[
        Literal["sleep", "netns", "none"] | None,
        typer.Option(
            help="How this machine is as slow as the scenario: processes sleep, as they do by default if all nodes are "
            "here; or the kernel carries messages at the links' rates (Linux, root); or not at all."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Wait there for agents, which you start with sfl-sim live agent."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="With --listen, the file of the key that agents show; written if it is new.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Let a Ray cluster place the agents: auto or ray://..., or local for Ray on this machine.",
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of a node.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Run a scenario on real processes, one for each client and one for the server, and measure what it takes.

    Example: sfl-sim live live/digits --set train.rounds=3
    """
    study = read_study(scenario, overrides)
    from sfl_sim.features.live.study import LiveNodes
    from sfl_sim.features.live.study import live as run_live
    from sfl_sim.report.terminal import results_in_terminal

    nodes = LiveNodes(listen, key, ray)

    def train(notify: Notify) -> Outcome:
        return run_live(study, out, nodes=nodes, emulate=emulate, threads=threads, notify=notify)

    conclude(train, "report.html", results_in_terminal, quiet=quiet)


@live.command()
def agent(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where sfl-sim live listens.")],
    client: Annotated[int, typer.Option(min=0, help="Which client this machine is, from 0.")],
    key: Annotated[Path, typer.Option(help="The file of the key, a copy of the driver's.")],
) -> None:
    """Be a client of a live run, on the machine where it is called.

    Example: sfl-sim live agent --server 192.168.1.10:5555 --client 3 --key run.key
    """
    from sfl_sim.features.live.study import agent as be_agent

    be_agent(server, client, key, allow_code=permission().everything)
    say("the run is over")


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="[SIMULATED] LIVE",
            help="A simulated run and a live one; of a live one alone, the "
            "simulation is run with the rates that it has measured.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; by default compared.html in the live run's folder.")
    ] = None,
) -> None:
    """Lay a live run beside a simulated one.

    The page compares rounds, operations, waiting, order of service and bytes.

    Example: sfl-sim compare reports/live_digits_live
    """
    if len(runs) > 2:
        raise ScenarioError("takes a simulated run and a live one", key="compare", found=f"{len(runs)} folders")
    *given, measured = runs
    page = writable(out) if out else measured / "compared.html"
    from sfl_sim.features.live.page import live_in_terminal, write_live

    with blamed_on(*runs):
        simulated, recorded = (given[0], None) if given else _simulated(measured)
        written = write_live(simulated, measured, page, recorded)
        Terminal().print(live_in_terminal(simulated, measured, recorded))
        say(written)


def _simulated(measured: Path) -> tuple[Path, Path | None]:
    from sfl_sim.console.progress import progress
    from sfl_sim.features.live.study import simulate

    with progress(Terminal(stderr=True)) as notify:
        return simulate(measured, notify)
