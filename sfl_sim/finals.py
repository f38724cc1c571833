"""What is asked of the clients' own models once training has ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from sfl_sim.config.scenario import Scenario
from sfl_sim.data.batches import Images
from sfl_sim.data.datasets import Dataset
from sfl_sim.execute.answers import answers_of_clients
from sfl_sim.execute.representations import representations
from sfl_sim.methods import Method
from sfl_sim.metrics.representations import laid_out, silhouettes
from sfl_sim.tables import answer_table

Ints = NDArray[np.int64]


def final_tables(
    scenario: Scenario,
    method: Method,
    dataset: Dataset,
    counts: Ints,
    test_sets: Sequence[Ints],
    x: Tensor,
    images: Images,
) -> dict[str, pd.DataFrame]:
    """The tables `answers`, where clients have exits or are going to be served, and `representations`, if wanted.

    Args:
        counts: (C, L) training samples of each label that each client holds.
        test_sets: the clients' own; none where all have the whole test set.
        x: the test images, where the models are.
        images: prepares them.
    """
    tables, labels = {}, dataset.y_test.numpy()
    wanted = scenario.report.representations
    if method.has_exits or scenario.serving or wanted:
        models = [method.deployed(c) for c in range(len(counts))]
    if method.has_exits or scenario.serving:
        own = test_sets or [np.arange(len(labels))] * len(models)
        answers = answers_of_clients(models, own, x, dataset.y_test.to(x.device), images.prepare)
        tables["answers"] = answer_table(answers, own, labels, counts)
    if wanted:
        n = min(wanted, len(labels))
        clients = np.arange(n) % len(models)
        vectors = representations(models, clients, method.task.network, x[:n], images.prepare)
        place = laid_out(vectors, scenario.seed)
        tables["representations"] = pd.DataFrame(
            {
                "client": clients, "sample": np.arange(n), "label": labels[:n], "x": place[:, 0], "y": place[:, 1],
                "silhouette": silhouettes(vectors, labels[:n]),
            }
        )  # fmt: skip
    return tables
