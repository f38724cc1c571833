"""Evaluation after a round: of the global model, and of the models that the clients would have now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sfl_sim.build.registry import named
from sfl_sim.build.setup import Setup
from sfl_sim.engine.round_tables import answer_table, label_rows, learned
from sfl_sim.errors import ScenarioError, in_short, own_place
from sfl_sim.methods import Method
from sfl_sim.metrics import exit_metrics
from sfl_sim.metrics.representations import laid_out, silhouettes
from sfl_sim.models.on_nan import OnNan
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.store.schema import tables
from sfl_sim.training.alternatives import Model, replicas_by_name
from sfl_sim.training.deployed import answers_of_clients, representations
from sfl_sim.training.eager import Eager
from sfl_sim.training.evaluate import CodedAt, Evaluation, evaluate, evaluate_others, losses_of

FramesByName = dict[str, pd.DataFrame]
Metrics = Mapping[str, Callable[[Tensor, Tensor], float]]
"""A user's own metrics by name: functions of a network's outputs (N, ...) and of targets (N, ...), as its loss."""


class Evaluator:
    """Evaluates the models of a method that trains on the test set.

    Args:
        metrics: the user's own.
        on_nan: rule for losses that are not finite, which counts the updates that it has left out.
        device: device of the models.
    """

    def __init__(self, setup: Setup, method: Method, metrics: Metrics, on_nan: OnNan, device: torch.device) -> None:
        self.setup = setup
        self.method = method
        self.metrics = metrics
        self.on_nan = on_nan
        data = setup.dataset
        self._x, self._labels = data.x_test.to(device), data.y_test.to(device)
        self._y = self._labels if data.targets_test is None else data.targets_test.to(device)
        assert method.data.images is not None
        self._images = method.data.images

    def of_model(self, model: Model, keeps_outputs: bool = False) -> Evaluation:
        """Evaluate a global model."""
        images, dataset = self._images, self.setup.dataset
        settings: dict[str, Any] = {
            "prepare": images.prepare, "keeps_outputs": keeps_outputs, "coded": self.coded, "targets": images.targets,
        }  # fmt: skip
        if dataset.goal.scores_labels:
            return evaluate(model, self._x, self._y, n_labels=dataset.n_labels, **settings)
        return evaluate_others(model, self._x, self._y, dataset.goal, n_labels=len(dataset.answers), **settings)

    def losses(self, client: int) -> Tensor:
        """Give the losses (n,) of the global model for the training samples of a client."""
        images, share = self._images, torch.from_numpy(self.setup.shares[client]).to(self._x.device)
        return losses_of(self.method.model(), images.x[share], images.y[share], images.prepare, images.targets)

    @property
    def coded(self) -> CodedAt | None:
        """Where features cross the cut, and the codec that they cross it with; None if as they are."""
        cuts = self.method.task.cuts
        codec = self.method.wire.for_inference if cuts else None
        return (max(cuts), codec) if codec else None

    def of_round(self, number: int) -> tuple[dict[str, Any], list[dict[str, Any]], FramesByName]:
        """Give figures for the row of a finished round, its rows of labels.parquet, and tables after the last round."""
        setup = self.setup
        evaluation = self.of_model(self.method.model(), keeps_outputs=bool(self.metrics))
        figures, tables = self.of_clients(number, is_last=number == setup.scenario.train.rounds)
        figures |= self._by_own_metrics(evaluation) | self._of_adapters()
        skipped = {"skipped": self.on_nan.take()} if self.on_nan.skips else {}
        labels = label_rows(number, evaluation, setup.dataset.label_names, setup.label_order)
        return {**learned(evaluation, setup.test_sets), **figures, **skipped}, labels, tables

    def _of_adapters(self) -> dict[str, float]:
        """Give what the last averages of factors A and B are wrong by, of the average product's norm."""
        replicas = replicas_by_name(self.method.model()).values()
        errors = (replica.weights.product_errors for replica in replicas)
        squares = [squared for squared in errors if squared is not None]
        if not squares:
            return {}
        wrong, right = torch.stack(squares).sum(0).clamp(min=0).sqrt().tolist()
        return {"adapter_error": wrong / right if right else 0.0}

    def _by_own_metrics(self, evaluation: Evaluation) -> dict[str, float]:
        """Give the columns that the user's own metrics fill."""
        if not self.metrics:
            return {}
        assert evaluation.outputs is not None
        assert evaluation.targets is not None
        outputs, targets = evaluation.outputs.cpu(), evaluation.targets.cpu()
        columns = {}
        for name, metric in self.metrics.items():
            try:
                columns[name] = float(metric(outputs, targets))
            except Exception as error:  # a user's function may raise anything
                problem = f"fails with {in_short(error)}{own_place(error)}"
                raise ScenarioError(problem, key=f"report.metrics.{name}") from error
        return columns

    def of_clients(self, number: int, is_last: bool) -> tuple[dict[str, float | None], FramesByName]:
        """Give figures of the clients' own models for the round's row, and their tables after the last round.

        Before the last round, these are the models that the clients would have if training ended now; they are made
        outside of simulated time.
        """
        setup, method = self.setup, self.method
        scenario, report = setup.scenario, setup.scenario.report
        figures: dict[str, float | None] = {}
        tables: FramesByName = {}
        if is_last or (method.has_exits and report.exits_every and number % report.exits_every == 0):
            if not is_last:
                method = self._ended(number)
            if method.has_exits or scenario.serving:
                tables["answers"] = self._answers(method)
                answers = tables["answers"].assign(variant="", seed=scenario.seed)
                figures = exit_metrics.headline(answers, setup.dataset.n_labels)
            if is_last and report.representations:
                tables["representations"] = self._representations(method, report.representations)
        return figures, tables if is_last else {}

    def _answers(self, method: Method) -> pd.DataFrame:
        """Make the rows of answers.parquet: the answers of each client's current model to its test set."""
        counts, labels = self.setup.counts, self.setup.dataset.y_test.numpy()
        models = [method.deployed(c) for c in range(len(counts))]
        test_sets = self.setup.test_sets or [np.arange(len(labels))] * len(models)
        answers = answers_of_clients(models, test_sets, x=self._x, y=self._labels, prepare=self._images.prepare)
        return answer_table(answers, test_sets, labels, counts)

    def _representations(self, method: Method, n: int) -> pd.DataFrame:
        """Make the rows of representations.parquet: places of `n` test samples, each by the next client's model."""
        labels, n_clients = self.setup.dataset.y_test.numpy()[:n], len(self.setup.shares)
        clients = np.arange(len(labels)) % n_clients
        models = [method.deployed(c) for c in range(n_clients)]
        network, prepare = method.task.network, self._images.prepare
        vectors = representations(models, clients, network, x=self._x[:n], prepare=prepare)
        place = laid_out(vectors, self.setup.scenario.seed)
        return pd.DataFrame(
            {
                "client": clients, "sample": np.arange(len(labels)), "label": labels,
                "x": place[:, 0], "y": place[:, 1], "silhouette": silhouettes(vectors, labels),
            }
        )  # fmt: skip

    def _ended(self, number: int) -> Method:
        """Give the method as it would be if training ended with round `number`; the one that trains does not notice."""
        method, device, executor = copy(self.method), self._x.device, Eager(OnNan(self.on_nan.skips))
        with torch.random.fork_rng([] if device.type == "cpu" else [device]):
            aside = EventClock(self.setup.fleet, executor, ORDERS["fcfs"])
            aside.run(method.finish(), number, in_round=False)
            executor.finish()
        return method


def own_metrics(scenario: Scenario) -> Metrics:
    """Return the user's own metrics by name. Raises ScenarioError if one cannot be called, or has a taken name."""
    metrics = {}
    for name, path in scenario.report.metrics.items():
        key = f"report.metrics.{name}"
        if name in tables("run")["rounds"].columns or not name.isidentifier():
            raise ScenarioError("cannot name a column of your own", key=key, found=name)
        metrics[name] = named(path, {}, key)
        if not callable(metrics[name]):
            raise ScenarioError("is no function", key=key, found=path)
    return metrics
