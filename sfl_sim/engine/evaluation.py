"""Evaluation after a round, of the global model and of those that the clients would have; and snapshots within one."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from sfl_sim.build.checks import check_rounds
from sfl_sim.build.clock import burst_of
from sfl_sim.build.registry import named
from sfl_sim.build.setup import Setup
from sfl_sim.engine.round_tables import answer_table, label_rows, learned
from sfl_sim.errors import ScenarioError, calling_theirs
from sfl_sim.methods import METHODS, Method
from sfl_sim.metrics import exit_metrics
from sfl_sim.metrics.geometry import laid_out, silhouettes
from sfl_sim.metrics.scores import SCORES, VALIDATION, confusion_table
from sfl_sim.models.losses import counted
from sfl_sim.models.on_nan import OnNan
from sfl_sim.ops import On
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.clock import Clock
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.store.schema import tables
from sfl_sim.training.alternatives import Model, replicas_by_name
from sfl_sim.training.deployed import answers_of_clients, representations
from sfl_sim.training.evaluate import CodedAt, Evaluation, evaluate, losses_of
from sfl_sim.training.executors import Eager
from sfl_sim.training.steps import Train

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

    def of_model(
        self, model: Model, keeps_outputs: bool = False, samples: tuple[Tensor, Tensor] | None = None
    ) -> Evaluation:
        """Evaluate a global model on `samples` and their targets; None: on the test set."""
        images, dataset = self._images, self.setup.dataset
        x, y = samples or (self._x, self._y)
        settings: dict[str, Any] = {
            "prepare": images.prepare, "keeps_outputs": keeps_outputs, "coded": self.coded, "targets": images.targets,
        }  # fmt: skip
        n_labels = dataset.n_labels if dataset.goal.scores_labels else len(dataset.answers)
        return evaluate(model, x, y, n_labels, goal=dataset.goal, **settings)

    def _validated(self) -> dict[str, float | None]:
        """Give loss and score on the validation samples, if there are any."""
        if not len(self.setup.validation):
            return {}
        images, aside = self._images, torch.from_numpy(self.setup.validation).to(self._x.device)
        samples = images.x.index_select(0, aside), images.y.index_select(0, aside)
        evaluation = self.of_model(self.method.model(), samples=samples)
        figures = learned(evaluation, [], self.setup.counts)
        score = next(figures[name] for name in SCORES if name in figures)
        return {"validation_loss": evaluation.loss, VALIDATION: score}

    def guessing(self) -> float:
        """Give the accuracy of always answering with the most frequent label, or token, of the test set."""
        wanted = self._images.targets(self._x, self._y)
        counts = np.unique(wanted[counted(wanted)].cpu().numpy(), return_counts=True)[1]
        return float(counts.max() / counts.sum())

    def losses(self, client: int) -> Tensor:
        """Give the losses (n,) of the global model for the training samples of a client."""
        images, share = self._images, torch.from_numpy(self.setup.shares[client]).to(self._x.device)
        x, y = images.x.index_select(0, share), images.y.index_select(0, share)
        return losses_of(self.method.model(), x, y, images.prepare, images.targets)

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
        figures |= self._validated() | self._by_own_metrics(evaluation) | self._of_adapters()
        skipped = {"skipped": self.on_nan.take()} if self.on_nan.skips else {}
        labels = label_rows(number, evaluation, setup.dataset.label_names, setup.label_order)
        return {**learned(evaluation, setup.test_sets, setup.counts), **figures, **skipped}, labels, tables

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
            with calling_theirs(f"report.metrics.{name}"):
                columns[name] = float(metric(outputs, targets))
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
        """Make the rows of representations.parquet: points of `n` test samples, each by the next client's model."""
        labels, n_clients = self.setup.dataset.y_test.numpy()[:n], len(self.setup.shares)
        clients = np.arange(len(labels)) % n_clients
        models = [method.deployed(c) for c in range(n_clients)]
        network, prepare = method.task.network, self._images.prepare
        vectors = representations(models, clients, network, x=self._x[:n], prepare=prepare)
        plane = laid_out(vectors, self.setup.scenario.seed)
        return pd.DataFrame(
            {
                "client": clients, "sample": np.arange(len(labels)), "label": labels,
                "x": plane[:, 0], "y": plane[:, 1], "silhouette": silhouettes(vectors, labels),
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


class Snapshots:
    """Confusion matrices within the rounds that `report.snapshots` names, as if a round ended there
    (docs/methods/metrics.md); they change neither training nor time.

    Args:
        scenario: a scenario that asks for snapshots.
        method: the method that trains.
        evaluate: evaluates a model on the global test set.
        clock: gives the simulated time.
        after: number of the last round without snapshots.
    """

    def __init__(
        self, scenario: Scenario, method: Method, evaluate: Callable[[Model], Evaluation], clock: Clock, after: int = 0
    ) -> None:
        assert scenario.report.snapshots is not None
        self.wanted = scenario.report.snapshots
        self.burst = burst_of(scenario.server)
        self.method = method
        self.evaluate = evaluate
        self.clock = clock
        self.after = after
        self._round = self._every = self._jobs = 0
        self._tables: list[pd.DataFrame] = []

    def begin(self, round: int, clients: Sequence[int]) -> None:
        """Begin a round with a snapshot, if wanted; sets the interval: in cyclic order usually one label's turn."""
        self._round, self._jobs, self._tables = round, 0, []
        at_once = self.method.data.n_batches(clients[0]) if self.burst == inf else int(self.burst)
        every = self.wanted.every or max(1, at_once * len(clients) // len(self.method.task.label_names))
        self._every = every if round > self.after and round in self.wanted.rounds else 0
        if self._every:
            self._look(self.method.model())

    def after_job(self, op: On) -> None:
        """Take a snapshot whenever the server has begun as many training jobs as the interval says."""
        if self._every and op.step.name == Train.name:
            self._jobs += 1
            if self._jobs % self._every == 0:
                self._look(self.method.current())

    def take(self) -> pd.DataFrame | None:
        """Give the round's rows of confusion.parquet; None without snapshots."""
        return pd.concat(self._tables) if self._tables else None

    def _look(self, model: Model) -> None:
        confusion = self.evaluate(model).confusion
        assert confusion is not None, "token targets have no confusion matrix"
        table = confusion_table(confusion)
        self._tables.append(table.assign(round=self._round, job=self._jobs, time_s=self.clock.now_s))


def check_snapshots(scenario: Scenario, method: Method) -> None:
    """Check that the scenario's snapshots can be taken; otherwise raises ScenarioError."""
    wanted = scenario.report.snapshots
    if wanted is None:
        return
    name = scenario.method.name
    if scenario.servers:
        raise ScenarioError("look into one server, and cannot be taken of several", key="report.snapshots")
    try:
        method.current()
    except ScenarioError as error:
        able = [
            name for name, kind in METHODS.items()
            if kind.current is not Method.current and kind.has("follows_order", kind.Options())
        ]  # fmt: skip
        problem = f"{name} cannot be asked within a round"
        raise ScenarioError(problem, key="report.snapshots", allowed=able) from error
    check_rounds(scenario, "report.snapshots.rounds", wanted.rounds)
