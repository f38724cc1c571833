"""What is asked of the models that clients have once training has ended, or would have if it ended now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from sfl_sim.data.batches import Images
from sfl_sim.data.datasets import Dataset
from sfl_sim.engine.round_tables import answer_table
from sfl_sim.methods import Method
from sfl_sim.metrics.representations import laid_out, silhouettes
from sfl_sim.training.deployed import answers_of_clients, representations

Ints = NDArray[np.int64]


def client_answers(
    method: Method, dataset: Dataset, counts: Ints, test_sets: Sequence[Ints], x: Tensor, images: Images
) -> pd.DataFrame:
    """Rows of answers.parquet: what the models that clients have now answer to their test sets.

    Args:
        counts: (C, L) training samples of each label that each client holds.
        test_sets: the clients' own; none where all have the whole test set.
        x: the test images, where the models are.
        images: prepares them.
    """
    labels = dataset.y_test.numpy()
    models = [method.deployed(c) for c in range(len(counts))]
    own = test_sets or [np.arange(len(labels))] * len(models)
    answers = answers_of_clients(models, own, x, dataset.y_test.to(x.device), images.prepare)
    return answer_table(answers, own, labels, counts)


def shown_representations(
    n: int, method: Method, dataset: Dataset, n_clients: int, x: Tensor, images: Images, seed: int
) -> pd.DataFrame:
    """Rows of representations.parquet: where the first `n` test samples lie, each by the way of the next client."""
    labels = dataset.y_test.numpy()[:n]
    clients = np.arange(len(labels)) % n_clients
    models = [method.deployed(c) for c in range(n_clients)]
    vectors = representations(models, clients, method.task.network, x[:n], images.prepare)
    place = laid_out(vectors, seed)
    return pd.DataFrame(
        {
            "client": clients, "sample": np.arange(len(labels)), "label": labels, "x": place[:, 0], "y": place[:, 1],
            "silhouette": silhouettes(vectors, labels),
        }
    )  # fmt: skip
