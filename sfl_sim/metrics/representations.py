"""Representations in two dimensions, and how well labels keep apart in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def laid_out(vectors: Floats, seed: int) -> Floats:
    """t-SNE (van der Maaten and Hinton 2008) of representations (N, D) as (N, 2), the same for the same seed.

    Neighbours stay neighbours; distances between far groups mean nothing. NaN for all where some are no finite numbers,
    as of a model that has diverged.
    """
    if not np.isfinite(vectors).all():
        return np.full((len(vectors), 2), np.nan)
    from sklearn.manifold import TSNE  # takes a second

    perplexity = min(30.0, (len(vectors) - 1) / 3)
    found = TSNE(perplexity=perplexity, init="pca", random_state=seed % 2**32, n_jobs=1).fit_transform(vectors)
    return np.asarray(found, dtype=np.float64)


def silhouettes(vectors: Floats, labels: NDArray[np.int64]) -> Floats:
    """The silhouette coefficient (Rousseeuw 1987) of each of N representations (N, D) within its label, in [-1, 1].

    1 where labels lie far apart, 0 where they meet; of the representations, not of their layout. NaN for all where
    there is one label, or one for every sample, or where some representations are no finite numbers.
    """
    from sklearn.metrics import silhouette_samples

    if not 1 < len(np.unique(labels)) < len(labels) or not np.isfinite(vectors).all():
        return np.full(len(labels), np.nan)
    return np.asarray(silhouette_samples(vectors, labels), dtype=np.float64)
