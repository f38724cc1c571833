"""Advice on where to cut a model: the cut for all clients, or one for each, with the shortest rounds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from sfl_sim.build.checks import check_effects, check_unused
from sfl_sim.errors import ScenarioError
from sfl_sim.models.network import Network
from sfl_sim.report.display import duration, plural
from sfl_sim.runs.news import Counted, Notify
from sfl_sim.scenario.concerns import Aside, differences
from sfl_sim.scenario.grid import points
from sfl_sim.scenario.load import Study, training
from sfl_sim.scenario.sections import ClientCuts, Scenario
from sfl_sim.store.trial import is_whole
from sfl_sim.studies.cut_assignment import Bound, Columns, Heuristic, Tried, exhaustive
from sfl_sim.studies.cut_trials import Cuts, CutTrial
from sfl_sim.studies.trained import NOT_TRAINING, TrainedRun
from sfl_sim.studies.walk import memory_bytes

MEMORY, ACCURACY, RUN = "--memory", "--accuracy", "--run"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_ASIDE: Aside = {*NOT_TRAINING, "seed", "model.cut"}
"""Keys in which a recorded run may differ from the scenario whose accuracy it shows."""


def read_bytes(text: str) -> int:
    """Return the bytes of 256MB, 1.5GB or 64000, with decimal units.

    Raises ScenarioError for anything else.
    """
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS or not float(match[1]):
        raise ScenarioError("is no size of a memory", file=MEMORY, found=text, allowed="such as 256MB, 1.5GB or 64000")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def check_accuracy(accuracy: float | None, runs: Sequence[Path]) -> None:
    """Check that the accuracy is a share, and that runs are given with it and not without it; or ScenarioError."""
    if accuracy is None and runs:
        raise ScenarioError("says nothing without an accuracy to reach: --accuracy 0.6", file=RUN, found=str(runs[0]))
    if accuracy is not None and not 0 < accuracy <= 1:
        raise ScenarioError("is a share of the test samples", file=ACCURACY, found=accuracy, allowed="above 0, up to 1")
    if accuracy is not None and not runs:
        raise ScenarioError("needs runs that tell what each cut reaches: --run FOLDER", file=ACCURACY, found=accuracy)


def recorded_accuracy(scenario: Scenario, network: Network, runs: Sequence[Path]) -> dict[int, float]:
    """Return the recorded final accuracy of `scenario` by the cut of all clients: median over seeds.

    System and seed may differ; variants whose cuts differ between clients or rounds do not count.

    Args:
        runs: folders of the runs.

    Raises ScenarioError if a folder contains no run, or if none has trained this scenario.
    """
    found: dict[int, list[float]] = {}
    nearest: dict[str, tuple[Any, Any]] | None = None
    for run in map(TrainedRun, runs):
        for variant in run.variants:
            cut, summary = variant.scenario.model.cut, run.summary_of(variant)
            differ = differences(_cut_at_1(variant.scenario), _cut_at_1(scenario), _ASIDE)
            if nearest is None or len(differ) < len(nearest):
                nearest = differ
            if differ or isinstance(cut, ClientCuts) or summary is None:
                continue
            if summary["accuracy"] is not None and is_whole(summary, variant.scenario.train.rounds):
                found.setdefault(network.cut_at(cut), []).append(summary["accuracy"])
    if nearest:
        key, (there, wanted) = next(iter(nearest.items()))
        problem = (
            f"{', '.join(map(str, runs))}: nothing was trained as the scenario says; what is nearest has {there!r}"
        )
        raise ScenarioError(problem, key=key, found=wanted)
    if not found:
        raise ScenarioError("has no accuracy of a cut that all clients share", file=RUN, found=str(runs[0]))
    return {cut: median(accuracies) for cut, accuracies in found.items()}


def _cut_at_1(scenario: Scenario) -> Scenario:
    """Return the scenario with a cut that does not follow the speed of the devices."""
    return scenario.model_copy(update={"model": scenario.model.model_copy(update={"cut": 1})})


CUT, PER_CLIENT = "model.cut", "--per-client"
MAX_EXHAUSTIVE, MAX_HEURISTIC = 1000, 300
"""Maximum of assignments of cuts to clients that are walked."""
MAX_OPS = 1_000_000
"""Maximum of operations in all these walks together, beside `MIN_WALKS`: about half a minute."""
MIN_WALKS = 20
NO_BOUND = "No lower bound: what a client needs depends on the cuts of others with this method."
NO_BOUND_OF_TIERS = "No lower bound: several servers share the work."
WORTH = 0.05
"""Share by which rounds must get shorter for more servers to be worth it."""
NO_BOUND_AT_ALL = "No lower bound: what a client needs depends on when it needs it."


@dataclass(frozen=True)
class Criteria:
    """Criteria of the user: a cut per client, a maximum of a client's memory, an accuracy recorded by `runs`."""

    per_client: bool = False
    memory_bytes: int | None = None
    accuracy: float | None = None
    runs: Sequence[Path] = ()


@dataclass(frozen=True)
class Advice:
    """Cuts that give the shortest rounds.

    Attributes:
        choices: one row per variant of the scenario's grid. `series`: its name. `cut`: the choice, missing where
            clients have several. `setting`: key and value that put it into the scenario. `round_s`, `own_round_s`: the
            mean round by the clock, and that of the scenario as it is. `next_cut`, `next_round_s`: the best other cut
            for all clients. `bound_s`: lower bound for all assignments of cuts to clients (`Bound`); NaN if unknown, or
            if the method has one cut for all. `gap`: share of it by which `round_s` lies above. `how`: kind of search.
            `notes`: sentences.
        cuts: one row per variant and cut. `series`, `cut`, `name`. `round_s` with this cut for all clients.
            `memory_bytes` of a client, `accuracy` recorded: NaN if not asked for or unknown. `left_out`: the reason why
            the cut was left out; None if it was not.
        clients: one row per variant and client: `series`, `client`, `device`, rates (of the first seed), chosen `cut`.
    """

    choices: pd.DataFrame
    cuts: pd.DataFrame
    clients: pd.DataFrame


def find_advice(study: Study, criteria: Criteria, notify: Notify) -> Advice:
    """Find the cuts with the shortest mean round, in the median over seeds, for every variant of the grid.

    One cut for all: every cut is walked. Cuts per client: all assignments are walked if they are few, else a
    `Heuristic` begins with the best cut for all. Cuts that the criteria rule out are not walked.

    Raises ScenarioError for a scenario without a cut to choose, and for criteria that no cut meets.
    """
    check_accuracy(criteria.accuracy, criteria.runs)
    for run in criteria.runs:
        TrainedRun(run)  # here, so that its errors are not blamed on the scenario
    study = training(study)
    check_unused(study)
    check_effects(study.variants)
    if any(key == CUT or key.startswith(f"{CUT}.") for point in points(study.base.grid) for key in point):
        raise ScenarioError("the scenario's grid sets it; leave it out there, as in --set 'grid={...}'", key=CUT)
    count = _WalkCounter(notify)
    found = {}
    for name, group in itertools.groupby(study.variants, key=lambda variant: variant.name):
        variants = list(group)
        with variants[0].places.locating():
            found[name] = Adviser(
                [v.scenario for v in variants], name, criteria, expect=count.expect, step=count.step
            ).advise()
    choices = pd.DataFrame([{"series": name, **choice} for name, (choice, _, _) in found.items()])
    return Advice(
        choices.assign(gap=choices["round_s"] / choices["bound_s"] - 1).astype({"cut": "Int64", "next_cut": "Int64"}),
        _joined({name: cuts for name, (_, cuts, _) in found.items()}),
        _joined({name: clients for name, (_, _, clients) in found.items()}),
    )


def _joined(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(tables, names=["series"]).reset_index("series").reset_index(drop=True)


class Adviser:
    """Advice on one variant.

    Args:
        scenarios: one for each seed.
        series: the variant's name.
        expect, step: called with the maximum number of further walks, and after every walk.

    Attributes:
        table: its rows of `Advice.cuts`, by cut.

    Raises ScenarioError for a scenario that cannot be used, or without a cut to choose.
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        series: str,
        criteria: Criteria,
        expect: Callable[[int], None],
        step: Callable[[], None],
    ) -> None:
        self.series, self.scenario, self.criteria = series, scenarios[0], criteria
        availability = self.scenario.clients.availability
        if availability is not None and availability.lost != "wait":
            problem = "the shortest rounds would be those with most dropouts"
            raise ScenarioError(problem, key="clients.availability.lost", found=availability.lost, allowed=["wait"])
        self.trial = CutTrial(scenarios, step)
        self._expect = expect
        if not self.trial.experiment.method.is_split:
            name = self.scenario.method.name
            raise ScenarioError("is not split: there is no cut to choose", key="method.name", found=name)
        names = {cut: layer.name for cut, layer in enumerate(self.trial.network.layers[:-1], start=1)}
        unknown = {"round_s": np.nan, "memory_bytes": np.nan, "accuracy": np.nan, "left_out": None}
        self.table = pd.DataFrame({"name": names}).rename_axis("cut").assign(**unknown)

    def advise(self) -> tuple[dict[str, Any], pd.DataFrame, pd.DataFrame]:
        """Make the variant's row of `Advice.choices`, and its rows of the other tables; all without `series`."""
        if self.criteria.memory_bytes is not None:
            self._limit_memory(self.criteria.memory_bytes)
        if self.criteria.accuracy is not None:
            self._require(self.criteria.accuracy)
        self._walk_cuts()
        cuts = self._left()
        refusal = self.trial.refusal(cuts)
        bounds = [] if refusal else self.trial.bounds(cuts)
        ranked = self.table["round_s"].dropna().sort_values(kind="stable")
        chosen = self._alike(ranked.index[0])
        how = f"all {plural(len(cuts), 'cut')}" + (" that are left" if len(cuts) < len(self.table) else "")
        if len(cuts) == 1 < len(self.table):
            how = "the only cut that is left"
        if self.criteria.per_client:
            if refusal:
                raise ScenarioError(f"{self.series} has one cut for all clients: {refusal}", file=PER_CLIENT)
            chosen, how = self._assign(chosen, cuts, bounds)
        no_bound = NO_BOUND_AT_ALL if self.trial.is_uneven else NO_BOUND
        if self.trial.has_tiers:
            no_bound = NO_BOUND_OF_TIERS
        is_bounded = bool(bounds) and no_bound == NO_BOUND and self.trial.agree(bounds, cuts)
        choice = {
            **_choice(chosen, ranked),
            "round_s": self.trial.walk(chosen).round_s,
            "own_round_s": self.trial.own_round_s,
            "how": how,
            "bound_s": median(bound.round_s for bound in bounds) if is_bounded else np.nan,
            "notes": [*self._notes(chosen), *self._counts(chosen), *([] if is_bounded or refusal else [no_bound])],
        }
        clients = self.trial.experiment.clients()[["client", "device", "macs_per_s", "uplink_bps", "downlink_bps"]]
        return choice, self.table.reset_index(), clients.assign(cut=list(chosen))

    def _notes(self, chosen: Cuts) -> Iterator[str]:
        for why, cuts in self.table.groupby("left_out").groups.items():
            yield f"Left out: cut{'s' if len(cuts) > 1 else ''} {', '.join(map(str, cuts))} ({why})."
        if len(set(chosen)) > 1:
            if self.criteria.accuracy is not None:
                yield "Each of these cuts reached the accuracy as the cut of all clients; mixtures were not measured."
            if not self.trial.is_one_fleet:
                yield "Every seed draws another fleet, and these cuts are a compromise; repeats=1 asks for one."

    def _counts(self, chosen: Cuts) -> Iterator[str]:
        """Say how long a round takes with other numbers of servers in the first tier, and how many are worth it."""
        if not self.trial.has_tiers:
            return
        name, tier = next(iter(self.scenario.servers.items()))
        if not isinstance(tier.clients, str) or tier.reach_s:
            return  # whom each server serves is given for this number of them
        counts = sorted({1, 2, 4, 8, 16, tier.count} & {*range(1, self.trial.n_clients + 1)} | {tier.count})
        self._expect(len(counts))
        rounds_s = {}
        for count in counts:
            rounds_s[count] = self.trial.round_s_with(f"servers.{name}.count", count, chosen)
        least_s = min(rounds_s.values())
        enough = next(count for count in counts if rounds_s[count] <= (1 + WORTH) * least_s)
        told = ", ".join(f"{count}: {duration(seconds)}" for count, seconds in rounds_s.items())
        yield f"Rounds by number of servers in tier {name}: {told}. More than {enough} gain less than {WORTH:.0%}."

    def _alike(self, cut: int) -> Cuts:
        return (int(cut),) * self.trial.n_clients

    def _left(self) -> list[int]:
        return [int(cut) for cut in self.table.index[self.table["left_out"].isna()]]

    def _leave_out(self, cuts: Iterable[int], why: str) -> None:
        self.table.loc[list(cuts), "left_out"] = why

    def _limit_memory(self, most_bytes: int) -> None:
        needed = {cut: memory_bytes(self.scenario, self.trial.network, cut) for cut in self._left()}
        self.table["memory_bytes"] = pd.Series(needed, dtype=float)
        self._leave_out((cut for cut in needed if needed[cut] > most_bytes), "needs more memory")
        if not self._left():
            least = min(needed, key=lambda cut: needed[cut])
            need = f"a client of {self.series} needs at least {needed[least]:,} bytes, at {self._name(least)}"
            raise ScenarioError(need, file=MEMORY, found=most_bytes)

    def _require(self, accuracy: float) -> None:
        """Leave out cuts that have not reached this accuracy, and those that no run has recorded."""
        candidates = self._left()
        reached = recorded_accuracy(self.scenario, self.trial.network, self.criteria.runs)
        self.table["accuracy"] = pd.Series(reached, dtype=float)
        self._leave_out((cut for cut in candidates if reached.get(cut, 1.0) < accuracy), "not accurate enough")
        self._leave_out((cut for cut in candidates if cut not in reached), "no run tells its accuracy")
        if not self._left():
            told = {cut: reached[cut] for cut in candidates if cut in reached}
            problem = "no run tells the accuracy of the cuts that fit into the memory"
            if told:
                best = max(told, key=lambda cut: told[cut])
                problem = f"no cut of {self.series} has reached it; the best is {told[best]:.3f}, at {self._name(best)}"
            raise ScenarioError(problem, file=ACCURACY, found=accuracy)

    def _walk_cuts(self) -> None:
        """Time every cut that is left as the cut of all clients; the method may refuse some."""
        refused: list[ScenarioError] = []
        cuts = self._left()
        self._expect(len(cuts))
        for cut in cuts:
            try:
                self.table.loc[cut, "round_s"] = self.trial.walk(self._alike(cut)).round_s
            except ScenarioError as error:
                refused.append(error)
                self._leave_out([cut], str(error))
        if len(refused) == len(cuts):
            raise refused[0]

    def _assign(self, alike: Cuts, cuts: Sequence[int], bounds: Sequence[Bound]) -> tuple[Cuts, str]:
        """Find a cut for each client, no worse than the best one for all, `alike`; gives it, and the kind of search."""
        n_clients, n_cuts = self.trial.n_clients, len(cuts)
        affordable = max(MIN_WALKS, MAX_OPS // max(1, self.trial.walk(alike).n_ops))

        def walk(columns: Columns) -> Tried:
            timed = self.trial.walk(tuple(cuts[column] for column in columns))
            return Tried(columns, timed.round_s, timed.done_s)

        begin = walk(tuple(cuts.index(cut) for cut in alike))
        if n_cuts**n_clients <= min(MAX_EXHAUSTIVE, affordable):
            self._expect(n_cuts**n_clients)
            best = exhaustive(begin, n_cuts, walk)
            how = f"all {plural(n_cuts**n_clients, 'assignment')} of {plural(n_cuts, 'cut')} to {n_clients} clients"
        else:
            budget = min(MAX_HEURISTIC, affordable)
            self._expect(budget)
            alone_s = np.mean([bound.alone_s for bound in bounds], axis=0)
            server_s = np.mean([bound.server_s for bound in bounds], axis=0)
            heuristic = Heuristic(alone_s, server_s, walk, budget)
            best = heuristic.improve(begin)
            how = f"heuristic: {heuristic.n_tried} of {n_cuts}^{n_clients} assignments (deadlines, then local search)"
        return tuple(cuts[column] for column in best.columns), how

    def _name(self, cut: int) -> str:
        return f"cut {cut} ({self.trial.network.layers[cut - 1].name})"


def _choice(chosen: Cuts, ranked: pd.Series[float]) -> dict[str, Any]:
    """Return what is chosen, and the next best cut for all clients."""
    if len(set(chosen)) > 1:
        cut, setting = None, f"{CUT}={{by: client, values: {list(chosen)}}}"
    else:
        cut, setting = chosen[0], f"{CUT}={chosen[0]}"
        ranked = ranked.drop(cut)
    next_cut, next_round_s = next(iter(ranked.items()), (None, np.nan))
    return {"cut": cut, "setting": setting, "next_cut": next_cut, "next_round_s": next_round_s}


class _WalkCounter:
    """Count walks for `notify`."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._done = self._expected = 0

    def expect(self, walks: int) -> None:
        """Note the maximum number of further walks."""
        self._expected = self._done + walks

    def step(self) -> None:
        self._done += 1
        self._notify(Counted("advise", "walk", self._done, max(self._done, self._expected)))
