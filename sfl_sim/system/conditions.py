"""Conditions under which equal work takes a device unequally long: random jitter, and throttling by heat."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, log1p, sqrt

import numpy as np

from sfl_sim.rng import stream
from sfl_sim.scenario.sections import Compute


@dataclass(frozen=True, slots=True)
class Throttling:
    """Throttling of a hot device, as one thermal mass that computing heats and the surroundings cool.

    Its heat x lies between 0, cold, as every device is at first, and 1, the limit of computing without a break:

        dx/dt = (1 - x) / warm_up_s  while it computes,    dx/dt = -x / cool_down_s  while it rests
        speed = 1 - (1 - floor) * x

    Attributes:
        floor: speed of a hot device, as a share of a cold one's. Phones differ too much for a default.
        warm_up_s, cool_down_s: time constants; minutes, since phones heat up for some ten of them (Kang et al., "Fire
            in Your Hands", MobiCom 2019).
    """

    floor: float
    warm_up_s: float
    cool_down_s: float

    def rested(self, heat: float, rest_s: float) -> float:
        """Return the heat after a rest."""
        return heat * exp(-rest_s / self.cool_down_s)

    def worked(self, heat: float, busy_s: float) -> float:
        """Return the heat after computing."""
        return 1 - (1 - heat) * exp(-busy_s / self.warm_up_s)

    def seconds(self, heat: float, cold_s: float) -> float:
        """Return how long a device of this heat takes for work that takes a cold one `cold_s`.

        The result is the t at which the integral of the speed,

            done(t) = floor * t + gain_s * (1 - exp(-t / warm_up_s)),    gain_s = (1 - floor) * (1 - heat) * warm_up_s,

        reaches `cold_s`. Since the speed only falls, Newton's steps from below stay below, and converge.
        """
        gain_s = (1 - self.floor) * (1 - heat) * self.warm_up_s
        busy_s, step_s = 0.0, cold_s
        while step_s > 1e-14 * busy_s:
            busy_s += step_s
            left_s = cold_s - self.floor * busy_s + gain_s * expm1(-busy_s / self.warm_up_s)
            step_s = left_s / (self.floor + gain_s / self.warm_up_s * exp(-busy_s / self.warm_up_s))
        return busy_s


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions under which the devices of a fleet compute.

    Attributes:
        jitter: coefficient of variation of the factor, lognormal with mean 1, on the time of each operation.
        throttling: throttling of the devices; None if heat does not slow them down.
    """

    jitter: float = 0.0
    throttling: Throttling | None = None

    def begin(self, n_clients: int, seed: int) -> Devices:
        """Make the clients' devices, cold, for a run with `seed`."""
        return Devices(self, n_clients, seed)


class Devices:
    """State of the devices of a run: the heat of each, and its random stream of jitter."""

    def __init__(self, conditions: Conditions, n_clients: int, seed: int) -> None:
        self._throttling = conditions.throttling
        self._jitter = conditions.jitter
        self._seed = seed
        self._chance: list[np.random.Generator | None] = [None] * n_clients
        self._heat = [0.0] * n_clients
        self._free_s = [0.0] * n_clients

    def seconds(self, client: int, started_s: float, service_s: float) -> float:
        """Return how long an operation takes that would take `service_s` on a cold device without jitter.

        Call it once for every operation of the client, in the order in which its device serves them. An operation that
        is later interrupted or cut short heats the device as if it ran to its end without a break.
        """
        busy_s = service_s * self._factor(client) if self._jitter else service_s
        if self._throttling is not None:
            rest_s = max(0.0, started_s - self._free_s[client])
            heat = self._throttling.rested(self._heat[client], rest_s)
            busy_s = self._throttling.seconds(heat, busy_s)
            self._heat[client] = self._throttling.worked(heat, busy_s)
            self._free_s[client] = started_s + busy_s
        return busy_s

    def _factor(self, client: int) -> float:
        chance = self._chance[client]
        if chance is None:  # most of a large fleet never takes part
            chance = self._chance[client] = stream(self._seed, "jitter", client)
        return mean_one(chance, self._jitter)


def mean_one(rng: np.random.Generator, cv: float) -> float:
    """Draw a lognormal factor with mean 1 and the coefficient of variation `cv`."""
    sigma = sqrt(log1p(cv**2))
    return rng.lognormal(-(sigma**2) / 2, sigma)


def make_conditions(compute: Compute) -> Conditions | None:
    """Make the conditions of a fleet; None without jitter and throttling."""
    section = compute.throttling
    if not compute.jitter and section is None:
        return None
    throttling = None if section is None else Throttling(section.floor, section.warm_up_s, section.cool_down_s)
    return Conditions(compute.jitter, throttling)
