"""Latency of a served fleet's requests by part, and the load from which on the fleet falls behind."""

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sfl_sim.metrics.exit_metrics import latency_eq12, power
from sfl_sim.metrics.scores import finite_or_none
from sfl_sim.store import places
from sfl_sim.store.places import DEVICE, DOWNLINK, SERVER, UPLINK

PARTS = ("device", "uplink", "queue", "server", "downlink")
"""Parts of a request's latency. Waiting for the device or a link counts as that device or link; `queue` is waiting at
the server, for a worker or for a batch to fill."""
QUANTILES = {"p50_s": 0.50, "p95_s": 0.95, "p99_s": 0.99}
TAIL = (0.94, 0.96)
"""Range of the requests around p95, by relative rank of their latency."""
BATCHES = 20
SURE, STRAIGHT, MAX_GROWTH = 3, 0.6, 0.15
"""Thresholds for growth of the number of requests in the system: in standard deviations of chance, as a share of the
growth before, and as a share of the arrivals."""


class Saturation(NamedTuple):
    """Offered rates between which a fleet stops keeping up: the highest one kept up with (0 if none), and the next."""

    kept_up_per_s: float
    fell_behind_per_s: float


def request_rows(ops: NDArray[np.void]) -> pd.DataFrame:
    """Collect the operations of each request in one row: its client, and the seconds of each part.

    Args:
        ops: all operations of one serving (`OP_DTYPE`, in any order), with the number of the request as `step`: from 0,
            without gaps. A request is computed on its client's device, and if offloaded sent up, computed at the server
            and sent down, one after another.

    Returns:
        request, client, arrived_s, ended_s, offloaded, and a column `<part>_s` for each of `PARTS`; these add up to the
        latency, ended_s - arrived_s.
    """
    node = ops["node"]
    device, uplink, server, downlink = (ops[places.at(node, one)] for one in (DEVICE, UPLINK, SERVER, DOWNLINK))
    n = len(device)
    seconds = {part: np.zeros(n) for part in PARTS}
    arrived_s, ended_s, client = np.zeros(n), np.zeros(n), np.zeros(n, np.int64)
    client[device["step"]], arrived_s[device["step"]] = device["client"], device["requested_s"]
    ended_s[device["step"]] = device["ended_s"]
    ended_s[downlink["step"]] = downlink["ended_s"]
    for part, rows in (("device", device), ("uplink", uplink), ("downlink", downlink)):
        seconds[part][rows["step"]] = rows["ended_s"] - rows["requested_s"]
    seconds["queue"][server["step"]] = server["started_s"] - server["requested_s"]
    seconds["server"][server["step"]] = server["ended_s"] - server["started_s"]
    offloaded = np.zeros(n, bool)
    offloaded[server["step"]] = True
    found = {"request": np.arange(n), "client": client, "arrived_s": arrived_s, "ended_s": ended_s}
    return pd.DataFrame(found | {"offloaded": offloaded} | {f"{part}_s": seconds[part] for part in PARTS})


def summary(requests: pd.DataFrame, fleet: pd.DataFrame, warm_up: float, workers: int | None = None) -> dict[str, Any]:
    """Summarise one serving for `serving.json`; None for unknown values.

    `latency_eq12` is HARMONY's Eq. (12) of these requests per sample, in its own units. Rates are measured from the
    first counted arrival to the last.

    Args:
        requests: result of `request_rows` for one variant and seed, in order of arrival, and `correct` (null in
            timing-only runs).
        fleet: its clients: client, front_parameters, device_parameters, feature_channels, server_parameters, group.
        warm_up: share of the requests, the first ones, that do not count.
        workers: workers of the server; None if it serves in batches, whose utilisation is not known from requests.
    """
    counted = _counted(requests, warm_up)
    found: dict[str, Any] = {"counted": len(counted), **_latencies(counted)}
    latency_s = (counted["ended_s"] - counted["arrived_s"]).to_numpy()
    ranked = np.argsort(latency_s, kind="stable")
    tail = ranked[int(TAIL[0] * len(ranked)) : max(math.ceil(TAIL[1] * len(ranked)), 1)]
    found["latency_error_s"] = finite_or_none(confidence(latency_s))
    found["tail_parts_s"] = _parts(counted.iloc[tail])
    found["arrivals_per_s"], found["throughput_per_s"] = map(finite_or_none, _rates(requests, warm_up))
    found["utilisation"] = None if workers is None else finite_or_none(_busy_s(requests, warm_up) / workers)
    found["latency_eq12"] = finite_or_none(_mean_eq12(counted, fleet))
    found["falls_behind"] = falls_behind(requests, warm_up)
    group = counted["client"].map(fleet.set_index("client")["group"])
    found["groups"] = {str(name): {"requests": len(own), **_latencies(own)} for name, own in counted.groupby(group)}
    return found


def confidence(values: ArrayLike) -> float:
    """Compute half the width of the 95 % confidence interval of the mean of a correlated series, by batch means.

    Means of long stretches are nearly independent. NaN for fewer than two values per batch.
    """
    series = np.asarray(values, dtype=float)
    if len(series) < 2 * BATCHES:
        return math.nan
    from scipy.special import stdtrit  # scipy takes a while to import

    spread = _batch_means(series).std(ddof=1)
    return float(stdtrit(BATCHES - 1, 0.975) * spread / math.sqrt(BATCHES))


def falls_behind(requests: pd.DataFrame, warm_up: float) -> bool | None:
    """Return True if more requests arrive than this fleet can answer in the long run; None if that is not known.

    The number of requests in the system at each counted arrival is averaged over 20 equal stretches. The fleet falls
    behind if the number grows over the last ten by more than chance, as of a random walk with such steps, and as fast
    as over the first ten: queues that only fill up at the start, above all of many clients, grow more and more slowly
    (at a load of 1 with the square root of time). It keeps up if chance and growth together are small compared with
    the arrivals.
    """
    counted = _counted(requests, warm_up)
    begin_s, end_s = _window_s(requests, warm_up)
    if len(counted) < 2 * BATCHES or begin_s == end_s:
        return None
    ended = np.searchsorted(np.sort(requests["ended_s"]), counted["arrived_s"], side="right")
    in_system = np.arange(len(requests) - len(counted), len(requests), dtype=np.float64) - ended
    means = _batch_means(in_system)
    half = BATCHES // 2
    earlier, growth = (means[half - 1] - means[0]) * half / (half - 1), means[-1] - means[half - 1]
    chance = np.diff(means[half - 1 :]).std(ddof=1) * math.sqrt(half)
    if growth > SURE * chance:
        return True if growth > STRAIGHT * earlier else None
    return False if growth + 2 * chance < MAX_GROWTH * len(counted) / 2 else None


def saturation(cells: pd.DataFrame) -> Saturation | None:
    """Find the offered rates between which a fleet stops keeping up; None if it keeps up with the highest known one.

    Args:
        cells: rate_per_s and falls_behind, a row for each rate and seed. A fleet falls behind at a rate if it does so
            with at least half of the seeds; rates below one that it keeps up with, and null values, do not count.
    """
    behind = cells.dropna(subset="falls_behind").groupby("rate_per_s")["falls_behind"].mean() >= 0.5
    rates = behind.index.to_numpy(float)
    kept_up = np.flatnonzero(~behind)
    first = kept_up[-1] + 1 if len(kept_up) else 0
    if first == len(rates):
        return None
    return Saturation(float(rates[first - 1]) if first else 0.0, float(rates[first]))


def _counted(requests: pd.DataFrame, warm_up: float) -> pd.DataFrame:
    return requests.iloc[int(warm_up * len(requests)) :]


def _batch_means(series: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([part.mean() for part in np.array_split(series, BATCHES)])


def _latencies(requests: pd.DataFrame) -> dict[str, Any]:
    """Summarise latencies and answers, of all requests or of a group."""
    latency_s = requests["ended_s"] - requests["arrived_s"]
    quantiles_s = np.quantile(latency_s, list(QUANTILES.values()))
    correct = requests["correct"].dropna()
    return {
        "latency_s": float(latency_s.mean()),
        **dict(zip(QUANTILES, quantiles_s.tolist(), strict=True)),
        "parts_s": _parts(requests),
        "offload_probability": float(requests["offloaded"].mean()),
        "accuracy": float(correct.astype(float).mean()) if len(correct) else None,
    }


def _parts(requests: pd.DataFrame) -> dict[str, float]:
    return {part: float(requests[f"{part}_s"].mean()) for part in PARTS}


def _window_s(requests: pd.DataFrame, warm_up: float) -> tuple[float, float]:
    arrived_s = _counted(requests, warm_up)["arrived_s"]
    return float(arrived_s.iloc[0]), float(arrived_s.iloc[-1])


def _rates(requests: pd.DataFrame, warm_up: float) -> tuple[float, float]:
    """Compute arrivals and answers per second while counted requests arrive; NaN if there is no such time."""
    begin_s, end_s = _window_s(requests, warm_up)
    if begin_s == end_s:
        return math.nan, math.nan
    arrivals, answers = (requests[name].between(begin_s, end_s, "right").sum() for name in ("arrived_s", "ended_s"))
    return float(arrivals / (end_s - begin_s)), float(answers / (end_s - begin_s))


def _busy_s(requests: pd.DataFrame, warm_up: float) -> float:
    """Average the number of busy server workers while counted requests arrive."""
    begin_s, end_s = _window_s(requests, warm_up)
    ended_s = requests["ended_s"] - requests["downlink_s"]
    within_s = ended_s.clip(upper=end_s) - (ended_s - requests["server_s"]).clip(lower=begin_s)
    return (
        float(within_s.clip(lower=0)[requests["offloaded"]].sum() / (end_s - begin_s)) if end_s > begin_s else math.nan
    )


def _mean_eq12(requests: pd.DataFrame, fleet: pd.DataFrame) -> float:
    """Compute HARMONY's Eq. (12) per sample, with each client's number of these requests as its |D_test|."""
    by_client = requests.groupby("client")["offloaded"].agg(["size", "mean"])
    clients = fleet.assign(power=power(fleet["front_parameters"])).set_index("client").loc[by_client.index]
    total = latency_eq12(
        by_client["size"], clients["device_parameters"], clients["power"], by_client["mean"],
        clients["feature_channels"], clients["server_parameters"],
    )  # fmt: skip
    return float(total.sum() / len(requests))
