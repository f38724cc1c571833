"""Queue of the server, and its work by label and time, from recorded jobs."""

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
    started_s, ended_s = jobs["started_s"].to_numpy(dtype=float), jobs["ended_s"].to_numpy(dtype=float)
    first = np.searchsorted(edges_s, started_s, side="right") - 1
    pieces = np.maximum(np.searchsorted(edges_s, ended_s), first + 1) - first
    job = np.repeat(np.arange(len(jobs)), pieces)  # a row for each job and each stretch in which it is served
    stretch = np.arange(len(job)) - np.repeat(pieces.cumsum() - pieces - first, pieces)
    job, stretch = (of[(stretch >= 0) & (stretch < len(edges_s) - 1)] for of in (job, stretch))
    within_s = np.minimum(ended_s[job], edges_s[stretch + 1]) - np.maximum(started_s[job], edges_s[stretch])
    lasts_s = (ended_s - started_s)[job]
    part = np.divide(within_s, lasts_s, out=np.ones(len(job)), where=lasts_s > 0)
    macs = part * jobs["macs"].to_numpy(dtype=float)[job]
    work = [
        np.bincount(stretch, macs * share.loc[jobs["client"]].to_numpy()[job], len(edges_s) - 1)
        for _, share in shares.items()
    ]
    return pd.DataFrame(work, index=samples.columns)
