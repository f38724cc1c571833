"""Walks a trained run again in another system: gives the times there, and the results of training that still hold.

Two walks go side by side, in the system where the run was trained and in the other. Both trace how the result of every
operation is computed (`Provenance`). As long as the operations of both have equal lineages, the other system gives
the same numbers to the bit. From the first round on in which they differ, it would have to be trained. Each walk ends
where the training would end by its rules (`train.stop`), which may ask for the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.stopping import SAYS_SO, Stopping
from sfl_sim.engine.walk import Round
from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.scores import SCORES, VALIDATION
from sfl_sim.ops import SERVER, On, State, Value
from sfl_sim.scenario.sections import Scenario, TrainSection
from sfl_sim.sim.nodes import client_of
from sfl_sim.store.files import read_manifest
from sfl_sim.store.places import NOBODY
from sfl_sim.store.reading import read_table
from sfl_sim.store.schema import tables
from sfl_sim.studies.trained import TrainedRun
from sfl_sim.training.replay import states_in

KEY = {"variant": "name", "seed": "seed"}
"""Columns that identify a trial's rows, and the keys of a summary with the same values."""


def records_of(run: TrainedRun) -> dict[tuple[str, int], Recorded]:
    """Return the record of each variant and seed of a run that have finished a round.

    Raises ScenarioError if the run was not trained in its own system, or not trained at all.
    """
    manifest = read_manifest(run.folder)
    if source := manifest.get("repriced_from"):
        problem = "was repriced itself; take the run that was trained"
        raise ScenarioError(problem, key="run", found=str(run.folder), allowed=source["folder"])
    if manifest.get("timing_only"):
        problem = "was timing-only, so that nothing learned can hold; time its scenario in the other system"
        raise ScenarioError(problem, key="run", found=str(run.folder))
    return {trial: Recorded(run.folder, summary) for trial, summary in run.summaries.items()}


class Recorded:
    """The record that a run has stored of a variant with a seed.

    Attributes:
        rounds, labels, reads: its rows of those tables.
        summary: its part of summary.json.
    """

    def __init__(self, run: Path, summary: Mapping[str, Any]) -> None:
        self.run = run
        self.summary = summary

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Rows of rounds.parquet, without empty columns."""
        return self._table("rounds").dropna(axis="columns", how="all")

    @cached_property
    def labels(self) -> pd.DataFrame:
        """Rows of labels.parquet; none of a timing-only run."""
        return self._table("labels")

    @cached_property
    def reads(self) -> pd.DataFrame:
        """Rows of reads.parquet; none if flows read nothing or it was not recorded."""
        return self._table("reads")

    def _table(self, name: str) -> pd.DataFrame:
        trial = {key: self.summary[of] for key, of in KEY.items()}
        return read_table(self.run, tables("run")[name], **trial).drop(columns=list(KEY))

    def unwalkable(self, why: str) -> Unwalkable:
        """Make the error that it cannot be walked again."""
        problem = f"{self.summary['name']} (seed {self.summary['seed']}) cannot be walked again: {why}"
        return Unwalkable(problem, key="run", found=str(self.run))


class Unwalkable(ScenarioError):
    """The record does not suffice, or does not fit, to walk the scenario again."""


class NotRecorded(Exception):
    """A flow asks for a result of training that the recorded run did not store."""


class _Ending(Stopping):
    """Ends a walk as the training would have ended with the walk's times and the recorded accuracies.

    A user's own function cannot be asked again: the walk ends after as many rounds as the training that it ended.
    """

    def __init__(self, train: TrainSection, recorded: Recorded) -> None:
        super().__init__(train.model_copy(update={"on_round_end": None}))
        by_round = recorded.rounds.set_index("round").filter([*SCORES, VALIDATION])
        self._scores: dict[Any, dict[Any, Any]] = by_round.astype(object).where(by_round.notna(), None).to_dict("index")
        self._said_so = recorded.summary["rounds"] if recorded.summary["stopped"] == SAYS_SO else None

    def why(
        self, round: Round, experiment: object, next_begins_s: Callable[[], float], *, is_new: bool = True
    ) -> str | None:
        number = round.row["round"]
        reason = self._by_rules({**round.row, **self._scores.get(number, {})}, next_begins_s)
        return SAYS_SO if number == self._said_so else reason


class TracedRounds:
    """Rounds of a recorded training, walked in the system of `scenario`, with the lineage of every operation.

    Args:
        read: gives the number in a value of some lineage.
    """

    def __init__(self, scenario: Scenario, recorded: Recorded, read: Callable[[bytes], float]) -> None:
        self.provenance = Provenance(read)
        train = scenario.train.model_copy(update={"stop": None, "on_round_end": None})
        self.experiment = Experiment(scenario.model_copy(update={"train": train}), None, self.provenance)
        if "stopped" in recorded.summary:
            self.experiment.stopping = _Ending(scenario.train, recorded)
        self.provenance.draws = scenario.model.factory is not None and self.experiment.method.task.network.draws

    def __iter__(self) -> Iterator[tuple[Round, list[TracedOperation]]]:
        """Walk round by round; gives each and its operations with their lineages."""
        for round in self.experiment.rounds():
            yield round, self.provenance.take()


class Retracing:
    """A recorded trial in another system.

    Args:
        recorded: its record.
        scenario: its scenario.
        elsewhere: the same scenario in the other system.

    Attributes:
        experiment: the experiment in the other system.
        reason: why it would have to be trained, as far as it has been walked; None if all results of training hold.
        valid_rounds: number of rounds before the first one that would have to be trained.
        stopped: why training ends early there, as far as it has been walked; None if it does not.

    Raises ScenarioError if the scenario in the other system cannot be used.
    """

    def __init__(self, recorded: Recorded, scenario: Scenario, elsewhere: Scenario) -> None:
        self.recorded = recorded
        self.reason: str | None = None
        self.valid_rounds = 0
        self.stopped: str | None = None
        self._numbers: dict[bytes, float] = {}
        self._unread = iter(recorded.reads.get("value", ()))
        self._own_walk = TracedRounds(scenario, recorded, self._as_recorded)
        self._other_walk = TracedRounds(elsewhere, recorded, self._as_known)
        self.experiment = self._other_walk.experiment

    def rounds(self) -> Iterator[Round]:
        """Generate the recorded rounds, with the results of training as long as they hold.

        They end before a round in which a flow reads a number that only training can give, and after the round that
        would be the last there.

        Raises Unwalkable, at the latest after the last round, if this code does not reproduce the recorded timeline.
        """
        is_known, others = True, iter(self._other_walk)
        for row, (recorded, theirs) in zip(_records(self.recorded.rounds), self._own_walk, strict=False):
            if is_known and not self.stopped:
                try:
                    other, ours = next(others)
                except NotRecorded:
                    is_known = False
                    why = self.reason or difference(row["round"], theirs, self._other_walk.provenance.take())
                    self.reason = f"{why}; round {row['round']} depends on a number that only training can tell"
                else:
                    self.stopped = other.stopped
                    why = difference(row["round"], theirs, ours)
                    if why and bool(recorded.stopped) != bool(other.stopped):  # the last round has the work of `finish`
                        why = f"round {row['round']}: training would {'end' if other.stopped else 'go on'}"
                    self.reason = self.reason or why
                    yield self._completed(other, recorded, row)
        if self._own_walk.experiment.timeline_digest != self.recorded.summary["timeline_digest"]:
            raise self.recorded.unwalkable("it was made by other code or from other data")
        n, experiment = len(self.recorded.rounds), self.experiment
        if self.recorded.summary.get("stopped") and not self.stopped and n < experiment.scenario.train.rounds:
            self.reason = self.reason or f"round {n + 1}: training would go on"

    def _as_recorded(self, lineage: bytes) -> float:
        number = next(self._unread, None)
        if number is None:
            raise self.recorded.unwalkable("what its method read was not recorded")
        self._numbers[lineage] = float(number)
        return self._numbers[lineage]

    def _as_known(self, lineage: bytes) -> float:
        if lineage not in self._numbers:
            raise NotRecorded
        return self._numbers[lineage]

    def _completed(self, other: Round, recorded: Round, stored: Mapping[str, Any]) -> Round:
        """Complete a round with the recorded results of training, as far as they hold."""
        learned = {key: value for key, value in stored.items() if recorded.row.get(key) is None}
        if self.reason is not None:
            return replace(other, row={**other.row, **dict.fromkeys(learned)})
        self.valid_rounds += 1
        labels = self.recorded.labels
        own = labels[labels["round"] == stored["round"]] if len(labels) else labels
        return replace(other, row={**other.row, **learned}, labels=_records(own))


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return table.to_dict("records")  # type: ignore[return-value]


def difference(number: int, theirs: Sequence[TracedOperation], ours: Sequence[TracedOperation]) -> str | None:
    """Return why the operations of round `number` differ from the recorded training; None if they do not."""
    known = Counter(op.lineage for op in theirs)
    if known == Counter(op.lineage for op in ours):
        return None
    first = next((op for op in ours if op.lineage not in known), None)
    if first is None:
        return f"round {number}: some of what was trained would not take place"
    client = client_of(first.op)
    served = [other for op in theirs if op.before == first.before and (other := client_of(op.op)) != NOBODY]
    if first.op.node == SERVER and client != NOBODY and served and client not in served:
        return f"round {number}: client {client} would be served before client {served[0]}"
    whose = f" of client {client}" if client != NOBODY else ""
    return f"round {number}: {first.op.step.name}{whose} would not be the same"


class TracedOperation(NamedTuple):
    """An operation with its lineage.

    Attributes:
        lineage: lineage of its result.
        before: lineage of the state that it waited for, before the operation.
        op: the operation.
    """

    lineage: bytes
    before: object
    op: On


class Provenance:
    """Gives every value its lineage as its content, and keeps one for every state.

    A lineage is a digest of the step with its settings, the node, and the lineages of all arguments and states of the
    step. So operations of equal lineage give equal numbers, whenever they run: two walks with the same lineages train
    the same models. Steps are assumed to touch only their arguments and states.

    Args:
        read: gives the number in a value of a lineage.

    Attributes:
        draws: True if steps draw from one stream of random numbers, so that each depends on all steps before it.
    """

    name = "lineage"
    computes = True  # it asks every operation in its order

    def __init__(self, read: Callable[[bytes], float]) -> None:
        self._read = read
        self.draws = False
        self._drawn = b""
        self._states: dict[State, object] = {}
        self._operations: list[TracedOperation] = []

    def run(self, op: On) -> bytes:
        """Give the lineage of the operation's result."""
        step = type(op.step).__qualname__, getattr(op.step, "__dict__", None)
        before = self._of(op.state.guard)
        lineage = _digest(step, op.node, self._identity(op.state), self._identity(op.args), self._drawn)
        if self.draws:
            self._drawn = lineage
        for number, state in enumerate(states_in(op.state)):
            self._states[state] = lineage, number
        self._operations.append(TracedOperation(lineage, before, op))
        return lineage

    def snapshot(self, payload: Value) -> Value:
        """Give a copy of the same lineage if the payload can change, itself if not."""
        copy = payload.snapshot()
        if isinstance(payload, State):
            origin = repr(payload), self._identity(payload)
            for number, state in enumerate(states_in(copy)):
                self._states[state] = _digest(origin, number)
        return copy

    def read(self, value: Value) -> float:
        """Give the number that training has produced, by `read`."""
        return self._read(value.content)

    def finish(self) -> None:
        """Finish a round: a no-op."""

    def take(self) -> list[TracedOperation]:
        """Give the operations since the last call, in the order of their start."""
        operations, self._operations = self._operations, []
        return operations

    def _of(self, state: State) -> object:
        """Give a state's lineage; an initial state has its size, since initial numbers are the same every time."""
        if state not in self._states:
            self._states[state] = repr(state)
        return self._states[state]

    def _identity(self, arg: Any) -> Any:
        """Describe an argument so that equal descriptions mean equal numbers."""
        if isinstance(arg, State):
            return [self._of(state) for state in states_in(arg)]
        if isinstance(arg, Value):
            return arg, arg.maker, arg.content, [self._identity(member) for member in arg.made_of]
        if isinstance(arg, Mapping):
            return [(key, self._identity(value)) for key, value in arg.items()]
        if isinstance(arg, list | tuple):
            return [self._identity(member) for member in arg]
        return arg


def _digest(*parts: Any) -> bytes:
    return blake2b(repr(parts).encode(), digest_size=16).digest()
