"""Nodes of a live run as processes of this machine: one process makes their data, and is copied for each of them."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

from sfl_sim.features.live.links import RunKey
from sfl_sim.features.live.namespaces import leave_network, route
from sfl_sim.ops import Node

ENDS_WITHIN_S = 3.0


class LocalNodes:
    """Processes of nodes, which connect to a driver.

    Args:
        driver: its address.
        recipe: makes what all of them have of their own.
        server: the address at which the server's process listens to the clients', without its port.
        apart: give each of them a network of its own.
    """

    def __init__(
        self, nodes: Sequence[Node], driver: str, key: RunKey, recipe: Any, server: str, apart: bool = False
    ) -> None:
        self.nodes = list(nodes)
        settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._said = TemporaryFile()  # noqa: SIM115  # a pipe that nobody reads would stop them once it is full
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sfl_sim.features.live.local"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=os.environ | settings,
            start_new_session=True,  # so that Ctrl-C reaches the driver alone, which ends its nodes
        )
        assert self._process.stdin
        with self._process.stdin as told:
            told.write(pickle.dumps((self.nodes, driver, key.secret, recipe, server, apart)))
        self._process.stdin = None

    def processes(self) -> tuple[int, dict[Node, int]]:
        """Give the process that has started those of the nodes, and these, once they have come."""
        assert self._process.stdout
        children = map(int, self._process.stdout.readline().split())
        return self._process.pid, dict(zip(self.nodes, children, strict=True))

    def why_gone(self) -> str | None:
        """Say why the processes have ended; None if they have not."""
        if self._process.poll() is None:
            return None
        self._said.seek(0)
        said = self._said.read().decode().strip()
        return f"their process has ended: {said.splitlines()[-1] if said else self._process.returncode}"

    def end(self) -> None:
        """End all processes, also those that do not listen any more."""
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDS_WITHIN_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._said.close()


def main() -> None:
    """Make the nodes that standard input asks for, and wait for their end."""
    import torch

    torch.set_num_threads(1)  # before anything starts threads, which a copy of this process would lack
    from sfl_sim.features.live.agent import IMAGES, Agent, EndedEarly
    from sfl_sim.scenario.own_code import Permission, permitted

    nodes, driver, secret, recipe, server, apart = pickle.load(sys.stdin.buffer)
    told = os.fdopen(os.dup(1), "w")
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # whatever else is printed
    with permitted(Permission(everything=True)):  # what the driver has been permitted
        own, children = {IMAGES: recipe()}, {}
    for node in nodes:
        if apart:
            leave_network()
        if not (child := os.fork()):
            with suppress(EndedEarly):  # as the driver says
                asyncio.run(Agent(node, lambda _: own, allow_code=True).serve(driver, RunKey(secret), server))
            os._exit(0)
        children[child] = node
    if apart:
        leave_network()
        route()
    print(*children, file=told, flush=True)
    while children:
        child, status = os.wait()
        node = children.pop(child)
        if status:  # the others go on
            sys.exit(f"node {node} has ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
