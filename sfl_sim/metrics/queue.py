"""Queue of the server, and its work by label and time, from recorded jobs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def queue_length(jobs: pd.DataFrame) -> pd.DataFrame:
    """Count the jobs that wait for the server and those that it serves, as step functions of time.

    Args:
        jobs: columns requested_s, started_s, ended_s.

    Returns:
        Columns time_s (increasing), waiting, serving: the counts from that time until the next.
    """
    changes = [
        pd.DataFrame({"time_s": jobs["requested_s"], "waiting": 1, "serving": 0}),
        pd.DataFrame({"time_s": jobs["started_s"], "waiting": -1, "serving": 1}),
        pd.DataFrame({"time_s": jobs["ended_s"], "waiting": 0, "serving": -1}),
    ]
    return pd.concat(changes).groupby("time_s").sum().cumsum().reset_index()


def held_idle(queue: pd.DataFrame) -> pd.DataFrame:
    """List the intervals (started_s, ended_s) in which jobs wait while the server serves none.

    The server is then held for a client whose turn it is and whose job has not come.
    """
    spans = pd.DataFrame({"started_s": queue["time_s"], "ended_s": queue["time_s"].shift(-1)})
    return spans[(queue["waiting"] > 0) & (queue["serving"] == 0)].dropna()


def work_by_label(jobs: pd.DataFrame, label_samples: pd.DataFrame, edges_s: NDArray[np.float64]) -> pd.DataFrame:
    """Sum the MACs of training jobs by label and time; with one cut for all clients they are proportional to samples.

    Args:
        jobs: columns client, started_s, ended_s, macs. The work of a job is spread evenly over its service, and over
            labels as its client's samples are, or as those of all given clients if it belongs to none (client -1).
        label_samples: clients x labels, numbers of samples.
        edges_s: N + 1 increasing instants.

    Returns:
        Labels x N, MACs between two instants.
    """
    samples = pd.concat([label_samples, label_samples.sum().rename(-1).to_frame().T])
    shares = samples.div(samples.sum(axis=1).clip(lower=1), axis=0)
    work = np.zeros((len(samples), len(edges_s) - 1))
    for client, own in jobs.sort_values("started_s").groupby("client"):
        times_s = own[["started_s", "ended_s"]].to_numpy().ravel()
        done = np.repeat(np.r_[0.0, own["macs"].cumsum()], 2)[1:-1]
        work[samples.index.get_loc(client)] = np.diff(np.interp(edges_s, times_s, done))
    return pd.DataFrame(shares.to_numpy().T @ work, index=samples.columns)
