"""The composition root: an experiment put together out of a scenario, and its rounds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from sfl_sim.building import build_executor, build_method, build_simulator, build_world
from sfl_sim.config.scenario import Scenario
from sfl_sim.data.partition import check_none_empty, cyclic_clients, label_counts, label_order
from sfl_sim.dealing import deal_data, deal_tests
from sfl_sim.errors import ScenarioError
from sfl_sim.execute.batched import Batched
from sfl_sim.execute.compiling import check_compiler
from sfl_sim.execute.eager import Eager
from sfl_sim.execute.evaluate import Evaluation, evaluate
from sfl_sim.execute.lineage import Lineage
from sfl_sim.execute.precision import check_precision
from sfl_sim.execute.timing import Timing
from sfl_sim.finals import client_answers, shown_representations
from sfl_sim.metrics import exits
from sfl_sim.metrics.energy import client_joule
from sfl_sim.models.alternatives import Model, replicas_by_name
from sfl_sim.models.layer_table import layer_table
from sfl_sim.presets import expand
from sfl_sim.rng import stream
from sfl_sim.sim.clock import Simulator
from sfl_sim.sim.foresight import Foresight
from sfl_sim.sim.orders import ORDERS
from sfl_sim.snapshots import Snapshots, check_snapshots
from sfl_sim.tables import client_table, label_rows, learned, round_row


@dataclass(frozen=True)
class Round:
    """What one round gave: its row of rounds.parquet, rows of labels.parquet, operations (`OP_DTYPE`), rows of
    confusion.parquet, if the scenario asks for any, and tables of the whole run by name: what flows have read so far,
    and with the last round what is known of the trained models."""

    row: Mapping[str, Any]
    labels: list[dict[str, Any]]
    ops: NDArray[np.void]
    confusion: pd.DataFrame | None = None
    final: Mapping[str, pd.DataFrame] = field(default_factory=dict)


class Experiment:
    """One variant with one seed, ready to run.

    Args:
        scenario: without grid; `repeats` is ignored.
        device: where steps run; None for a timing-only run.
        lineage: carries out the operations of a run that is walked again, without a device.

    Raises ScenarioError for whatever in the scenario cannot be used, before any training.
    """

    def __init__(self, scenario: Scenario, device: torch.device | None, lineage: Lineage | None = None) -> None:
        self.scenario = scenario = expand(scenario)
        self.device = device
        self.dataset, self.shares = deal_data(scenario)
        check_none_empty(self.shares)
        seed, dataset = scenario.seed, self.dataset
        self.label_order = label_order(dataset.n_labels, stream(seed, "label order"))
        self.counts = label_counts(dataset.y_train.numpy(), self.shares, dataset.n_labels)
        self.test_sets = deal_tests(scenario, dataset, self.counts)
        self.cyclic = cyclic_clients(self.counts, self.label_order)
        self.fleet = build_world(scenario, len(self.shares))
        retraced = lineage is not None
        self.method = build_method(scenario, dataset, self.shares, self.counts, self.fleet, device, retraced)
        check_snapshots(scenario, self.method)
        if self.method.bystanders and self.n_participants == len(self.shares):
            raise ScenarioError(
                f"all clients take part in every round, so {scenario.method.name} has no {self.method.bystanders}",
                key="clients.participation", found=scenario.clients.participation, allowed="less than 1",
            )  # fmt: skip
        self.snapshots = self._snapshots()
        executor = lineage or build_executor(scenario.train, device)
        self.executor = self.snapshots.executor if self.snapshots else executor
        self.simulator = build_simulator(scenario, self.fleet, self.executor, self.counts)
        self.foresight = Foresight(self.simulator)
        self.server_model_bytes: int | None = 0
        """The most bytes of models that the main server has held at once; None if the method does not tell."""
        self.joule = None if self.fleet.power is None else np.zeros(len(self.shares))
        """What each client's battery has paid in whole rounds; None if nobody said what they draw."""
        self._model: Model = []
        self._reads: list[dict[str, float]] = []
        self._timeline = hashlib.blake2b(digest_size=16)
        if device is not None:
            torch.manual_seed(seed)  # for networks of a user's own that draw while they run
            self._test = (dataset.x_test.to(device), dataset.y_test.to(device))

    def rounds(self) -> Iterator[Round]:
        """Run the rounds one by one."""
        for number in range(1, self.scenario.train.rounds + 1):
            clients = list(self.method.choose(number, self.participants(number)))
            held = self.method.server_bytes(clients)
            self.server_model_bytes = None if held is None else max(held, self.server_model_bytes or 0)
            started_s = self.simulator.now_s
            if self.snapshots:
                self.snapshots.begin(number, clients)
            self.run_round(number, clients)
            ended_s = self.simulator.now_s
            ops = self.simulator.take_rows()
            row = {**round_row(number, clients, started_s, ended_s, ops), **self.method.figures()}
            if self.fleet.power is not None and self.joule is not None:
                joule = client_joule(ops, self.fleet.power, clients, started_s, ended_s)
                self.joule += joule
                row["client_joule"] = joule.sum() / len(clients)
            labels: list[dict[str, Any]] = []
            tables: dict[str, pd.DataFrame] = {}
            if self.device is not None:
                found = self._evaluate(self.method.model())
                row |= learned(found, self.test_sets)
                labels = label_rows(number, found, self.dataset.label_names, self.label_order)
                self._model = [part.snapshot() for part in self.method.model()]
                figures, tables = self._ask(number)
                row |= figures
            if reads := self.simulator.take_reads():
                self._reads += [{"round": number, "number": i, "value": value} for i, value in enumerate(reads)]
                tables["reads"] = pd.DataFrame(self._reads)
            self._timeline.update(ops.tobytes())
            confusion = self.snapshots.take() if self.snapshots else None
            yield Round(row, labels, ops, confusion, tables)

    def check_device(self, device: torch.device) -> None:
        """Refuse what `device` cannot compute, or only slower. A timing-only run needs none of it."""
        train = self.scenario.train
        check_precision(train.precision, device, self.method.task.network, train.batch_size)
        if train.compile:
            if max(map(len, self.shares)) < train.batch_size:
                raise ScenarioError("no client has a whole mini-batch; only those are compiled", key="train.compile")
            check_compiler(device)

    def run_round(self, number: int, clients: list[int]) -> None:
        """Let the clients train, and the clock run, without evaluation."""
        if number == 1:
            self.simulator.run(self.method.setup(), number)
        if isinstance(self.executor, Timing) and self.method.regular and not self.method.task.round_cuts:
            self.foresight.run(lambda: self.method.round(number, clients), number, like=tuple(clients))
        else:
            self.simulator.run(self.method.round(number, clients), number)
        if number == self.scenario.train.rounds:
            self.simulator.run(self.method.finish(), number)
        if isinstance(self.executor, Batched):
            self.executor.finish()

    @property
    def batch_macs(self) -> float:
        """MACs of one mini-batch's forward pass through the whole network."""
        return self.method.task.network.macs * self.scenario.train.batch_size

    @property
    def timeline_digest(self) -> str:
        """Of all operations of whole rounds, with their times: equal for equal scenarios, trained or timing-only."""
        return self._timeline.copy().hexdigest()

    def weights(self) -> dict[str, NDArray[Any]]:
        """The global model after the last whole round, by part and name, in PyTorch's usual layout."""
        return {
            f"{part}.{name}": tensor.contiguous().cpu().numpy()
            for part, replica in replicas_by_name(self._model).items()
            for name, tensor in replica.weights.named_tensors()
        }

    def weights_digest(self) -> str | None:
        """Of the global model's numbers after the last whole round; None in a timing-only run."""
        if self.device is None:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for name, values in self.weights().items():
            digest.update(name.encode())
            digest.update(values.tobytes())
        return digest.hexdigest()

    def clients(self) -> pd.DataFrame:
        """One row per client: device, rates, samples, dominant label, and the last layer that it holds."""
        task = self.method.task
        return client_table(self.fleet, self.counts, () if task.round_cuts else task.cuts).assign(joule=self.joule)

    def layers(self) -> pd.DataFrame:
        """One row per layer of the model: what it costs, and whether a cut after it is Pareto-optimal."""
        table = layer_table(self.method.task.network)
        return table.assign(model=self.scenario.model.name or self.scenario.model.factory)

    @property
    def n_participants(self) -> int:
        """Clients that take part in a round."""
        return max(1, int(self.scenario.clients.participation * len(self.shares) + 0.5))

    def participants(self, round: int) -> list[int]:
        """The round's clients in cyclic order: a draw without replacement."""
        n = self.n_participants
        if n == len(self.cyclic):
            return list(self.cyclic)
        chosen = stream(self.scenario.seed, "participants", round).choice(len(self.cyclic), n, replace=False)
        return [self.cyclic[i] for i in sorted(chosen)]

    def _snapshots(self) -> Snapshots | None:
        if self.device is None or self.scenario.report.snapshots is None:
            return None
        return Snapshots(self.scenario, self.method, self._evaluate, lambda: self.simulator.now_s)

    def _ask(self, number: int) -> tuple[dict[str, float | None], dict[str, pd.DataFrame]]:
        """Figures of the clients' own models for the round's row, and what is kept of them after the last round.

        Before the last round, they are what clients would have if training ended now; no clock sees them made.
        """
        report, has_exits = self.scenario.report, self.method.has_exits
        images, is_last = self.method.data.images, number == self.scenario.train.rounds
        assert images is not None
        figures, tables = {}, {}
        if is_last or (has_exits and report.exits_every and number % report.exits_every == 0):
            if not is_last:
                Simulator(self.fleet, Eager(), ORDERS["fcfs"]).run(self.method.finish(), number)
            if has_exits or self.scenario.serving:
                world = self.dataset, self.counts, self.test_sets, self._test[0], images
                tables["answers"] = answers = client_answers(self.method, *world)
                told = answers.assign(variant="", seed=self.scenario.seed)
                figures = exits.headline(told, self.dataset.n_labels)
            if is_last and report.representations:
                tables["representations"] = shown_representations(
                    report.representations, self.method, self.dataset, len(self.shares), self._test[0], images,
                    self.scenario.seed,
                )  # fmt: skip
        return figures, tables if is_last else {}

    def _evaluate(self, model: Model) -> Evaluation:
        assert self.device is not None
        images = self.method.data.images
        assert images is not None
        return evaluate(model, *self._test, self.dataset.n_labels, images.prepare)
