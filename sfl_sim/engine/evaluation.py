"""Evaluation after a round: of the global model, and of the models that the clients would have now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfl_sim.data.batches import Images
from sfl_sim.data.loading import Dataset
from sfl_sim.engine.registry import named
from sfl_sim.engine.round_tables import answer_table, label_rows, learned
from sfl_sim.errors import ScenarioError, in_short, own_place
from sfl_sim.methods import Method
from sfl_sim.metrics import exit_metrics
from sfl_sim.metrics.representations import laid_out, silhouettes
from sfl_sim.models.on_nan import OnNan
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.store.columns import (
    ADAPTER_COLUMN,
    ATTENDANCE_COLUMNS,
    BREAKDOWN,
    REPLAY_COLUMNS,
    ROUND_COLUMNS,
    STALENESS_COLUMNS,
)
from sfl_sim.training.alternatives import Model, replicas_by_name
from sfl_sim.training.deployed import answers_of_clients, representations
from sfl_sim.training.eager import Eager
from sfl_sim.training.evaluate import CodedAt, Evaluation, evaluate

if TYPE_CHECKING:
    from sfl_sim.engine.experiment import Experiment

Ints = NDArray[np.int64]
Tables = dict[str, pd.DataFrame]


class Evaluator:
    """Evaluates the models of an experiment on its test set.

    Args:
        experiment: an experiment that trains.
        device: device of its models.
    """

    def __init__(self, experiment: Experiment, device: torch.device) -> None:
        self.experiment = experiment
        self._x, self._y = experiment.dataset.x_test.to(device), experiment.dataset.y_test.to(device)

    @property
    def _images(self) -> Images:
        images = self.experiment.method.data.images
        assert images is not None
        return images

    def of_model(self, model: Model, keeps_logits: bool = False) -> Evaluation:
        """Evaluate a global model."""
        images, n_labels = self._images, self.experiment.dataset.n_labels
        return evaluate(model, self._x, self._y, n_labels, images.prepare, keeps_logits, self.coded, images.targets)

    @property
    def coded(self) -> CodedAt | None:
        """Where features cross the cut, and the codec that they cross it with; None if as they are."""
        method = self.experiment.method
        cuts = method.task.cuts
        codec = method.wire.for_inference if cuts else None
        return (max(cuts), codec) if codec else None

    def of_round(self, number: int) -> tuple[dict[str, Any], list[dict[str, Any]], Tables]:
        """Give figures for the row of a finished round, its rows of labels.parquet, and tables after the last round."""
        experiment = self.experiment
        found = self.of_model(experiment.method.model(), keeps_logits=bool(experiment.metrics))
        figures, tables = self.of_clients(number, is_last=number == experiment.scenario.train.rounds)
        figures |= self._by_own_metrics(found) | self._of_adapters()
        skipped = {"skipped": experiment.on_nan.take()} if experiment.on_nan.skips else {}
        labels = label_rows(number, found, experiment.dataset.label_names, experiment.label_order)
        return {**learned(found, experiment.test_sets), **figures, **skipped}, labels, tables

    def _of_adapters(self) -> dict[str, float]:
        """Give what the last averages of factors A and B are wrong by, of the average product's norm."""
        replicas = replicas_by_name(self.experiment.method.model()).values()
        squares = [each.weights.product_errors for each in replicas if each.weights.product_errors is not None]
        if not squares:
            return {}
        wrong, right = torch.stack(squares).sum(0).clamp(min=0).sqrt().tolist()
        return {ADAPTER_COLUMN: wrong / right if right else 0.0}

    def _by_own_metrics(self, found: Evaluation) -> dict[str, float]:
        """Give the columns that the user's own metrics fill."""
        if found.logits is None:
            return {}
        logits, labels = found.logits.cpu(), self._images.targets(self._x, self._y).cpu()
        columns = {}
        for name, metric in self.experiment.metrics.items():
            try:
                columns[name] = float(metric(logits, labels))
            except Exception as error:  # a user's function may raise anything
                problem = f"fails with {in_short(error)}{own_place(error)}"
                raise ScenarioError(problem, key=f"report.metrics.{name}") from error
        return columns

    def of_clients(self, number: int, is_last: bool) -> tuple[dict[str, float | None], Tables]:
        """Give figures of the clients' own models for the round's row, and their tables after the last round.

        Before the last round, these are the models that the clients would have if training ended now; they are made
        outside of simulated time.
        """
        experiment, scenario = self.experiment, self.experiment.scenario
        method, report = experiment.method, scenario.report
        figures: dict[str, float | None] = {}
        tables: Tables = {}
        if is_last or (method.has_exits and report.exits_every and number % report.exits_every == 0):
            if not is_last:
                method = self._ended(number)
            if method.has_exits or scenario.serving:
                given = experiment.dataset, experiment.counts, experiment.test_sets, self._x, self._images
                tables["answers"] = answers = client_answers(method, *given)
                told = answers.assign(variant="", seed=scenario.seed)
                figures = exit_metrics.headline(told, experiment.dataset.n_labels)
            if is_last and report.representations:
                tables["representations"] = shown_representations(
                    report.representations, method, experiment.dataset, len(experiment.shares), self._x, self._images,
                    scenario.seed,
                )  # fmt: skip
        return figures, tables if is_last else {}

    def _ended(self, number: int) -> Method:
        """Give the method as it would be if training ended with round `number`; the one that trains does not notice."""
        experiment, device = self.experiment, self._x.device
        method, executor = copy(experiment.method), Eager(OnNan(experiment.on_nan.skips))
        with torch.random.fork_rng([] if device.type == "cpu" else [device]):
            aside = EventClock(experiment.fleet, executor, ORDERS["fcfs"])
            aside.run(method.finish(), number, in_round=False)
            executor.finish()
        return method


def own_metrics(scenario: Scenario) -> dict[str, Callable[[Tensor, Tensor], float]]:
    """Return the user's own metrics by name. Raises ScenarioError if one cannot be called, or has a taken name."""
    taken = [*ROUND_COLUMNS, *(f"{part}_s" for part in BREAKDOWN), *exit_metrics.HEADLINE, "performance_gap",
             "client_joule", *REPLAY_COLUMNS, *ATTENDANCE_COLUMNS, *STALENESS_COLUMNS, ADAPTER_COLUMN, "skipped",
             "perplexity", "variant", "seed"]  # fmt: skip
    found = {}
    for name, path in scenario.report.metrics.items():
        key = f"report.metrics.{name}"
        if name in taken or not name.isidentifier():
            raise ScenarioError("cannot name a column of your own", key=key, found=name)
        found[name] = named(path, {}, key)
        if not callable(found[name]):
            raise ScenarioError("is no function", key=key, found=path)
    return found


def client_answers(
    method: Method, dataset: Dataset, counts: Ints, test_sets: Sequence[Ints], x: Tensor, images: Images
) -> pd.DataFrame:
    """Make the rows of answers.parquet: the answers of each client's current model to its test set.

    Args:
        counts: (C, L) number of training samples by client and label.
        test_sets: the clients' own; empty if all have the whole test set.
        x: the test images, on the device of the models.
        images: prepares the images.
    """
    labels = dataset.y_test.numpy()
    models = [method.deployed(c) for c in range(len(counts))]
    own = test_sets or [np.arange(len(labels))] * len(models)
    answers = answers_of_clients(models, own, x, dataset.y_test.to(x.device), images.prepare)
    return answer_table(answers, own, labels, counts)


def shown_representations(
    n: int, method: Method, dataset: Dataset, n_clients: int, x: Tensor, images: Images, seed: int
) -> pd.DataFrame:
    """Make the rows of representations.parquet: places of `n` test samples, each by the next client's model."""
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
