"""Order policies: who may change a shared state next (METHODS.md section 1).

A policy is a function `(waiting, now_s) -> Job | None` of the jobs that have arrived, by client and in order of
arrival; `None` holds the server for somebody who has not come yet. An order is a function that makes the policy of
one round from a `Roster`. To add one, write it and enter it in `ORDERS`, or name it in the scenario as
`server: {order: "my_package.my_module:my_order"}`. A complete example, the client with the longest job first:

    >>> def longest_job(roster):
    ...     return lambda waiting, now_s: max(waiting.values(), key=lambda job: job.service_s)
    >>> from sfl_sim.sim.station import Job
    >>> waiting = {c: Job(c, state=None, arrived_s=0.0, service_s=s) for c, s in [(4, 0.1), (2, 0.3)]}
    >>> longest_job(Roster(clients=[2, 4], left={2: 1, 4: 1}))(waiting, now_s=0.0).client
    2
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from sfl_sim.errors import ScenarioError
from sfl_sim.sim.station import Job, Policy, first_come


@dataclass(slots=True)
class Roster:
    """What an order may know about a round.

    Attributes:
        clients: the participants in cyclic order (grouped by dominant label, METHODS.md section 1).
        left: jobs of each client that have not been served yet; the station keeps it up to date.
        burst: how many consecutive jobs of a chosen client are served before another choice.
        rng: the round's own random stream.
    """

    clients: list[int]
    left: dict[int, int]
    burst: float = 1
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def turns_of(self, client: int) -> Iterator[int]:
        """`client`, once for every job of its burst; shorter where the client has fewer jobs left."""
        served = 0
        while served < self.burst and self.left[client]:
            served += 1
            yield client


Order = Callable[[Roster], Policy]


class InTurn:
    """A strict policy: serve the clients in the sequence `turns`, and hold the server for whoever is late."""

    def __init__(self, turns: Iterator[int]) -> None:
        self.turns = turns
        self.turn: int | None = None
        """The client whose turn it is; None between two turns. The next turn is drawn when it is asked for."""

    def __call__(self, waiting: Mapping[int, Job], now_s: float) -> Job | None:
        """The job of the client whose turn it is, if it has come."""
        if self.turn is None:
            self.turn = next(self.turns, None)
        if self.turn is None or self.turn not in waiting:
            return None
        job, self.turn = waiting[self.turn], None
        return job


def fcfs(roster: Roster) -> Policy:
    """Arrival-driven: whoever came first, ties by client id."""
    return first_come


def cyclic(roster: Roster) -> Policy:
    """The cyclic list over and over, skipping clients that are done."""
    return InTurn(_sweeps(roster, reverse=False))


def cyclic_reverse(roster: Roster) -> Policy:
    """The cyclic list forwards, then backwards, then forwards; every round starts forwards."""
    return InTurn(_sweeps(roster, reverse=True))


def random_job(roster: Roster) -> Policy:
    """Before each burst, any client that still has a job, all alike (the `random` of Hydra's released code)."""

    def turns() -> Iterator[int]:
        unfinished = [client for client in roster.clients if roster.left[client]]
        while unfinished:
            chosen = int(roster.rng.integers(len(unfinished)))
            yield from roster.turns_of(unfinished[chosen])
            if not roster.left[unfinished[chosen]]:
                del unfinished[chosen]

    return InTurn(turns())


def random_sweep(roster: Roster) -> Policy:
    """A new permutation for every sweep, each client once per sweep."""

    def turns() -> Iterator[int]:
        while unfinished := [client for client in roster.clients if roster.left[client]]:
            for client in roster.rng.permutation(unfinished):
                yield from roster.turns_of(int(client))

    return InTurn(turns())


def random_client(roster: Roster) -> Policy:
    """One new permutation per round; with burst `all`, its usual one, a client's jobs run in a row (Thapa's code)."""
    roster.clients = [int(client) for client in roster.rng.permutation(roster.clients)]
    return InTurn(_sweeps(roster, reverse=False))


def _sweeps(roster: Roster, reverse: bool) -> Iterator[int]:
    """The generator of METHODS.md section 1: a deque of clients, visited from the front (or, turned, the back)."""
    queue = deque(roster.clients)
    forwards, visits = True, 0
    while queue:
        client = queue.popleft() if forwards else queue.pop()
        yield from roster.turns_of(client)
        if roster.left[client]:
            (queue.append if forwards else queue.appendleft)(client)
        visits += 1
        if reverse and visits % len(roster.clients) == 0:
            forwards = not forwards


ORDERS: dict[str, Order] = {
    "fcfs": fcfs,
    "random_job": random_job,
    "random_sweep": random_sweep,
    "random_client": random_client,
    "cyclic": cyclic,
    "cyclic_reverse": cyclic_reverse,
}


def usual_burst(name: str) -> float:
    """The burst that an order has unless the scenario says otherwise."""
    return float("inf") if name == "random_client" else 1


def check_burst(name: str, burst: float) -> None:
    """Arrival order serves job by job; a burst would make it another order."""
    if name == "fcfs" and burst != 1:
        raise ScenarioError("fcfs serves one job at a time", key="server.burst", found=burst, allowed=[1])
