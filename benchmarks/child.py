"""Processes that run one round on request, so that the rounds of two processes can alternate.

Two environments, or two settings of a whole process (such as its allocator), need two processes. The parent makes a
`Child` of a module; that module runs a round for every turn of `rounds`.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PIPE = "SFL_SIM_BENCHMARK_PIPE"
"""Environment variable with the file number of a child's end of the pipe."""


class Child:
    """Running process `python -m arguments`; leaving the context ends it."""

    def __init__(self, *arguments: object, python: str | Path = sys.executable) -> None:
        self._began_s = time.perf_counter()
        self._pipe, theirs = Pipe()
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed on leaving the context)
        environment = os.environ | {PIPE: str(theirs.fileno()), "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [python, "-m", *map(str, arguments)],
            cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], stdout=self._said, stderr=self._said,
        )  # fmt: skip
        theirs.close()
        self.cpu_s = 0.0

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()  # one that ends a round first when it is terminated, as sfl-sim does, waits for no other
        self._process.terminate()
        self._process.wait()
        self._said.close()

    def round(self) -> None:
        """Wait for one round; the first includes the child's start-up. `cpu_s` are the child's CPU seconds so far."""
        self.cpu_s = self._ask("round")

    def weights(self) -> Any:
        """Return the result of the child's `weights`."""
        return self._ask("weights")

    @property
    def age_s(self) -> float:
        """Return the seconds since the process was started."""
        return time.perf_counter() - self._began_s

    def _ask(self, what: str) -> Any:
        try:
            self._pipe.send(what)
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            self._said.seek(0)
            raise RuntimeError(f"a child has failed:\n{self._said.read()}") from error


def rounds(weights: Callable[[], Any] = dict, cpu_s: Callable[[], float] = time.process_time) -> Iterator[None]:
    """Yield, in the child, once for every round that the parent requests; `next` reports that the last one is done."""
    pipe = Connection(int(os.environ[PIPE]))
    while True:
        if pipe.recv() == "weights":
            pipe.send(weights())
        else:
            yield
            pipe.send(cpu_s())
