"""Availability of clients, drawn from a profile of logged intervals or of hourly shares."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from sfl_sim.scenario.optional_sections import Availability
from sfl_sim.system.presence import Presence
from sfl_sim.system.profiles import FloatArray, ProfileTable, find, read_table

KEY = "clients.availability.profile"
HOUR_S, DAY_S = 3600.0, 86400.0
MAX_HOURS = 31 * 24
SHORTEST_S, LONGEST_S = 0.001, 1e9
"""Range of interval lengths and times in which `Presence` loses no interval to rounding, and its sums are exact."""

PresenceLog = tuple[list[tuple[float, float]], float]
"""Intervals [start_s, end_s) of one client, and their period."""


def draw_presence(n_clients: int, rng: np.random.Generator, availability: Availability | None) -> list[Presence] | None:
    """Draw the presence of each client in a run that begins at some hour of the day; None without a profile.

    From logged intervals each client draws one log, without replacement while there are enough; the k-th client with
    the same log is k - 1 days ahead in it. From hourly shares each client draws its own intervals (`_logs_of_shares`).
    A client's draws do not depend on the number of clients.

    Raises ScenarioError for an unusable profile.
    """
    if availability is None or availability.profile is None:
        return None
    path = find("availability", availability.profile, KEY)
    begin_s = availability.begins_at_h * HOUR_S
    if "share" in read_table(path, [], KEY).columns:
        shares = _read_shares(read_table(path, ["hour", "share"], KEY))
        draws = rng.random((n_clients, 2, shares.size))
        return [Presence(*log, begin_s) for log in _logs_of_shares(shares, draws)]
    logs = _read_logs(read_table(path, ["client", "start_s", "end_s"], KEY))
    drawn: list[Presence] = []
    while len(drawn) < n_clients:
        rows = rng.permutation(len(logs))[: n_clients - len(drawn)]
        deck: list[PresenceLog] = [logs[row] for row in rows.tolist()]
        drawn += [Presence(*log, begin_s) for log in deck]
        begin_s += DAY_S
    return drawn


def n_logs(availability: Availability | None) -> int | None:
    """Return the number of clients whose intervals a profile has logged; None for other profiles."""
    if availability is None or availability.profile is None:
        return None
    logged = read_table(find("availability", availability.profile, KEY), [], KEY).columns
    return None if "share" in logged else len(set(logged["client"]))


def _read_logs(table: ProfileTable) -> list[PresenceLog]:
    """Read the log of each client, in order of first rows; without a column period_s the period is the last end."""
    starts_s, ends_s = table.numbers("start_s"), table.numbers("end_s")
    table.require("start_s", starts_s >= 0, "a number, 0 or above")
    table.require("end_s", ends_s >= starts_s + SHORTEST_S, f"at least {SHORTEST_S} s after start_s")
    table.require("end_s", ends_s <= LONGEST_S, f"at most {LONGEST_S:.0f} s")
    periods_s = table.numbers("period_s") if "period_s" in table.columns else np.full(ends_s.shape, ends_s.max())
    table.require("period_s", ends_s <= periods_s, "at least end_s; split an interval where the period ends")
    table.require("period_s", periods_s <= LONGEST_S, f"at most {LONGEST_S:.0f} s")
    numbers: dict[str, int] = {}
    clients = np.array([numbers.setdefault(name, len(numbers)) for name in table.columns["client"]])
    order = np.lexsort((starts_s, clients))
    later, earlier = order[1:], order[:-1]
    goes_on = clients[later] == clients[earlier]
    overlaps, differs = np.zeros((2, order.size), dtype=bool)
    overlaps[later] = goes_on & (starts_s[later] < ends_s[earlier])
    differs[later] = goes_on & (periods_s[later] != periods_s[earlier])
    table.require("start_s", ~overlaps, "no start before the end of another interval of the client")
    table.require("period_s", ~differs, "the same in all rows of a client")
    firsts = np.flatnonzero(np.r_[True, ~goes_on])
    intervals = np.split(np.column_stack([starts_s, ends_s])[order], firsts[1:])
    return [
        (own.tolist(), period_s) for own, period_s in zip(intervals, periods_s[order[firsts]].tolist(), strict=True)
    ]


def _read_shares(table: ProfileTable) -> FloatArray:
    """Read the share (H,) of clients that are present at each hour of the period."""
    hours, shares = table.numbers("hour"), table.numbers("share")
    table.require("hour", hours == np.arange(hours.size), "0, 1, 2, ... from row to row")
    table.require("hour", hours < MAX_HOURS, f"below {MAX_HOURS}")
    table.require("share", (shares >= 0) & (shares <= 1), "0 to 1")
    table.require("share", np.full(shares.shape, shares.any()), "a share above 0 in some row")
    return shares


def _logs_of_shares(shares: FloatArray, draws: FloatArray) -> Iterator[PresenceLog]:
    """Make a log for each client, by which it is present at hour h with probability `shares[h]` (H,); period H hours.

    From one hour to the next clients change as seldom as the shares allow: where the share rises from p to q, present
    clients stay, and absent ones come with probability (q - p) / (1 - p); where it falls, absent clients stay away, and
    present ones leave with probability (p - q) / p. They change at an instant between the two hours, drawn uniformly.

    Args:
        shares: (H,) in [0, 1].
        draws: (clients, 2, H), uniform in [0, 1), for the hour that ends at h: whether the client changes, and when.
    """
    n_hours = shares.size
    whether, when = draws[:, 0], draws[:, 1]
    there = np.empty(whether.shape, dtype=bool)
    there[:, 0] = whether[:, 0] < shares[0]
    for hour, (before, now) in enumerate(pairwise(shares.tolist()), start=1):
        come = (now - before) / (1 - before) if now > before else 0.0
        go = (before - now) / before if now < before else 0.0
        was = there[:, hour - 1]
        there[:, hour] = was ^ (whether[:, hour] < np.where(was, go, come))
    changes_s = HOUR_S * ((np.arange(n_hours) - 1) % n_hours + when)
    for is_there, was_there, at_s in zip(there, np.roll(there, 1, axis=1), changes_s, strict=True):
        begins_s = np.sort(at_s[is_there & ~was_there])
        ends_s = np.sort(at_s[~is_there & was_there])
        if not begins_s.size:
            yield ([(0.0, n_hours * HOUR_S)] if is_there[0] else []), n_hours * HOUR_S
            continue
        if ends_s[0] < begins_s[0]:  # present when the period begins
            ends_s = np.append(ends_s[1:], ends_s[0] + n_hours * HOUR_S)
        yield list(zip(begins_s.tolist(), ends_s.tolist(), strict=True)), n_hours * HOUR_S
