"""Experiment: one variant with one seed, built from a scenario, run round by round, and evaluated after each round."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from sfl_sim.build.checks import check_rounds
from sfl_sim.build.clock import build_clock, build_executor
from sfl_sim.build.layer_table import layer_table
from sfl_sim.build.network import check_can_train
from sfl_sim.build.optimisation import largest_batch
from sfl_sim.build.setup import Setup, setup_of
from sfl_sim.engine.checkpointing import ResumePoint, StoredRound
from sfl_sim.engine.choices import Utility
from sfl_sim.engine.evaluation import Evaluator, Snapshots, check_snapshots, own_metrics
from sfl_sim.engine.leakage import Meter, check_leakage
from sfl_sim.engine.participation import check_participation
from sfl_sim.engine.round_tables import ServerTable, client_table, round_row
from sfl_sim.engine.stopping import Stopping
from sfl_sim.engine.walk import Round, Walk, WalkedRound, joined
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import Method
from sfl_sim.models.forward_settings import Graphs
from sfl_sim.models.global_draws import seed_all
from sfl_sim.models.layers import given_name
from sfl_sim.models.lora import adapter_slots
from sfl_sim.models.on_nan import OnNan
from sfl_sim.ops import On, State, Value
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.operations import Executor
from sfl_sim.system.presence import Presence
from sfl_sim.training.alternatives import Model, replicas_by_name
from sfl_sim.training.executors import Eager
from sfl_sim.training.hardware import check_precision
from sfl_sim.training.replay import Replay


@dataclass(frozen=True)
class Elsewhere:
    """Where steps run, if not in this process, and how long they take there.

    Attributes:
        executor: of the clock's operations.
        presence: of the clients, which changes when one of them goes away.
        clock: settings of the `EventClock`.
        contents: for as long as it is entered, the contents of states are here, to be evaluated.
        tables: what was measured.
    """

    executor: Executor
    presence: Sequence[Presence]
    clock: Mapping[str, Any]
    contents: Callable[[], AbstractContextManager[None]]
    tables: Callable[[], dict[str, pd.DataFrame]]


class Experiment:
    """A variant with a seed, ready to run.

    Args:
        scenario: without grid; `repeats` is ignored.
        device: device on which steps run; None for a timing-only run.
        executor: another one than the scenario's, such as that of a recorded run that is walked again without a device
            (`studies/retrace.py`).
        elsewhere: where steps run; None: in this process.
        setup: of the scenario, if it is another one than `setup_of` gives.

    Attributes:
        setup: data, clients and system; `scenario`, `dataset`, `shares`, `counts` and `fleet` are its.
        walk: the rounds of its method, in the scenario's own system.
        memory: remembers the values that are alive in training, for checkpoints; None in a timing-only run.
        meter: attacks what crosses the cut; None in a timing-only run and if the scenario asks for no attacks.
        server_model_bytes: maximum of the bytes of models that the main server has held at once; None if the method
            does not say.
        joule: (C,) energy that each client's battery has spent in whole rounds; None if the power is unknown.
        stopping: decides after each round whether training ends early; None if nothing asks for that.

    Raises ScenarioError if the scenario cannot be used, before any training.
    """

    def __init__(
        self,
        scenario: Scenario,
        device: torch.device | None,
        executor: Executor | None = None,
        elsewhere: Elsewhere | None = None,
        setup: Setup | None = None,
    ) -> None:
        self.device = device
        check_can_train(scenario.model, device)
        self.setup = setup = setup or setup_of(scenario, pixels=device is not None)
        self.scenario = scenario = setup.scenario
        self.dataset, self.shares, self.counts, self.fleet = setup.dataset, setup.shares, setup.counts, setup.fleet
        train, method = scenario.train, setup.method(device)
        check_snapshots(scenario, method)
        keep = scenario.report.keep
        check_rounds(scenario, "report.keep", [keep] if isinstance(keep, int) else [])
        if keep == "best" and scenario.data.validation is None:
            problem = "is not chosen by the test set; set samples aside: data.validation, such as {share: 0.1}"
            raise ScenarioError(problem, key="report.keep", found=keep)
        check_leakage(scenario, method)
        check_participation(scenario, method, len(setup.shares))
        metrics = own_metrics(scenario)
        self.stopping = Stopping(train) if train.stop or train.on_round_end else None
        self.elsewhere = elsewhere
        self.executor = executor or (elsewhere.executor if elsewhere else build_executor(train, device))
        self.memory: Replay | None = None
        if device is not None and isinstance(self.executor, Eager):
            self.memory = Replay(self.executor)
        world = replace(self.fleet, presence=elsewhere.presence) if elsewhere else self.fleet
        settings = elsewhere.clock if elsewhere else {}
        clock = build_clock(scenario, world, self.memory or self.executor, self.counts, **settings)
        self.walk = Walk(setup, method, clock)
        if device is not None or executor:
            self.walk.participation.utility_of = self._utility
        self.server_model_bytes: int | None = 0
        self.joule = None if self.fleet.power is None else np.zeros(len(self.shares))
        self._servers = ServerTable(self.fleet, clock.events.queues) if self.fleet.tiers else None
        self._model: Model = []
        self._reads: list[dict[str, float]] = []
        self._timeline = hashlib.blake2b(digest_size=16)
        self.meter: Meter | None = None
        if device is not None:
            seed_all(scenario.seed)  # for code of a user's own that draws while it runs
            self.evaluator = Evaluator(setup, method, metrics=metrics, on_nan=self.on_nan, device=device)
            if scenario.report.leakage and method.is_split:
                self.meter = Meter(setup, method)

    def _utility(self, client: int) -> float:
        """Give how much a client's samples can still teach the global model (`Utility`), as a number that is read."""
        events, value = self.walk.clock.events, Value("utility")
        step = Utility(lambda: self.evaluator.losses(client))
        model = replicas_by_name(self.method.model()).values()
        value.content = events.executor.run(On(client, step, State("utility"), *model))
        number = events.executor.read(value)
        assert number is not None
        events.records.reads.append(number)
        return number

    @property
    def method(self) -> Method:
        """The method that runs."""
        return self.walk.method

    def rounds(self, resume: ResumePoint | None = None) -> Iterator[Round]:
        """Run the rounds one by one; the rounds before the point `resume` are walked again without computing.

        Raises CheckpointMismatch if `resume` does not belong to this experiment.
        """
        n_known = len(resume.rounds) if resume else 0
        if resume and self.memory:
            self.memory.walk(resume.image)
            self.graphs.peak = resume.peak_graphs
        self.walk.on_begin.append(self._begin)
        snapshots = self._snapshots(n_known)
        for walked in self.walk.rounds():
            stored = resume.rounds[walked.number - 1] if resume and walked.number <= n_known else None
            with self._whole_or_not_at_all(), self.elsewhere.contents() if self.elsewhere else nullcontext():
                round = self._round(walked, stored, snapshots.take() if snapshots else None)
                if resume:
                    resume.check(walked.number, self.timeline_digest)
                if self.stopping:
                    next_begins_s = self.walk.participation.begins_s
                    stopped = self.stopping.why(round, self, next_begins_s, is_new=stored is None)
                    if stopped and walked.number < self.scenario.train.rounds:
                        round = self._finished(walked, round)
                    round = replace(round, stopped=stopped)
            yield round
            if round.stopped:
                return

    @contextmanager
    def _whole_or_not_at_all(self) -> Iterator[None]:
        """Count a round that fails or is interrupted before its results are whole as if it had not taken place."""
        timeline, model, n_reads, joule = self._timeline.copy(), self._model, len(self._reads), copy(self.joule)
        try:
            yield
        except BaseException:
            self._timeline, self._model, self.joule = timeline, model, joule
            del self._reads[n_reads:]
            raise

    def _snapshots(self, n_known: int) -> Snapshots | None:
        """Make the snapshots of the rounds after the first `n_known`, if the scenario asks for any."""
        if self.device is None or self.scenario.report.snapshots is None:
            return None
        clock = self.walk.clock
        snapshots = Snapshots(self.scenario, self.method, self.evaluator.of_model, clock, after=n_known)
        self.walk.on_begin.append(snapshots.begin)
        clock.events.after_job.append(snapshots.after_job)
        return snapshots

    def _begin(self, number: int, clients: Sequence[int]) -> None:
        """Note the global model and the server's model bytes at the beginning of a round."""
        if self.memory:
            self.memory.remember(replicas_by_name(self._model).values())
        if self._servers:
            self._servers.hold(self.method.held_bytes(clients))
        held_bytes = self.method.server_bytes(clients)
        self.server_model_bytes = None if held_bytes is None else max(held_bytes, self.server_model_bytes or 0)

    def _round(self, walked: WalkedRound, stored: StoredRound | None, confusion: pd.DataFrame | None) -> Round:
        """Give the results of a round; its model is not evaluated again if the results are `stored`."""
        row = self._row(walked)
        labels: list[dict[str, Any]] = []
        tables: dict[str, pd.DataFrame] = {}
        leakage: pd.DataFrame | None = None
        if stored:
            row, labels, confusion, leakage = dict(stored.row), stored.labels, stored.confusion, stored.leakage
        elif self.device is not None:
            figures, labels, tables = self.evaluator.of_round(walked.number)
            row |= figures
            leakage = self._attacked(walked.number, walked.number == self.scenario.train.rounds, tables)
        if self.device is not None:
            self._model = [part.snapshot() for part in self.method.model()]
        reads = enumerate(self.walk.clock.events.records.take_reads())
        self._reads += [{"round": walked.number, "number": i, "value": value} for i, value in reads]
        self._timeline.update(walked.ops.tobytes())
        if self._servers:
            self._servers.add(walked.ops, walked.ended_s)
        joule, clients, cuts = walked.op_joule(self.fleet), walked.clients, self.method.client_cuts(walked.clients)
        return Round(
            row,
            labels,
            walked.ops,
            confusion=confusion,
            leakage=leakage,
            final=tables,
            joule=joule,
            clients=clients,
            cuts=cuts,
        )

    def _attacked(self, number: int, is_last: bool, tables: dict[str, pd.DataFrame]) -> pd.DataFrame | None:
        """Give the rows of leakage.parquet of a round that has them; after the last one, `tables` get its pictures."""
        if self.meter is None or not (is_last or number in self.meter.wanted.rounds):
            return None
        leakage, reconstructions = self.meter.measure(number)
        if is_last:
            tables["reconstructions"] = reconstructions
        return leakage

    def _finished(self, walked: WalkedRound, round: Round) -> Round:
        """Complete a round that turned out to be the last one with what follows the last one."""
        finish = self.walk.finish(walked.number)._replace(clients=walked.clients)
        whole = joined([*(walked.parts or [walked]), finish])
        row = dict(round.row) | {column: value for column, value in round_row(whole).items() if value is not None}
        tables: dict[str, pd.DataFrame] = {}
        leakage: pd.DataFrame | None = None
        if self.device is not None:
            figures, tables = self.evaluator.of_clients(walked.number, is_last=True)
            row |= figures
            leakage = self._attacked(walked.number, is_last=True, tables=tables)
            self._model = [part.snapshot() for part in self.method.model()]
        self._timeline.update(finish.ops.tobytes())
        if (joule := self._spend(finish)) is not None:
            row["client_joule"] += joule
        return replace(round, row=row, ops=whole.ops, leakage=leakage, final=tables, joule=whole.op_joule(self.fleet))

    def _row(self, walked: WalkedRound) -> dict[str, Any]:
        """Make the columns of a finished round's row that need the clock alone."""
        lost = self.walk.participation.end(walked.clients, walked.own_ops)
        between = {"bytes_backbone": 0} if self.fleet.tiers else {}
        return {**between, **round_row(walked), "client_joule": self._spend(walked), **lost, **self.method.figures()}

    def _spend(self, walked: WalkedRound) -> float | None:
        """Add what it takes from the batteries to `joule`; gives the mean of the participants, None if unknown."""
        joule = walked.client_joule(self.fleet)
        if joule is None or self.joule is None:
            return None
        self.joule += joule
        return float(joule.sum() / len(walked.clients))

    def histories(self) -> dict[str, pd.DataFrame]:
        """Give the tables of the whole run so far by name: reads of flows, presence and losses of clients."""
        tables = self.walk.participation.tables() | (self.elsewhere.tables() if self.elsewhere else {})
        if self._servers:
            tables["servers"] = self._servers.table()
        if self._reads:
            tables["reads"] = pd.DataFrame(self._reads)
        return tables

    def check_device(self, device: torch.device) -> None:
        """Check that `device` can compute the scenario, and no slower; otherwise raises ScenarioError."""
        train = self.scenario.train
        network, has_gradients = self.method.task.network, self.method.keeps_graphs
        check_precision(train.precision, device, network, largest_batch(train), has_gradients)

    @property
    def is_walking(self) -> bool:
        """True until the run has reached its resume point."""
        return self.memory is not None and self.memory.is_walking

    def figures(self) -> dict[str, Any]:
        """Give the figures of a checkpoint, beside the contents of memory."""
        return {"timeline_digest": self.timeline_digest, "peak_graphs": self.graphs.peak}

    @property
    def on_nan(self) -> OnNan:
        """Rule of a training run for losses that are not finite."""
        return self.executor.on_nan if isinstance(self.executor, Eager) else OnNan()

    @property
    def graphs(self) -> Graphs:
        """Count of the graphs of activations that are held."""
        return self.method.task.network.forward_settings.graphs

    @property
    def batch_macs(self) -> float:
        """MACs of one mini-batch's forward pass through the whole network."""
        return self.method.task.network.macs * largest_batch(self.scenario.train)

    @property
    def timeline_digest(self) -> str:
        """Digest of all operations of whole rounds and their times; equal scenarios have equal ones, trained or not."""
        return self._timeline.copy().hexdigest()

    def weights(self) -> dict[str, NDArray[Any]]:
        """Give the global model after the last whole round, by part and the name in the user's model, contiguous."""
        return {
            f"{part}.{given_name(replica.weights.part.skeleton, name)}": tensor.contiguous().cpu().numpy()
            for part, replica in replicas_by_name(self._model).items()
            for name, tensor in replica.weights.named_tensors()
        }

    def replicas(self) -> list[str]:
        """Give the names before those of the weights: part1, part2, ..., and part1.client3 for what a client keeps."""
        return [*replicas_by_name(self._model)]

    def adapters(self) -> dict[str, list[dict[str, Any]]]:
        """Give, for every weight with adapters, the name before their factors' A and B, their rows and their scale."""
        adapters: dict[str, list[dict[str, Any]]] = {}
        for part, replica in replicas_by_name(self._model).items():
            skeleton = replica.weights.part.skeleton
            for slot in adapter_slots(skeleton):
                weight, factor = (f"{part}.{given_name(skeleton, name)}" for name in (slot.weight, slot.a))
                first = slot.adapter.rows.start or 0
                rows, scale = [first, first + slot.adapter.shape[0]], slot.adapter.scale
                about = {"name": factor.removesuffix(".A"), "rows": rows, "scale": scale}
                adapters.setdefault(weight, []).append(about)
        return adapters

    def weights_digest(self) -> str | None:
        """Compute a digest of the global model's weights after the last whole round; None in a timing-only run."""
        if self.device is None:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for name, values in self.weights().items():
            digest.update(name.encode())
            digest.update(values.tobytes())
        return digest.hexdigest()

    def clients(self) -> pd.DataFrame:
        """Make a table of the clients: device, rates, samples, dominant label, and the last layer that each holds."""
        method, task = self.method, self.method.task
        changes = task.round_cuts or (method.looks_at_times and len(method.cuts) > 1)
        return client_table(self.fleet, self.counts, () if changes else task.cuts).assign(joule=self.joule)

    def layers(self) -> pd.DataFrame:
        """Make a table of the model's layers: costs, and whether a cut after the layer is Pareto-optimal."""
        table = layer_table(self.method.task.network)
        return table.assign(model=self.scenario.model.name or self.scenario.model.factory)
