"""The composition root: an experiment put together out of a scenario, and its rounds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from sfl_sim.data.partition import check_none_empty, cyclic_clients, label_counts, label_order
from sfl_sim.engine.build import build_executor, build_method, build_simulator, build_world
from sfl_sim.engine.checkpointing import Learned, Past
from sfl_sim.engine.dealing import deal_data, deal_tests
from sfl_sim.engine.evaluation import client_answers, shown_representations
from sfl_sim.engine.layer_table import layer_table
from sfl_sim.engine.participation import Participation, check_survival
from sfl_sim.engine.round_tables import client_table, label_rows, learned, round_row
from sfl_sim.engine.snapshots import Snapshots, check_snapshots
from sfl_sim.errors import ScenarioError
from sfl_sim.metrics import exits
from sfl_sim.metrics.energy import client_joule, op_joule
from sfl_sim.models.graphs import Graphs
from sfl_sim.models.on_nan import OnNan
from sfl_sim.rng import stream
from sfl_sim.scenario.presets import expand
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.clock import Simulator
from sfl_sim.sim.fast_path import FastPath
from sfl_sim.sim.orders import ORDERS
from sfl_sim.training.alternatives import Model, replicas_by_name
from sfl_sim.training.eager import Eager
from sfl_sim.training.evaluate import Evaluation, evaluate
from sfl_sim.training.hardware import check_compiler
from sfl_sim.training.precision import check_precision
from sfl_sim.training.provenance import Provenance
from sfl_sim.training.replay import Replay
from sfl_sim.training.timing import Timing


@dataclass(frozen=True)
class Round:
    """What one round gave: its row of rounds.parquet, rows of labels.parquet, operations (`OP_DTYPE`), rows of
    confusion.parquet, if the scenario asks for any, with the last round tables by name of what is known of the trained
    models, and what each operation has cost its client's battery, if that is known."""

    row: Mapping[str, Any]
    labels: list[dict[str, Any]]
    ops: NDArray[np.void]
    confusion: pd.DataFrame | None = None
    final: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    joule: NDArray[np.float64] | None = None


class Experiment:
    """One variant with one seed, ready to run.

    Args:
        scenario: without grid; `repeats` is ignored.
        device: where steps run; None for a timing-only run.
        lineage: carries out the operations of a run that is walked again, without a device.

    Raises ScenarioError for whatever in the scenario cannot be used, before any training.
    """

    def __init__(self, scenario: Scenario, device: torch.device | None, lineage: Provenance | None = None) -> None:
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
        self.method = build_method(scenario, dataset, self.shares, self.counts, self.fleet, device)
        check_snapshots(scenario, self.method)
        check_survival(scenario, self.method)
        self.snapshots = self._snapshots()
        executor = lineage or build_executor(scenario.train, device, self.on_nan)
        self.executor = self.snapshots.executor if self.snapshots else executor
        self.memory: Replay | None = None
        """What is alive of all that training has made; None in a timing-only run."""
        if device is not None and isinstance(self.executor, Eager):
            self.memory = Replay(self.executor)
        self.simulator = build_simulator(scenario, self.fleet, self.memory or self.executor, self.counts)
        self.foresight = FastPath(self.simulator)
        self.attendance = Participation(
            self.simulator, self.cyclic, scenario.clients.participation, scenario.seed,
            is_kept=scenario.clients.availability is not None,
        )  # fmt: skip
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

    def rounds(self, past: Past | None = None) -> Iterator[Round]:
        """Run the rounds one by one; what is `past` is walked again, without computing.

        Raises CheckpointMismatch if that is not this experiment's.
        """
        if past and self.memory:
            self.memory.walk(past.image)
            self.graphs.peak, self.on_nan.left_out = past.peak_graphs, past.left_out
        for number in range(1, self.scenario.train.rounds + 1):
            known = past.rounds[number - 1] if past and number <= len(past.rounds) else None
            round = self._round(number, known)
            if past:
                past.check(number, self.timeline_digest)
            yield round

    def _round(self, number: int, known: Learned | None) -> Round:
        """One round; what is `known` of it is not learned again."""
        if self.memory:
            self.memory.remember(replicas_by_name(self._model).values())
        clients = self.begin_round(number)
        held = self.method.server_bytes(clients)
        self.server_model_bytes = None if held is None else max(held, self.server_model_bytes or 0)
        if self.snapshots and not known:
            self.snapshots.begin(number, clients)
        started_s = self.simulator.now_s
        self.run_round(number, clients)
        ops = self.simulator.take_rows()
        row = self._row(number, self.method.took_part(clients), started_s, ops)
        labels: list[dict[str, Any]] = []
        tables: dict[str, pd.DataFrame] = {}
        confusion = self.snapshots.take() if self.snapshots else None
        if known:
            row, labels, confusion = dict(known.row), known.labels, known.confusion
        elif self.device is not None:
            figures, labels, tables = self._learn(number)
            row |= figures
        if self.device is not None:
            self._model = [part.snapshot() for part in self.method.model()]
        reads = enumerate(self.simulator.take_reads())
        self._reads += [{"round": number, "number": i, "value": value} for i, value in reads]
        self._timeline.update(ops.tobytes())
        power = self.fleet.power
        joule = None if power is None else op_joule(ops, power, self.fleet.presence)
        return Round(row, labels, ops, confusion, tables, joule)

    def _row(self, number: int, clients: Sequence[int], started_s: float, ops: NDArray[np.void]) -> dict[str, Any]:
        """What the clock alone can tell of a round that has ended."""
        ended_s, power = self.simulator.now_s, self.fleet.power
        row = round_row(number, clients, started_s, ended_s, ops)
        if power is not None and self.joule is not None:
            joule = client_joule(ops, power, clients, started_s, ended_s, self.fleet.presence)
            self.joule += joule
            row["client_joule"] = joule.sum() / len(clients)
        return {**row, **self.attendance.end(ops), **self.method.figures()}

    def _learn(self, number: int) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, pd.DataFrame]]:
        """What only training can tell of a round: figures for its row, rows of labels, and tables with the last."""
        found = self._evaluate(self.method.model())
        figures, tables = self._ask(number)
        skipped = {"skipped": self.on_nan.take()} if self.on_nan.skips else {}
        labels = label_rows(number, found, self.dataset.label_names, self.label_order)
        return {**learned(found, self.test_sets), **figures, **skipped}, labels, tables

    def histories(self) -> dict[str, pd.DataFrame]:
        """Tables of the whole run so far by name: what flows have read, who was there, and who got lost."""
        tables = self.attendance.tables()
        if self._reads:
            tables["reads"] = pd.DataFrame(self._reads)
        return tables

    def begin_round(self, number: int) -> list[int]:
        """Who takes part in it, in cyclic order."""
        return list(self.method.choose(number, self.attendance.begin(number)))

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
            self.simulator.run(self.method.setup(), number, in_round=False)
        if isinstance(self.executor, Timing) and self.method.regular and not self.method.task.round_cuts:
            self.foresight.run(lambda: self.method.round(number, clients), number, like=tuple(clients))
        else:
            self.simulator.run(self.method.round(number, clients), number)
        if number == self.scenario.train.rounds:
            self.simulator.run(self.method.finish(), number, in_round=False)
        if isinstance(self.executor, Eager):
            self.executor.finish()

    @property
    def is_walking(self) -> bool:
        """Whether it has yet to come to where an earlier run was."""
        return self.memory is not None and self.memory.is_walking

    def figures(self) -> dict[str, Any]:
        """What a run that goes on from here has to know, beside what is in memory."""
        left_out = self.on_nan.left_out
        return {"timeline_digest": self.timeline_digest, "peak_graphs": self.graphs.peak, "left_out": left_out}

    @property
    def on_nan(self) -> OnNan:
        """What becomes of numbers that are not finite."""
        return self.method.task.network.calling.on_nan

    @property
    def graphs(self) -> Graphs:
        """Who holds activations."""
        return self.method.task.network.calling.graphs

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

    def participants(self, round: int) -> list[int]:
        """The round's clients in cyclic order, where everybody is always there."""
        return self.attendance.drawn(round, self.cyclic)

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
                Simulator(self.fleet, Eager(self.on_nan), ORDERS["fcfs"]).run(
                    self.method.finish(), number, in_round=False
                )
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
