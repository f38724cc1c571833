"""Layout of representations in two dimensions, and the separation of labels in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
    found = TSNE(perplexity=perplexity, init="pca", random_state=seed % 2**32, n_jobs=1).fit_transform(vectors)
    return np.asarray(found, dtype=np.float64)


def silhouettes(vectors: Floats, labels: NDArray[np.int64]) -> Floats:
    """Compute the silhouette coefficient (Rousseeuw 1987) of each representation (N, D) within its label, in [-1, 1].

    It is 1 if labels are far apart and 0 if they meet, in the space of the representations, not of their layout. All
    are NaN if there is one label, or one for every sample, or if some representations are not finite.
    """
    from sklearn.metrics import silhouette_samples

    if not 1 < len(np.unique(labels)) < len(labels) or not np.isfinite(vectors).all():
        return np.full(len(labels), np.nan)
    return np.asarray(silhouette_samples(vectors, labels), dtype=np.float64)
