"""The console script from its first line to its last."""

import signal
import subprocess
import sys

import pytest

PRESSED = """\
import os, signal, sys

def press(event, about):
    if event == "import" and about[0] == sys.argv[1]:
        os.kill(os.getpid(), int(sys.argv[2]))

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job ignores
sys.addaudithook(press)
from sfl_sim.__main__ import main
main()
"""
ENDED = """\
import signal, sys
from sfl_sim.__main__ import main

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[1:] = ["--version"]
main()
print(signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["sfl_sim.cli", "typer", "sfl_sim.scenario.problems"])
def test_an_interrupt_while_its_modules_are_imported_is_one_line(module, number):
    done = subprocess.run([sys.executable, "-c", PRESSED, module, str(int(number))], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "sfl-sim: interrupted\n")


def test_an_interrupt_while_python_ends_shows_no_traceback():
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "True"


WITHIN = """\
import sfl_sim.cli
from sfl_sim.__main__ import main

sfl_sim.cli.main = lambda: exec("raise KeyboardInterrupt")
main()
"""


def test_an_interrupt_within_an_exec_ends_by_its_code_and_not_by_the_signal(tmp_path):
    """CPython 3.11 remembers a Ctrl-C that has left an exec, and ends `python -m` by SIGINT."""
    (tmp_path / "within.py").write_text(WITHIN)
    called = [sys.executable, "-m", "within"]
    done = subprocess.run(called, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "sfl-sim: interrupted\n")
