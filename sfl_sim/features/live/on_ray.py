"""Agents of clients on a Ray cluster, which places and starts them; data and orders do not go through Ray."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sfl_sim.errors import ScenarioError, in_short
from sfl_sim.features.live.links import RunKey
from sfl_sim.runs.backends import connected, find_ray


def resource(client: int) -> str:
    """Name the resource that a node of the cluster has if it is a client's."""
    return f"sfl_client_{client}"


@contextmanager
def agents_on_ray(address: str, n_clients: int, driver: str, key: RunKey) -> Iterator[Callable[[], str | None]]:
    """Have an agent for every client on a cluster: on the node with its `resource`, or on any node if no one has any.

    Gives what says why one of them has ended; None if none has.

    Raises ScenarioError if the cluster cannot be reached, or some clients have a node of their own and others not.
    """
    ray = find_ray()
    with connected(ray, None if address == "local" else address):
        there = ray.cluster_resources()
        named = [client for client in range(n_clients) if there.get(resource(client))]
        if named and len(named) < n_clients:
            missing = next(client for client in range(n_clients) if client not in named)
            raise ScenarioError("no node of the cluster has it", key="--ray", found=resource(missing))
        folders = [os.path.abspath(folder) for folder in sys.path]
        make = ray.remote(max_restarts=0)(_Placed)
        options = [{"resources": {resource(client): 1}} if named else {"num_cpus": 0} for client in range(n_clients)]
        actors = [make.options(**each).remote() for each in options]
        tasks = [actor.serve.remote(client, driver, key.secret, folders) for client, actor in enumerate(actors)]

        def why_gone() -> str | None:
            done, _ = ray.wait(tasks, timeout=0)
            try:
                ray.get(done)
            except ray.exceptions.RayError as error:
                return in_short(getattr(error, "cause", None) or error)
            return None

        try:
            yield why_gone
        finally:
            for actor in actors:
                ray.kill(actor)


class _Placed:
    """An agent that Ray has placed."""

    def serve(self, client: int, driver: str, secret: bytes, folders: Sequence[str]) -> Any:
        """Take orders until the driver says that all is over."""
        sys.path.extend(folder for folder in folders if folder not in sys.path)
        from sfl_sim.features.live.agent import Agent, own_of
        from sfl_sim.scenario.own_code import Permission, permitted

        with permitted(Permission(everything=True)):  # what the driver has been permitted
            asyncio.run(Agent(client, own_of, allow_code=True).serve(driver, RunKey(secret)))
