"""Links of the clients: the mean rate of each direction, its variation over time, and the latency."""

from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.sections import NetworkSection
from sfl_sim.system.links import Links, Pattern
from sfl_sim.system.profiles import FloatArray, available, find, per_client, read_table

KEY = "clients.network"
DIRECTIONS = ("uplink_bps", "downlink_bps")


def draw_links(
    n: int, rng: np.random.Generator, network: NetworkSection, macs_per_s: FloatArray | None = None
) -> tuple[Links, Links, FloatArray]:
    """Give each of n clients an uplink, a downlink, and a latency.

    The mean rate of a direction is the given one (one for all, or one per client), else what the client draws from the
    profile, else its trace's own mean. Around that mean the rate varies as its trace does; without one it is constant.
    Of a folder of traces each client draws one, without replacement while there are enough.

    A client draws one quantile for both directions, because a good radio or contract is good in both: independent draws
    would give too many clients one fast and one slow link. With an `up_down_correlation` below 1, each direction has a
    quantile of its own, and this rank correlation. It also draws one phase, at which both directions start the trace.
    A client's draws depend on neither the section nor n, but with a `compute_correlation`: that is the rank correlation
    of uplinks with the devices' speeds `macs_per_s` (n,), which are ranked among each other.

    Raises ScenarioError for an unusable profile, trace or number.
    """
    quantiles, phases = rng.random((n, 2)).T
    apart, ties, deck = rng.spawn(3)
    if network.compute_correlation and macs_per_s is not None:
        quantiles = correlated(quantiles, _ranked(macs_per_s, ties), network.compute_correlation)
    down = quantiles
    if network.up_down_correlation != 1:
        down = correlated(apart.random(n), quantiles, network.up_down_correlation)
    patterns = {} if network.trace is None else _patterns(network.trace, n, deck)
    mean_bps = {
        direction: np.array([pattern.mean_bps for pattern in of_clients]) for direction, of_clients in patterns.items()
    }
    if network.profile is not None:
        mean_bps |= _draw_rates(network.profile, quantiles, down)
    for direction in DIRECTIONS:
        rates_bps = getattr(network, direction)
        if rates_bps is not None:
            mean_bps[direction] = per_client(rates_bps, n, f"{KEY}.{direction}")
    uplinks, downlinks = (
        _links(network.scale * mean_bps[direction], patterns.get(direction), phases) for direction in DIRECTIONS
    )
    return uplinks, downlinks, per_client(network.latency_s, n, f"{KEY}.latency_s", zero_allowed=True)


def _links(mean_bps: FloatArray, patterns: Sequence[Pattern] | None, phases: FloatArray) -> Links:
    """Give every client a link, which starts at its phase (n,), a fraction of its pattern's period."""
    periods_s = 0.0 if patterns is None else np.array([pattern.period_s for pattern in patterns])
    return Links(mean_bps, patterns, phases * periods_s)


def correlated(uniform: FloatArray, others: FloatArray, rank_correlation: float) -> FloatArray:
    """Give uniform numbers (n,) of this rank correlation (Spearman's) with `others` (n,), by a Gaussian copula.

    Args:
        uniform: independent of `others`; kept where the correlation is 0.
        others: uniform, too.
        rank_correlation: from -1 to 1. The normal scores have the correlation 2 sin(pi/6 rank_correlation).
    """
    from scipy.special import ndtr, ndtri  # scipy takes a while to import

    of_scores = 2 * np.sin(np.pi / 6 * rank_correlation)
    found: FloatArray = ndtr(of_scores * ndtri(others) + np.sqrt(max(0.0, 1 - of_scores**2)) * ndtri(uniform))
    return found


def _ranked(numbers: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Give the ranks of numbers (n,) as quantiles, evenly spread; equal numbers are ranked by lot."""
    order = np.lexsort((rng.random(len(numbers)), numbers))
    ranks = np.empty(len(numbers))
    ranks[order] = (np.arange(len(numbers)) + 0.5) / len(numbers)
    return ranks


def _draw_rates(profile: str, up: FloatArray, down: FloatArray) -> dict[str, FloatArray]:
    """Interpolate the rates at quantiles (n,) by direction: linear between the profile's rows, constant beyond."""
    key = f"{KEY}.profile"
    table = read_table(find("network", profile, key), needed := ["quantile", *DIRECTIONS], key)
    table.require_no_others(needed)
    grid = table.numbers("quantile")
    table.require("quantile", (grid >= 0) & (grid <= 1), "0 to 1")
    table.require("quantile", np.diff(grid, prepend=-1) > 0, "more than in the row before")
    drawn = {}
    for direction, quantiles in zip(DIRECTIONS, (up, down), strict=True):
        rates_bps = table.numbers(direction)
        table.require(direction, rates_bps > 0, "a number above 0")
        table.require(direction, np.diff(rates_bps, prepend=0) >= 0, "at least the rate in the row before")
        drawn[direction] = np.interp(quantiles, grid, rates_bps)
    return drawn


def sampled_factor(profile: str, n: int, rng: np.random.Generator) -> float:
    """Draw how wrong the geometric mean of a profile's uplinks may be, of which so many were measured: a bootstrap."""
    evenly = (np.arange(1000) + 0.5) / 1000
    of_all, of_sample = (
        np.log(_draw_rates(profile, each, each)["uplink_bps"]).mean() for each in (evenly, rng.random(n))
    )
    return float(np.exp(of_sample - of_all))


def _patterns(trace: str | Sequence[str], n: int, deck: np.random.Generator) -> dict[str, list[Pattern]]:
    """Give each of n clients the pattern of its trace, by direction.

    Args:
        trace: a trace for all, one for each, or a folder from which each draws one.
    """
    names = trace_names(trace)
    if not isinstance(trace, str) and len(names) != n:
        problem = "a list needs one entry per client"
        raise ScenarioError(problem, key=f"{KEY}.trace", found=len(names), allowed=f"{n} entries")
    if isinstance(trace, str):
        decks = range(-(-n // len(names))) if len(names) > 1 else ()
        dealt = chain.from_iterable(deck.permutation(len(names)).tolist() for _ in decks)
        names = [names[number] for number in islice(dealt, n)] or names * n
    read = {name: _read_trace(name) for name in dict.fromkeys(names)}
    return {direction: [read[name][direction] for name in names] for direction in DIRECTIONS}


def trace_names(trace: str | Sequence[str]) -> list[str]:
    """List the names of a trace, of a list of them, or of the files in a folder; not all need to be there."""
    if not isinstance(trace, str):
        return [*trace]
    if not (folder := Path(trace).expanduser()).is_dir():
        return [trace]
    files = sorted(str(path) for path in folder.glob("*.csv") if not path.name.startswith("."))
    if not files:
        problem = "no trace in this folder"
        raise ScenarioError(problem, key=f"{KEY}.trace", found=trace, allowed="files that end with .csv")
    return files


def scaled_trace(network: NetworkSection) -> ScenarioError | None:
    """Return the note that a trace of the user's own varies around a profile's rates; None if it does not."""
    trace, profile = network.trace, network.profile
    if trace is None or profile is None or trace in available("network/traces"):
        return None
    problem = f"varies around the rates of {profile}; with profile: null it has its own"
    return ScenarioError(problem, key=f"{KEY}.trace", found=trace if isinstance(trace, str) else len(trace))


def _read_trace(trace: str) -> dict[str, Pattern]:
    """Read the patterns of a trace, by direction."""
    key = f"{KEY}.trace"
    table = read_table(find("network/traces", trace, key), needed := ["time_s", *DIRECTIONS], key)
    table.require_no_others(needed)
    times_s = table.numbers("time_s")
    table.require("time_s", times_s[:1] == 0, "0 in the first row")
    table.require("time_s", np.diff(times_s, prepend=-1) > 0, "later than in the row before")
    table.require("time_s", np.full(times_s.shape, times_s.size > 1), "another row below, which closes the trace")
    closing = times_s == times_s[-1]
    patterns = {}
    for direction in DIRECTIONS:
        rates_bps = table.numbers(direction)
        as_first = rates_bps == rates_bps[0]
        table.require(direction, rates_bps >= 0, "a number, 0 or above")
        table.require(direction, as_first | ~closing, "the first row's rate again, where the trace closes")
        table.require(direction, np.full(rates_bps.shape, rates_bps.any()), "a rate above 0 in some row")
        patterns[direction] = Pattern(times_s.tolist(), rates_bps[:-1].tolist())
    return patterns
