"""The command line: parse, call, print; no logic.

`sfl-sim SCENARIO.yaml` is short for `sfl-sim run SCENARIO.yaml`. Exit codes: 0 done, 1 failed, 2 bad input,
130 interrupted.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

import typer

from sfl_sim.cli import asking, running, showing  # noqa: F401  (they register their commands)
from sfl_sim.cli.app import Interrupted, app
from sfl_sim.errors import ScenarioError

INTERRUPTED = 130
UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # click's, which newer versions of typer bundle


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
