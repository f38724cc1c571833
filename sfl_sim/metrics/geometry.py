"""Geometry of what was learned and of what clients hold: layouts, widths of minima, divergence of labels."""

import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray

TOLERATED_RISE = math.log(2)
"""Rise of the loss within which a minimum reaches: the right answers are half as probable there."""
Floats = NDArray[np.float64]


def laid_out(vectors: Floats, seed: int) -> Floats:
    """Lay out representations (N, D) in the plane, (N, 2), by t-SNE (van der Maaten and Hinton 2008), seeded.

    Neighbours stay neighbours; distances between far groups mean nothing. All are NaN if some representations are not
    finite, such as those of a model that has diverged.
    """
    if not np.isfinite(vectors).all():
        return np.full((len(vectors), 2), np.nan)
    from sklearn.manifold import TSNE  # takes a second

    perplexity = min(30.0, (len(vectors) - 1) / 3)
    points = TSNE(perplexity=perplexity, init="pca", random_state=seed % 2**32, n_jobs=1).fit_transform(vectors)
    return np.asarray(points, dtype=np.float64)


def silhouettes(vectors: Floats, labels: NDArray[np.int64]) -> Floats:
    """Compute the silhouette coefficient (Rousseeuw 1987) of each representation (N, D) within its label, in [-1, 1].

    It is 1 if labels are far apart and 0 if they meet, in the space of the representations, not of their layout. All
    are NaN if there is one label, or one for every sample, or if some representations are not finite.
    """
    from sklearn.metrics import silhouette_samples

    if not 1 < len(np.unique(labels)) < len(labels) or not np.isfinite(vectors).all():
        return np.full(len(labels), np.nan)
    return np.asarray(silhouette_samples(vectors, labels), dtype=np.float64)


def with_widths(points: pd.DataFrame) -> pd.DataFrame:
    """Add the column `width` to the rows of the models themselves (alpha 0 of slice line); NaN in all others."""
    model = ["run", "variant", "seed"]
    on_line = points[points["slice"] == "line"]
    widths = pd.Series({key: width(line) for key, line in on_line.groupby(model)}, dtype=float)
    of_each = widths.reindex(pd.MultiIndex.from_frame(points[model])).to_numpy()
    return points.assign(width=np.where((points["slice"] == "line") & (points["alpha"] == 0), of_each, np.nan))


def width(line: pd.DataFrame) -> float:
    """Measure how much of one model's line rises by `TOLERATED_RISE` at most; NaN if the model has no loss."""
    line = line.sort_values("alpha")
    alpha = line["alpha"].to_numpy()
    excess = rise(line).fillna(math.inf).to_numpy() - TOLERATED_RISE
    middle = len(line) // 2
    if excess[middle] > 0:
        return math.nan
    return _reach(alpha[middle:], excess[middle:]) + _reach(-alpha[middle::-1], excess[middle::-1])


def rise(line: pd.DataFrame) -> pd.Series:
    """Compute the loss of each point beyond that of its seed's model; NaN for what is no number."""
    at_model = line["seed"].map(line[line["alpha"] == 0].set_index("seed")["loss"])
    return (line["loss"] - at_model).where(np.isfinite(line["loss"]))


def _reach(distance: NDArray[np.float64], excess: NDArray[np.float64]) -> float:
    """Return the distance at which the excess first gets positive, on the line between two points; or the last."""
    beyond = np.flatnonzero(excess > 0)
    if not len(beyond):
        return float(distance[-1])
    crossing = slice(beyond[0] - 1, beyond[0] + 1)
    return float(np.interp(0, excess[crossing], distance[crossing]))


def label_divergence(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the Jensen-Shannon divergence of each client's label distribution from that of all samples together.

    Args:
        counts: (C, L) samples of each label that each client holds.

    Returns:
        (C,) in bits: 0 for equal distributions, and less than 1, since the client's own samples are among all: two
        clients with a label each have 0.311, ten 0.758. It depends on the number of clients, and a large one has less:
        of 5 and 500 samples of a label each, 0.960 and 0.005. NaN for a client without samples.
    """
    from scipy.spatial.distance import jensenshannon  # takes 0.2 s to import

    held = counts.sum(axis=1)
    divergence = np.full(len(counts), np.nan)
    with np.errstate(invalid="ignore"):  # rounding may leave the root of a negative number where two are equal
        distance = jensenshannon(counts[held > 0], counts.sum(axis=0)[None], axis=1, base=2)
    divergence[held > 0] = np.nan_to_num(distance) ** 2
    return divergence
