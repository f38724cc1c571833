"""Metrics of early exits: accuracy, share of offloaded samples and costs, from recorded answers.

The table of answers has one row per sample of each client's test set: variant, seed, client, label, seen (True if the
client was trained on samples of the label), entropy in nats of the output of the device's exit head, device_correct and
server_correct. A device answers if the entropy is below its threshold; else it offloads the sample to the server
(docs/methods/exit_metrics.md).
"""

import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

KEY = ["variant", "seed", "client"]
HEADLINE = ["hybrid_accuracy", "device_accuracy", "server_accuracy", "offload_probability"]
THRESHOLDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 1.6, 2.3)
MANY_LABELS, MORE_THRESHOLDS = 100, (3.0, 3.8, 4.6)
"""Number of labels from which on more thresholds are used: entropies reach ln 100 = 4.6, beyond the paper's 2.3."""
RHO_STEPS = 5
LINK_RATE, SERVER_POWER = 1.0, 100.0
"""Values of BW and P_S in HARMONY's Eq. (12)."""


def thresholds(n_labels: int) -> tuple[float, ...]:
    """Return the oracle's grid of thresholds, in nats (docs/methods/exit_metrics.md#oracle-thresholds)."""
    return THRESHOLDS + (MORE_THRESHOLDS if n_labels >= MANY_LABELS else ())


def at_rho(answers: pd.DataFrame, rho: float) -> pd.DataFrame:
    """Select the answers to the test sets that `data.testsets.rho_ood` makes with this `rho`.

    Args:
        answers: answers to test sets of that kind made with a `rho` at least as large, in the order of these sets.
            Every label must occur with some client of the variant, so that unseen labels can be counted.
        rho: samples of unseen labels per sample of the client's own labels.
    """
    client, clients = _clients(answers)
    label, seen = answers["label"], answers["seen"].to_numpy()
    n_labels = (
        label.groupby(answers["variant"], observed=True).nunique()[clients.get_level_values("variant")].to_numpy()
    )
    n_own = np.bincount(client[seen], minlength=len(clients))
    n_unseen = n_labels - label[seen].groupby(client[seen]).nunique().reindex(range(len(clients)), fill_value=0)
    each = [int(Decimal(str(rho)) * n // max(1, u)) for n, u in zip(n_own.tolist(), n_unseen.tolist(), strict=True)]
    rank = label.groupby([client, label], sort=False).cumcount().to_numpy()
    kept: NDArray[np.bool_] = seen | (rank < np.array(each)[client])
    return answers[kept]


def hybrid(answers: pd.DataFrame, threshold: float | pd.Series) -> pd.DataFrame:
    """Compute what device and server together achieve for each client.

    Args:
        answers: the table of answers.
        threshold: threshold in nats, one for all clients, or one for each (variant, seed, client).

    Returns:
        A row per (variant, seed, client): accuracy, accuracy_seen and accuracy_unseen (on labels that the client was
        or was not trained on; NaN without such samples), offload_probability, samples.

    Raises KeyError if a client has no threshold.
    """
    return _outcome(answers, *_clients(answers), threshold)


def over_clients(outcome: pd.DataFrame) -> pd.DataFrame:
    """Average the result of `hybrid` over clients, by variant and seed, as the paper reports it."""
    return outcome.groupby(level=["variant", "seed"], sort=False).mean()


def sweep(answers: pd.DataFrame, grid: Iterable[float]) -> pd.DataFrame:
    """Apply `hybrid` with each threshold of `grid`, which becomes the innermost level of the index."""
    clients = _clients(answers)
    swept = {e: _outcome(answers, *clients, e) for e in grid}
    return pd.concat(swept, names=["threshold"]).reorder_levels([*KEY, "threshold"])


def oracle(answers: pd.DataFrame, grid: Iterable[float]) -> pd.Series:
    """Choose for each client the threshold with the highest accuracy on its own test set.

    Of several the largest is chosen, which offloads least (docs/methods/exit_metrics.md#oracle-thresholds). This is an
    upper bound for all rules with one threshold per client from this grid, since it uses the labels of the test set.
    """
    accuracy = sweep(answers, sorted(grid, reverse=True))["accuracy"].unstack("threshold", sort=False)
    return accuracy.idxmax(axis=1).rename("threshold")  # the first of several


def trade_off(answers: pd.DataFrame, grid: Iterable[float]) -> pd.DataFrame:
    """Average the results of one threshold for all clients, by variant, seed and threshold."""
    return sweep(answers, grid).groupby(level=["variant", "seed", "threshold"]).mean()


def achieved(answers: pd.DataFrame, n_labels: int) -> pd.DataFrame:
    """Compute what each run achieves: means over clients, by variant and seed.

    Args:
        answers: the table of answers.
        n_labels: number of labels of the data set, of which test sets may hold fewer.

    Returns:
        device_accuracy and server_accuracy, each for answering all that it can (NaN if it can answer nothing); and
        with the oracle's thresholds offload_probability, hybrid_accuracy, hybrid_seen and hybrid_unseen: on labels
        that the client was and was not trained on.
    """
    device, server = (over_clients(hybrid(answers, threshold)) for threshold in (math.inf, 0.0))
    best = over_clients(hybrid(answers, oracle(answers, thresholds(n_labels))))
    return pd.DataFrame(
        {
            "device_accuracy": device["accuracy"].where(device["offload_probability"] < 1),
            "server_accuracy": server["accuracy"].where(server["offload_probability"] > 0),
            "offload_probability": best["offload_probability"],
            "hybrid_accuracy": best["accuracy"],
            "hybrid_seen": best["accuracy_seen"],
            "hybrid_unseen": best["accuracy_unseen"],
        }
    )


def achieved_by_rho(answers: pd.DataFrame, rho: float, n_labels: int) -> pd.DataFrame:
    """Compute `achieved` on test sets with fewer samples of unseen labels, in `RHO_STEPS` steps from 0 to `rho`.

    Args:
        answers: the table of answers, to test sets made with `rho` (see `at_rho`).

    Returns:
        As `achieved`, with the further column rho; no rows for `rho` NaN, of test sets of another kind.
    """
    steps = np.linspace(0, rho, RHO_STEPS).round(9).tolist() if rho > 0 else []
    found = [achieved(at_rho(answers, step), n_labels).assign(rho=step) for step in steps]
    return pd.concat(found or [achieved(answers, n_labels).head(0).assign(rho=0.0)])


def headline(answers: pd.DataFrame, n_labels: int) -> dict[str, float | None]:
    """Compute the figures `HEADLINE` of one run (a variant with a seed) after a round; None if no part can answer."""
    found = achieved(answers, n_labels).iloc[0].dropna().to_dict()
    return {key: found.get(key) for key in HEADLINE}


def power(front_parameters: ArrayLike) -> NDArray[np.float64]:
    """Compute P_C (N,) of HARMONY's Eq. (12) in proportion to the parameters |phi| (N,) of part-1; the largest is 1.

    See docs/methods/exit_metrics.md#latency-of-eq-12.
    """
    size = np.asarray(front_parameters, dtype=float)
    return np.asarray(size / size.max())


def latency_eq12(
    samples: ArrayLike,
    device_parameters: ArrayLike,
    power: ArrayLike,
    offload_probability: ArrayLike,
    feature_size: ArrayLike,
    server_parameters: ArrayLike,
) -> NDArray[np.float64]:
    """Compute HARMONY's Eq. (12), a latency in units of its own: no queues, BW = 1 and P_S = 100.

    Each argument is a number or (N,).

    Args:
        samples: |D_test|.
        device_parameters: |phi| + |h|.
        power: P_C.
        offload_probability: Pr(Tx).
        feature_size: dim_cut, which the paper counts in channels at the cut, although elements would be more exact.
        server_parameters: |theta|, as far as it is executed for that client.
    """
    offloaded = np.asarray(feature_size) / LINK_RATE + np.asarray(server_parameters) / SERVER_POWER
    on_device = np.asarray(device_parameters) / np.asarray(power)
    return np.asarray(np.asarray(samples) * (on_device + np.asarray(offload_probability) * offloaded), dtype=float)


def _clients(answers: pd.DataFrame) -> tuple[NDArray[np.integer[Any]], pd.MultiIndex]:
    """Number the clients: the number of each row's client, and their keys by these numbers."""
    number = answers.groupby(KEY, sort=False, observed=True).ngroup().to_numpy()
    _, first = np.unique(number, return_index=True)
    return number, pd.MultiIndex.from_frame(answers[KEY].iloc[first])


def _outcome(
    answers: pd.DataFrame, client: NDArray[np.integer[Any]], clients: pd.MultiIndex, threshold: float | pd.Series
) -> pd.DataFrame:
    limit = threshold.loc[clients].to_numpy()[client] if isinstance(threshold, pd.Series) else threshold
    offloaded = ~(answers["entropy"].to_numpy(float) < limit)
    correct = np.where(offloaded, answers["server_correct"], answers["device_correct"])
    seen = answers["seen"].to_numpy()
    found = pd.DataFrame(
        {
            "accuracy": correct,
            "accuracy_seen": np.where(seen, correct, np.nan),
            "accuracy_unseen": np.where(seen, np.nan, correct),
            "offload_probability": offloaded,
        }
    )
    found = found.groupby(client).mean().assign(samples=np.bincount(client))
    return found.set_axis(clients)
