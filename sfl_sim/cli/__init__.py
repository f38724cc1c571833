"""The command line: its commands, and how it says what went wrong.

`sfl-sim SCENARIO.yaml` is short for `sfl-sim run SCENARIO.yaml`. Exit codes: 0 done, 1 failed, 2 bad input,
130 interrupted.
"""

import errno
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated

import typer
from typer.main import get_group

from sfl_sim.cli.run import advise, benchmark, privacy, reprice, run
from sfl_sim.cli.show import check, landscape, lists, report
from sfl_sim.console import Interrupted, say
from sfl_sim.errors import INTERRUPTED, OutputError, ScenarioError, own_place
from sfl_sim.features.devices.command import devices
from sfl_sim.features.live.command import compare, live
from sfl_sim.features.serve.command import serve
from sfl_sim.features.whatif.command import whatif
from sfl_sim.scenario.files import scenario_file
from sfl_sim.scenario.own_code import Permission, permitted
from sfl_sim.scenario.problems import keys_named

COMMANDS = (run, check, report, whatif, advise, reprice, benchmark, privacy, serve, compare, landscape)
GROUPS = (live, devices, lists)
SAFE_PATH = "PYTHONSAFEPATH"
"""Set, it keeps `python -c`, with which multiprocessing begins its processes, from importing what lies around."""
UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # click's, which newer versions of typer bundle


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Simulate split federated learning: real PyTorch training in simulated-time order.\n\n"
    "`sfl-sim SCENARIO.yaml` runs a scenario; it is short for `sfl-sim run SCENARIO.yaml`.\n\n"
    "With any command: --debug shows tracebacks, and why the event loop is used; "
    "--allow-code allows a scenario to run your own Python code.",
)
for command in COMMANDS:
    app.command()(command)
for group in GROUPS:
    app.add_typer(group)


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
    """Simulate split federated learning."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command line. Raises SystemExit, with 130 after an interrupt."""
    given = [*map(_without_tilde, sys.argv[1:] if argv is None else argv)]
    debug, allowed = "--debug" in given, "--allow-code" in given
    arguments = [argument for argument in given if argument not in ("--debug", "--allow-code")]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # of a terminal, a pipe or a file
            stream.reconfigure(errors="backslashreplace")  # a character that it cannot show ends no run
    try:
        with _modules_from_here(allowed), _reasons_shown(debug), permitted(Permission(everything=allowed)):
            arguments = _with_command(arguments)
            if app(arguments, standalone_mode=False) == INTERRUPTED:  # newer versions of typer catch Ctrl-C themselves
                raise KeyboardInterrupt
    except Interrupted:
        _fail(f"interrupted{_how_to_go_on(arguments)}", INTERRUPTED)
    except OutputError as error:
        _fail(f"failed: {error}{_how_to_go_on(arguments)}", 1, error if debug else None)
    except (KeyboardInterrupt, typer.Abort):
        hint = "; the same command goes on from there" if arguments[:1] == ["benchmark"] else ""
        _fail(f"interrupted{hint}", INTERRUPTED)
    except ScenarioError as error:
        _fail(str(error), 2, error if debug else None)
    except UsageError as error:
        if not (arguments and str(error)):
            raise SystemExit(2) from error  # the help has been shown
        _fail(_usage(error), 2)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            _fail(str(ScenarioError("File name too long", found=error.filename)), 2, error if debug else None)
        _fail(f"failed: {str(error) or type(error).__name__}{own_place(error)}", 1, error if debug else None)


def _how_to_go_on(arguments: Sequence[str]) -> str:
    return "; the same command with --resume goes on from there" if arguments[0] in ("run", "privacy") else ""


def _with_command(arguments: list[str]) -> list[str]:
    """Return the arguments with `run` before a scenario that stands in the place of a command.

    Raises ScenarioError if there is neither a command nor a scenario of that name.
    """
    n = int(arguments[:1] == ["live"])
    commands, words = get_group(live if n else app).commands, arguments[n:]
    if not words or words[0] in {*commands, "--help", "-h", "--version"}:
        return arguments
    if not words[0].startswith("-"):
        try:
            scenario_file(words[0])
        except ScenarioError as error:
            has_argument = len(words) > 1 and not words[1].startswith("-")
            allowed = [*commands, *(() if has_argument else error.allowed or ())]
            problem = error.problem.replace("such file", "such command or file")
            raise ScenarioError(problem, found=words[0], allowed=allowed) from error
    return [*arguments[:n], "run", *words]


def _without_tilde(argument: str) -> str:
    """Expand ~ at the beginning of an argument or of its value; shells leave --out=~/x as it is."""
    return re.sub(r"^(--[\w-]+=)?(~[^/]*)", lambda found: (found[1] or "") + os.path.expanduser(found[2]), argument)


def _usage(error: Exception) -> str:
    """Return what is wrong with the arguments; of a scenario's key that was given as an option, how to set it."""
    option = getattr(error, "option_name", None) or ""
    if keys := keys_named(option.lstrip("-").replace("-", "_")):
        return f"No such option: {option} (did you mean --set {keys[0]}=VALUE?)"
    return str(getattr(error, "format_message", error.__str__)())


@contextmanager
def _reasons_shown(debug: bool) -> Iterator[None]:
    """Print on stderr why the program goes one way and not another, each reason once, if that is wanted."""
    log, handler, said = logging.getLogger("sfl_sim"), logging.StreamHandler(), set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        reason = record.getMessage()
        is_first = reason not in said
        said.add(reason)
        return is_first

    handler.addFilter(is_new)
    if debug:
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


@contextmanager
def _modules_from_here(allowed: bool) -> Iterator[None]:
    """Put the current folder on the module path if that is `allowed`; otherwise keep it off, in all processes."""
    path, safe = list(sys.path), os.environ.get(SAFE_PATH)
    if allowed:
        sys.path.insert(0, os.getcwd())
    else:
        os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        sys.path[:] = path
        os.environ.pop(SAFE_PATH, None)
        if safe is not None:
            os.environ[SAFE_PATH] = safe


def _fail(line: str, code: int, error: BaseException | None = None) -> None:
    say(f"sfl-sim: {line}", err=True)
    if error is not None:
        raise error
    raise SystemExit(code)
