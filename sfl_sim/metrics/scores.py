"""Scores of any goal, forgetting, and the cost of a target accuracy, from recorded rounds (docs/methods/metrics.md).

Each goal has a first score, of which more is better and 1 is perfect, as of an accuracy: it is what targets, early
stopping and pages ask for (docs/howto/losses.md).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sfl_sim.store.reading import matrix

SCORES = ("accuracy", "r2", "mean_average_precision", "mean_iou")
"""Columns of rounds.parquet that hold the first score of a goal; a run has one of them."""
MORE_SCORES = ("mae", "rmse", "f1_macro", "f1_micro", "pixel_accuracy")
"""Columns of further scores."""
VALIDATION = "validation_score"
"""Column of the first score on validation samples, of runs that have any."""
GROUPED = ("worst_clients", "calibration_error", "auroc")
"""Columns of what an accuracy hides: of clients, of confidence, and of two labels at any threshold."""
BINS = 15
"""Bins of confidence of a calibration error."""
LAST_ROUNDS = 5
"""Number of last rounds over which a run's headline figures are medians (docs/methods/metrics.md#over-seeds)."""


def score_of(rounds: pd.DataFrame) -> str:
    """Return the column of the first score that the rounds of a run know; accuracy if they know none."""
    known = (column for column in SCORES if column in rounds and rounds[column].notna().any())
    return next(known, SCORES[0])


def of_numbers(predicted: NDArray[Any], true: NDArray[Any]) -> dict[str, float]:
    """Score numbers (N, K), N of 2 and more, as scikit-learn does: averages over the K of them.

    What a diverged network predicts is infinitely wrong.
    """
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    if not np.isfinite(predicted).all():
        return {"r2": -np.inf, "mae": np.inf, "rmse": np.inf}
    return {
        "r2": float(r2_score(true, predicted)),
        "mae": float(mean_absolute_error(true, predicted)),
        "rmse": float(root_mean_squared_error(true, predicted)),
    }


def of_sets(logits: NDArray[Any], sets: NDArray[Any]) -> dict[str, float]:
    """Score logits (N, L) of sets (N, L) by those labels that occur; a logit above 0 answers that a label is there.

    The mean average precision and the macro F1 are means over labels.
    """
    from sklearn.metrics import average_precision_score, f1_score

    occurs = sets.any(axis=0)
    logits, sets = np.nan_to_num(logits[:, occurs]), sets[:, occurs].astype(int)
    macro, micro = (f1_score(sets, logits > 0, average=over, zero_division=0.0) for over in ("macro", "micro"))
    precision = average_precision_score(sets, logits, average="macro")
    return {"mean_average_precision": float(precision), "f1_macro": float(macro), "f1_micro": float(micro)}


def of_pixels(confusion: NDArray[np.int64]) -> dict[str, float | None]:
    """Score a confusion matrix (L, L) of pixels: intersection over union, as a mean over labels that occur."""
    right, union = confusion.diagonal(), confusion.sum(axis=0) + confusion.sum(axis=1) - confusion.diagonal()
    occurs = confusion.sum(axis=1) > 0
    if not occurs.any():
        return {"mean_iou": None, "pixel_accuracy": None}
    return {
        "mean_iou": float((right[occurs] / union[occurs]).mean()),
        "pixel_accuracy": float(right.sum() / confusion.sum()),
    }


def calibration_error(confidence: NDArray[np.float64], is_right: NDArray[np.bool_]) -> float | None:
    """Compute the expected calibration error of answers (N,) with `BINS` bins of equal width (Guo et al. 2017).

    That is how far the mean confidence of the answers in a bin is from the share that is right, as a mean over answers.
    None if a diverged network has no confidence.
    """
    if not np.isfinite(confidence).all():
        return None
    bins = np.ceil(confidence * BINS).astype(int)
    return float(np.abs(np.bincount(bins, is_right - confidence)).sum() / len(confidence))


def auroc(margins: NDArray[np.float64], is_second: NDArray[np.bool_]) -> float | None:
    """Compute the area under the ROC curve: the share of pairs, one of each label, that the margins (N,) put in order.

    None where a label has no samples, or a diverged network no margins.
    """
    from sklearn.metrics import roc_auc_score

    if is_second.all() or not is_second.any() or not np.isfinite(margins).all():
        return None
    return float(roc_auc_score(is_second, margins))


def by_client(accuracy: ArrayLike, label_samples: ArrayLike) -> NDArray[np.float64]:
    """Compute the accuracy (C,) on test samples with the labels of each client: means of the labels' accuracies (L,).

    Args:
        accuracy: of each label; NaN for labels without test samples, which do not count.
        label_samples: (C, L) training samples by client and label. A client none of whose labels is tested has NaN.
    """
    known = np.nan_to_num(np.asarray(accuracy, dtype=float))
    weights = np.asarray(label_samples, dtype=float) * ~np.isnan(np.asarray(accuracy, dtype=float))
    with np.errstate(invalid="ignore"):
        return np.asarray((weights * known).sum(axis=1) / weights.sum(axis=1))


def worst_decile(values: NDArray[np.float64]) -> float | None:
    """Compute the mean of the lowest tenth of the values that are known, rounded up to whole clients."""
    known = np.sort(values[~np.isnan(values)])
    return float(known[: -(-len(known) // 10)].mean()) if len(known) else None


def performance_gap(accuracy: ArrayLike) -> float:
    """Compute PG = max_k A_k - mean_l A_l of the per-label accuracies (L,) of one round (Hydra, Eq. 2 as intended).

    It is zero exactly if all labels are equal; lower is better. Labels without test samples are NaN and do not count.
    """
    values = np.asarray(accuracy, dtype=float)
    values = values[~np.isnan(values)]
    return float(values.max() - values.mean())


def backward_transfer(history: ArrayLike) -> float | None:
    """Compute BW = mean_l max_{r<R} (A_l^r - A_l^R) of a (rounds, labels) history (Hydra, Eq. 1); lower is better.

    It is signed: negative if the last round is the best of a label. None for a single round.
    """
    values = np.asarray(history, dtype=float)
    if len(values) < 2:
        return None
    values = values[:, ~np.isnan(values).any(axis=0)]
    return float((values[:-1].max(axis=0) - values[-1]).mean())


def label_history(labels: pd.DataFrame) -> pd.DataFrame:
    """Arrange the per-label accuracies of one run as rounds x labels."""
    return labels.pivot(index="round", columns="label", values="accuracy").sort_index()


def label_ends(labels: pd.DataFrame) -> pd.DataFrame:
    """The accuracy in [0, 1] of each label at the end of each run: the median of the run's last rounds.

    Args:
        labels: rows of labels.parquet, of any variants and seeds.

    Returns:
        A row for each variant, seed and tested label (`label`, `label_name`, `position`): its `accuracy`, and the
        `chance`, which is 1 / number of the variant's labels.
    """
    last = labels.groupby(["variant", "seed"])["round"].transform("max")
    late = labels[labels["round"] > last - LAST_ROUNDS].dropna(subset="accuracy")
    by = ["variant", "seed", "label", "label_name", "position"]
    ends = late.groupby(by, observed=True, sort=False, dropna=False)["accuracy"].median().reset_index()
    n_labels = labels.groupby("variant", observed=True)["label"].nunique()  # untested ones, too
    return ends.assign(chance=1 / ends["variant"].map(n_labels).astype(float))


def client_ends(ends: pd.DataFrame, clients: pd.DataFrame) -> pd.DataFrame:
    """The accuracy of each client at the end of each run, as `by_client` says, the lowest first.

    Args:
        ends: as `label_ends` gives them.
        clients: rows of clients.parquet.

    Returns:
        A row for each variant, seed and client: the `share` of the clients that are not better, and its `accuracy`.
    """
    found = []
    for (variant, seed), own in ends.groupby(["variant", "seed"], observed=True):
        of_trial = clients[(clients["variant"] == variant) & (clients["seed"] == seed)]
        held = matrix(of_trial["label_samples"])
        accuracy = own.set_index("label")["accuracy"].reindex(range(held.shape[1]))
        known = np.sort(by_client(accuracy, held))
        known = known[~np.isnan(known)]
        share = np.arange(1, len(known) + 1) / max(1, len(known))
        found.append(pd.DataFrame({"variant": variant, "seed": seed, "share": share, "accuracy": known}))
    return pd.concat(found) if found else pd.DataFrame(columns=["variant", "seed", "share", "accuracy"])


def not_learned(ends: pd.DataFrame) -> pd.DataFrame:
    """The labels that variants have not learned: the median over seeds of `label_ends` is below chance.

    A row for each variant and such label: `variant`, `label`, `label_name`, `accuracy` and `chance`. Chance is that of
    guessing one of the labels: that of tokens is another one.
    """
    by = ["variant", "label", "label_name"]
    middle = ends.groupby(by, observed=True, sort=False)[["accuracy", "chance"]].median().reset_index()
    return middle[middle["accuracy"] < middle["chance"]]


def confusion_table(confusion: NDArray[np.int64]) -> pd.DataFrame:
    """List a confusion matrix row by row: the `share` of the samples of `true_label` answered as `predicted_label`.

    Args:
        confusion: (L, S) numbers of samples, rows are true labels; shares of a label without samples are NaN. Answers
            from the L-th on are no labels, and are not listed.
    """
    n_labels = len(confusion)
    true, predicted = np.indices((n_labels, n_labels))
    with np.errstate(invalid="ignore"):
        share = (confusion / confusion.sum(axis=1, keepdims=True))[:, :n_labels]
    return pd.DataFrame({"true_label": true.ravel(), "predicted_label": predicted.ravel(), "share": share.ravel()})


def paper_like(history: ArrayLike) -> tuple[float, float]:
    """Compute median and spread of a (rounds, seeds) history as Hydra seems to do (docs/methods/metrics.md#over-seeds).

    Take the median over seeds in every round, then its median and standard deviation over the last rounds. This gives
    spreads as small as Hydra prints: they tell how much the median fluctuates, not how far seeds differ. The spread of
    a single round is NaN.
    """
    last = pd.Series(np.median(np.asarray(history, dtype=float)[-LAST_ROUNDS:], axis=1))
    return float(last.median()), float(last.std())


def last_medians(rounds: pd.DataFrame, columns: Sequence[str], last_rounds: int = LAST_ROUNDS) -> dict[str, float]:
    """Compute the medians of columns of one run's rounds over its last rounds, of those that are finite."""
    medians = rounds.filter(list(columns)).tail(last_rounds).astype(float).median()
    return {str(column): float(value) for column, value in medians.items() if np.isfinite(value)}


def finite_or_none(number: float) -> float | None:
    """Replace NaN and infinities, which JSON does not have, by None."""
    return float(number) if np.isfinite(number) else None


def headline(rounds: pd.DataFrame, labels: pd.DataFrame, last_rounds: int = LAST_ROUNDS) -> dict[str, float | None]:
    """Compute the accuracy figures of one run (a variant with a seed) for `summary.json`; None without evaluation.

    Args:
        rounds: the run's rows of rounds.parquet, in order.
        labels: the run's rows of labels.parquet.
        last_rounds: number of last rounds over which figures are medians.
    """
    figures: dict[str, float | None] = dict.fromkeys(
        ["accuracy", "client_accuracy", "performance_gap", "accuracy_spread", "backward_transfer", "best_accuracy"]
    )
    score = score_of(rounds)
    if rounds.empty or rounds[score].isna().all():
        return figures
    columns = [*SCORES, *MORE_SCORES, *GROUPED, VALIDATION, "client_accuracy", "performance_gap", "perplexity"]
    last = rounds.filter(columns).tail(last_rounds).astype(float)
    if "perplexity" in last:
        last["perplexity"] = last["perplexity"].fillna(np.inf)  # larger than any number
    figures |= {str(column): finite_or_none(value) for column, value in last.median().dropna().items()}
    if len(last) > 1:
        with np.errstate(invalid="ignore"):  # of infinite scores there is none
            figures["accuracy_spread"] = finite_or_none(last[score].std())
    if not labels.empty:
        figures["backward_transfer"] = backward_transfer(label_history(labels).to_numpy())
    figures["best_accuracy"] = finite_or_none(rounds[score].max())
    if VALIDATION in rounds and rounds[VALIDATION].notna().any():
        best = rounds[VALIDATION].astype(float).argmax()
        figures |= {
            "best_round": int(rounds["round"].iloc[best]),
            "best_round_score": finite_or_none(rounds[score].iloc[best]),
        }
    return figures


def way_to(target_accuracy: float | None, rounds: pd.DataFrame) -> dict[str, float | None]:
    """Compute rounds, time and bytes of one run until its target, for `summary.json`; None if it is not reached.

    Args:
        target_accuracy: in [0, 1], of the accuracy or of another goal's first score; None for no target.
        rounds: the run's rows of rounds.parquet, in order.
    """
    figures: dict[str, float | None] = dict.fromkeys(["rounds_to_accuracy", "time_to_accuracy_s", "bytes_to_accuracy"])
    if target_accuracy is not None and (reached := rounds[score_of(rounds)].astype(float) >= target_accuracy).any():
        until = rounds[: reached.to_numpy().argmax() + 1]
        figures["rounds_to_accuracy"] = int(until["round"].iloc[-1])
        figures["time_to_accuracy_s"] = float(until["ended_s"].iloc[-1])
        figures["bytes_to_accuracy"] = int(until["bytes_up"].sum() + until["bytes_down"].sum())
    return {"target_accuracy": target_accuracy, **figures}
