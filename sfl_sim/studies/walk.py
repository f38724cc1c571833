"""Walks through the rounds of a scenario by the clock alone, in one system after another and with other cuts."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from sfl_sim.build.clock import build_clock
from sfl_sim.build.method import SecondsPerSample
from sfl_sim.build.network import build_network
from sfl_sim.build.optimisation import largest_batch, optimiser_kind
from sfl_sim.build.registry import find_method, method_options
from sfl_sim.build.setup import fleet_of
from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.walk import DIFFERENT, FINISH, NO_OPS, SETUP, Walk, WalkedRound, check_time
from sfl_sim.models.network import Network
from sfl_sim.ops import Flow
from sfl_sim.scenario.presets import expand
from sfl_sim.scenario.sections import Scenario
from sfl_sim.sim.array_clock import Turns
from sfl_sim.sim.clock import Plans
from sfl_sim.sim.trace import NotPlannable
from sfl_sim.system.fleet import Fleet
from sfl_sim.training.memory import client_memory_bytes
from sfl_sim.training.optimisers import optimiser_of


def recut(experiment: Experiment, cuts: Sequence[int]) -> None:
    """Let client c of a timing-only `experiment` hold the layers 1 to `cuts[c]`, in all rounds.

    Raises ScenarioError if the method does not allow these cuts.
    """
    method, task = experiment.method, experiment.method.task
    network = task.network
    if network.lora and not method.trains_part1:  # whose adapters lie behind the cut
        network = build_network(experiment.scenario, experiment.dataset, above=max(cuts)).unweighted()
    sample_s = SecondsPerSample(network, cuts, task.data, experiment.fleet, task.wire)
    elsewhere = replace(task, network=network, cuts=list(cuts), round_cuts=(), cut_policy=None, sample_s=sample_s)
    experiment.walk.replace_method(type(method)(elsewhere, method.options))


def memory_bytes(scenario: Scenario, network: Network, cut: int) -> int:
    """Return the bytes that a client needs to train the layers 1 to `cut` as the scenario says."""
    train, kind = scenario.train, find_method(scenario.method.name)
    options = method_options(kind, scenario)
    return client_memory_bytes(
        *(kind.at_client(network, cut, options) if kind.has("is_split", options) else (network, cut)),
        batch_size=largest_batch(train),
        n_moments=optimiser_of(optimiser_kind(train.optimizer, "train.optimizer"), 1.0, train.momentum).n_moments,
        trains=kind.trains_part1,
        keeps_graphs=kind.keeps_graphs,
    )


RECURSION, EVENT_LOOP = "recursion", "event loop"


class Walked(NamedTuple):
    """Timed rounds of a scenario in one system.

    Attributes:
        rounds: the rounds; by `RECURSION`, equal rounds are one, and setup and finish are apart.
        how: the clock, `RECURSION` or `EVENT_LOOP`.
    """

    fleet: Fleet
    rounds: list[WalkedRound]
    how: str

    @property
    def idle_s(self) -> float:
        """Time before and between rounds in which no client was available."""
        ends_s = [0.0, *(each.ended_s for each in self.rounds)]
        return sum(each.started_s - end_s for each, end_s in zip(self.rounds, ends_s, strict=False))

    @property
    def simulated_s(self) -> float:
        """Simulated time of all rounds, with that between them."""
        return self.idle_s + sum(each.n_rounds * (each.ended_s - each.started_s) for each in self.rounds)


def distinct_rounds(walk: Walk) -> list[WalkedRound]:
    """Time each distinct round once, by arrays; `n_rounds` says how many it stands for. Setup and finish are apart.

    Rounds are equal if they have the same operations and the server serves clients in the same sequence. They take
    equally long, up to rounding, if no duration depends on its start; if one does, each round is walked.

    Raises NotPlannable if the rounds need the event clock.
    """
    clock, method, last = walk.clock, walk.method, walk.setup.scenario.train.rounds
    if not walk.is_regular:
        raise NotPlannable(DIFFERENT)
    if not walk.participation.choose.is_random:
        raise NotPlannable("the choice of clients depends on their speeds")
    rounds: dict[tuple[Hashable, int | Sequence[Turns]], WalkedRound] = {}

    def time(number: int, clients: tuple[int, ...], what: Hashable, flow: Callable[[], Flow]) -> None:
        is_aside = what in (SETUP, FINISH)
        plan = clock.plan(flow, what, not is_aside)
        turns = plan.turns(number)
        key = what, turns if clock.is_steady else number
        if key in rounds:
            rounds[key] = rounds[key]._replace(n_rounds=rounds[key].n_rounds + 1)
            return
        began_s = clock.now_s
        ops, ended_s = plan.run(began_s, number, turns)
        check_time(ended_s)
        clock.events.skip(NO_OPS, ended_s)
        if len(ops):
            rounds[key] = WalkedRound(number, clients, began_s, ended_s, ops=ops, is_aside=is_aside)

    time(1, (), SETUP, method.prepare)
    for number in range(1, last + 1):
        clients = tuple(walk.choose(number))
        if number == 1:
            rounds = {key: setup._replace(clients=clients) for key, setup in rounds.items()}
        time(number, clients, clients, partial(method.round, number, clients))
    time(last, clients, FINISH, method.finish)
    return list(rounds.values())


class Walker:
    """Walks scenarios that differ only in their system: the operations of their flows are planned once.

    Times are those of a run, up to rounding where equal rounds are walked as one.

    Args:
        scenario: one of them, without grid.

    Raises ScenarioError if the scenario cannot be used.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.experiment = Experiment(scenario, device=None)
        self._walked = self.experiment
        self._cuts: Sequence[int] | None = None
        self._plans: Plans = {}

    @property
    def follows_the_world(self) -> bool:
        """True if the method has asked for its clients' speeds, so that its operations in other systems are unknown."""
        asked = self._walked.method.task.sample_s
        return isinstance(asked, SecondsPerSample) and asked.asked

    def recut(self, cuts: Sequence[int]) -> None:
        """Let client c hold the layers 1 to `cuts[c]` from now on, instead of the scenario's cut.

        Raises ScenarioError if the method does not allow these cuts.
        """
        recut(self.experiment, cuts)
        self._cuts = cuts
        self._plans.clear()

    def walk(self, scenario: Scenario) -> Walked:
        """Walk all rounds of `scenario`, which differs in its system alone.

        Raises ScenarioError if the scenario cannot be used.
        """
        experiment, scenario = self.experiment, expand(scenario)
        fleet = fleet_of(scenario, len(experiment.shares))
        # Who is there depends on the system's times, and so does what a method has chosen.
        if fleet.presence is not None:
            method = experiment.method
            experiment.walk.replace_method(type(method)(method.task, method.options))
            self._plans.clear()
        clock = build_clock(scenario, fleet, experiment.executor, experiment.counts, plans=self._plans)
        try:
            return Walked(fleet, distinct_rounds(experiment.walk.elsewhere(clock)), RECURSION)
        except NotPlannable:
            self._walked = experiment = Experiment(scenario, device=None)
        if self._cuts is not None:
            recut(experiment, self._cuts)
        return Walked(fleet, list(experiment.walk.rounds()), EVENT_LOOP)
