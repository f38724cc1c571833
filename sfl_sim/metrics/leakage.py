"""Leakage as figures: how alike images are, and how well gradients tell labels apart (docs/methods/leakage.md)."""

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

AnyFloats = NDArray[np.floating]
Ints = NDArray[np.int64]

SIGMA = 1.5
"""Standard deviation in pixels of SSIM's Gaussian window, which reaches 3.5 of them: 11 pixels wide."""
RESTARTS, STEPS = 10, 100
"""Of k-means."""
PERMUTATIONS = 20


def by_chance(measure: Callable[[Ints], float], groups: Ints, rng: np.random.Generator) -> float:
    """Compute what a measure finds where nothing leaks: its mean over random orders (N,) of the samples.

    Samples change positions within their group (N,). A measure takes an order and gives one side of its samples in it.
    """
    positions = np.argsort(groups, kind="stable")
    found = []
    for _ in range(PERMUTATIONS):
        order = np.empty_like(positions)
        order[positions] = positions[np.lexsort((rng.random(len(groups)), groups[positions]))]
        found.append(measure(order))
    return float(np.mean(found))


def psnr(errors: AnyFloats) -> NDArray[np.float64]:
    """Compute the peak signal-to-noise ratio in dB (N,) of images in [0, 1] from their mean squared errors (N,)."""
    with np.errstate(divide="ignore"):
        return np.asarray(-10 * np.log10(errors.astype(np.float64)))


def ssim(x: AnyFloats, y: AnyFloats) -> NDArray[np.float64]:
    """Compute the structural similarity (N,) of images x and y (N, C, H, W) in [0, 1]: 1 for equal ones.

    Wang et al. 2004: a Gaussian window, K1 = 0.01, K2 = 0.03, within the image, mean over channels. On images of fewer
    than 11 pixels the window is narrower, so that it fits.
    """
    from skimage.metrics import structural_similarity  # takes half a second

    side = min(x.shape[2:])
    sigma = SIGMA if side >= 11 else (side - 1) // 2 / 3.5
    found = [
        structural_similarity(  # type: ignore[no-untyped-call]
            one, other, data_range=1, channel_axis=0, gaussian_weights=True, sigma=sigma, use_sample_covariance=False
        )
        for one, other in zip(x.astype(np.float64), y.astype(np.float64), strict=True)
    ]
    return np.array(found, dtype=np.float64)


def labels_by_norm(norms: AnyFloats, labels: Ints, messages: Ints) -> float:
    """Measure how well the norms (N,) of gradients tell a label from the others: an area under the curve, 0.5 to 1.

    Samples are compared within their message (N,), whose gradients share a scale: the area is the share of pairs of a
    sample with the label and one without it whose norms are in one order, equal norms counting half. The mean over
    labels; NaN if no message holds two labels.
    """
    areas = []
    for label in np.unique(labels):
        ordered = pairs = 0.0
        for message in np.unique(messages[labels == label]):
            here = messages == message
            own, others = norms[here & (labels == label)], norms[here & (labels != label)]
            ordered += (own[:, None] > others).sum() + 0.5 * (own[:, None] == others).sum()
            pairs += len(own) * len(others)
        if pairs:
            areas.append(max(ordered, pairs - ordered) / pairs)
    return float(np.mean(areas)) if areas else float("nan")


def clusters_of(gradients: AnyFloats, n_labels: int, seed: int) -> Ints:
    """Sort the directions of gradients (N, D) into as many clusters (N,) as there are labels, by k-means."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # where there are fewer directions than labels
        means = KMeans(min(n_labels, len(gradients)), n_init=RESTARTS, max_iter=STEPS, random_state=seed)
        return np.asarray(means.fit_predict(_directions(gradients)), dtype=np.int64)


def labels_by_clusters(clusters: Ints, labels: Ints) -> float:
    """Measure how well clusters (N,) tell labels (N,): a share of samples.

    Each cluster is given the label that makes most samples right, one to one.
    """
    from scipy.optimize import linear_sum_assignment

    counts = np.zeros((clusters.max() + 1, labels.max() + 1))
    np.add.at(counts, (clusters, labels), 1)
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / len(labels))


def labels_by_nearest(gradients: AnyFloats, labels: Ints) -> float:
    """Measure how often the gradient nearest by cosine, of one known sample per label, has the label: a share.

    The known samples are the first ones of their labels, and are not counted. NaN if all samples are known.
    """
    known = np.unique(labels, return_index=True)[1]
    others = np.setdiff1d(np.arange(len(labels)), known)
    if not len(others):
        return float("nan")
    directions = _directions(gradients)
    nearest = (directions[others] @ directions[known].T).argmax(axis=1)
    return float((labels[known[nearest]] == labels[others]).mean())


def _directions(gradients: AnyFloats) -> AnyFloats:
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return gradients / np.where(norms > 0, norms, 1)
