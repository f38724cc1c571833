"""How well a measured run agrees with a simulated one: rounds, operations, waiting, and the order of service."""

import numpy as np
import pandas as pd

from sfl_sim.store import places

FIRST = 2
"""The first round that counts: in the one before, processes may still have been loading code."""


def rounds_beside(measured: pd.DataFrame, simulated: pd.DataFrame) -> pd.DataFrame:
    """Lay rounds side by side: round, measured_s, simulated_s, ratio.

    Args:
        measured, simulated: rows of `rounds` of one trial each.
    """
    both = [
        (rows["ended_s"] - rows["started_s"]).set_axis(rows["round"]).rename(name)
        for rows, name in ((measured, "measured_s"), (simulated, "simulated_s"))
    ]
    beside = pd.concat(both, axis=1, join="inner")
    return beside.assign(ratio=beside["measured_s"] / beside["simulated_s"]).reset_index()


def spread(seconds: pd.Series) -> float:
    """Give the standard deviation of rounds over their mean; NaN for a single one."""
    return float(seconds.std(ddof=1) / seconds.mean())


def operations_beside(measured: pd.DataFrame, simulated: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Compare what operations take on average: the columns `by`, n, measured_s, simulated_s, ratio, and their waiting.

    Args:
        measured, simulated: rows of `ops` of one trial each.
        by: columns whose values tell groups apart; a group that only one of both has is left out.
    """
    means = []
    for rows, name in ((measured, "measured"), (simulated, "simulated")):
        spans = rows.assign(
            **{
                f"{name}_s": rows["ended_s"] - rows["started_s"],
                f"{name}_waited_s": rows["started_s"] - rows["requested_s"],
            }
        )
        means.append(spans.groupby(by, observed=True)[[f"{name}_s", f"{name}_waited_s"]].mean())
    beside = pd.concat(means, axis=1, join="inner")
    n = measured.groupby(by, observed=True).size().rename("n")
    ratio = beside["measured_s"] / beside["simulated_s"].where(beside["simulated_s"] > 0)
    return beside.assign(ratio=ratio).join(n).reset_index()


def same_places(measured: pd.DataFrame, simulated: pd.DataFrame) -> pd.DataFrame:
    """Count how far the server serves clients in the same sequence: round, jobs, share of equal places.

    Rounds with other numbers of jobs are compared up to the end of the shorter one.
    """
    turns = [_turns(rows) for rows in (measured, simulated)]
    found = []
    for number in sorted(turns[0].keys() & turns[1].keys()):
        one, other = (of[number] for of in turns)
        n = min(len(one), len(other))
        found.append((number, max(len(one), len(other)), float(np.mean(one[:n] == other[:n])) if n else np.nan))
    return pd.DataFrame(found, columns=["round", "jobs", "share"])


def _turns(ops: pd.DataFrame) -> dict[int, np.ndarray]:
    jobs = ops[places.at(ops["node"], places.SERVER) & (ops["client"] >= 0) & (ops["macs"] > 0)]
    by_round = jobs.sort_values("started_s", kind="stable").groupby("round")["client"]
    return {number: clients.to_numpy() for number, clients in by_round}  # type: ignore[misc]
