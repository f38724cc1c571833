"""Arrivals of requests at clients: Poisson, or from a trace."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfl_sim.system.profiles import read_table

LATEST_S = 1e10
"""Latest time in a trace: three hundred years, up to which a clock of 64-bit floats resolves microseconds."""


class Arrivals(NamedTuple):
    """Requests in the order of their arrival.

    Attributes:
        times_s: (R,) float64, seconds since the start, not decreasing.
        clients: (R,) int64, the client of each request.
    """

    times_s: NDArray[np.float64]
    clients: NDArray[np.int64]


def poisson(rates_per_s: ArrayLike, n_requests: int, rng: np.random.Generator) -> Arrivals:
    """Draw the first `n_requests` of independent Poisson processes, one for each client, with the rates (N,).

    They are drawn as one process with the sum of the rates, whose events go to clients in proportion to their rates.
    """
    rates = np.asarray(rates_per_s, dtype=np.float64)
    times_s = np.cumsum(rng.exponential(1 / rates.sum(), n_requests))
    return Arrivals(times_s, rng.choice(len(rates), n_requests, p=rates / rates.sum()))


def read_trace(path: str | Path, n_clients: int, key: str) -> Arrivals:
    """Read requests from a CSV file with the columns `time_s` and `client` (0, 1, ...), in any order.

    Raises ScenarioError with file and line, and the scenario `key` that names the file.
    """
    table = read_table(Path(path), ["time_s", "client"], key)
    times_s, clients = table.numbers("time_s"), table.numbers("client")
    table.require("time_s", (times_s >= 0) & (times_s <= LATEST_S), f"seconds, 0 to {LATEST_S:g}")
    table.require("client", np.isin(clients, np.arange(n_clients)), f"0 to {n_clients - 1}")
    order = np.argsort(times_s, kind="stable")
    return Arrivals(times_s[order], clients[order].astype(np.int64))
