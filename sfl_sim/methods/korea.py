"""KoReA-SFL: branch models that are only pulled to their average, and assistants that replay what a branch forgets.

Xia et al., "KoReA-SFL: Knowledge Replay-based Split Federated Learning Against Catastrophic Forgetting", arXiv, 2024
(2404.12846); where it is silent, the code of the authors' MultiSFL (METHODS.md section 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.assistants import Replay, Service
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.knowledge import (
    Ints,
    LabelHistory,
    Proportion,
    Rounding,
    Rule,
    knowledge_request,
    request_size,
)
from sfl_sim.methods.split import SplitMethod
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Event, Flow, Lost, Value, occur, on, par, present, read, send, start, wait
from sfl_sim.rng import stream
from sfl_sim.training.knowledge_replay import SquaredNorms, TrainReplayed
from sfl_sim.training.optimisers import Measured, Optimiser
from sfl_sim.training.steps import Average


class KoreaOptions(MethodOptions):
    """`alpha`: how strongly a branch is pulled to the average of all. `decay`: of older rounds in a branch's label
    history; `history`: whether it takes in the current client, or only earlier ones (`printed`). `rounding`: of what is
    asked for.

    `proportion`: how many samples are asked for, as a share of the client's own: constantly `p0` (`fixed`, the paper's
    Conf2), none (`off`, Conf1), or from `p0` on by the gradient norm, within `p_min` and `p_max` (null: 0.5, with `clp`
    0.2): by the ratio of its means over `window` rounds, by doubling and halving (`clp`), or as printed.

    `refresh_features`: assistants answer in every local epoch. `joint_forward`: batch norm sees their rows with the
    client's. `assistants`: clients that take no part in the round, or all others, as in the code. `patience_s`: seconds
    after which the server asks others instead of an assistant that has not answered; null: never.
    """

    alpha: Annotated[float, Field(ge=0)] = 0.1
    decay: Annotated[float, Field(ge=0, le=1)] = 0.5
    history: Literal["current", "printed"] = "current"
    rounding: Rounding = "largest_remainder"
    proportion: Rule = "window_ratio"
    p0: Annotated[float, Field(gt=0, le=1)] = 0.01
    p_min: Annotated[float, Field(ge=0, le=1)] = 0.01
    p_max: Annotated[float, Field(gt=0, le=1)] | None = None
    window: Annotated[int, Field(ge=1)] = 10
    refresh_features: bool = True
    joint_forward: bool = True
    assistants: Literal["unselected", "all"] = "unselected"
    patience_s: Annotated[float, Field(gt=0)] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the proportion."""
        usual = 0.2 if self.proportion == "clp" else 0.5
        return self.p_min, usual if self.p_max is None else self.p_max


@dataclass(eq=False)
class Branch:
    """One of the models that live through all rounds: part-1 at the aggregator, part-2 at the server."""

    number: int
    part1: Replica
    part2: Replica
    history: LabelHistory


class Korea(SplitMethod, survives=True):
    """Every client of a round trains another branch, with features of assistants in its mini-batches at the server."""

    Options = KoreaOptions
    options: KoreaOptions

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        options = self.options
        self.proportion = Proportion(options.proportion, options.p0, options.bounds, options.window)
        has_assistants = options.assistants == "all" or task.participants < len(self.data)
        if options.proportion != "off" and not has_assistants:
            problem = f"all clients take part in every round, so {task.method} has no assistants"
            raise ScenarioError(problem, key="clients.participation", allowed="less than 1")
        low, high = options.bounds
        if self.proportion.adapts and not low <= options.p0 <= high:
            problem = "is not within p_min and p_max"
            raise ScenarioError(problem, key="method.p0", found=options.p0, allowed=f"{low:g} to {high:g}")
        if not self.options.joint_forward and task.network.needs_batches_of_two:
            problem = "needs a model whose batch norm can do with the features of a single sample"
            raise ScenarioError(problem, key="method.joint_forward", found=False, allowed=[True])
        least = 2 if task.network.needs_batches_of_two and task.network.needs_batches_of_two_before(task.cut) else 1
        self.service = Service(self.options.patience_s or inf, least)
        self.branches: list[Branch] = []
        self.replays: dict[int, Replay] = {}
        """This round's requests, by the client that trains."""

    def optimiser(self, round: int) -> Optimiser:
        """Measures the gradient norm if that is asked for."""
        usual = super().optimiser(round)
        return replace(usual, rule=Measured()) if self.proportion.adapts else usual

    def setup(self) -> Flow:
        """The server must know who can be asked for what; who does not tell in time can be, once it has."""
        if self.options.proportion == "off":
            return
        for c in range(len(self.data)):
            told = Event(f"the label counts of client {c}")
            self.service.told.append(told)
            yield start(self.tell(c, told))
        yield wait(self.service.told, self.service.patience_s)

    def tell(self, c: int, told: Event) -> Flow:
        """Client `c` tells its label counts."""
        yield from self.tell_labels_of(c)
        yield occur(told)

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Train a branch on every client; average all branches as the global model, and pull them to it.

        A branch whose client is lost stays as it was: of what it has learned in the round, part-1 is gone.
        """
        self.branches += [self.branch(number) for number in range(len(self.branches), len(clients))]
        self.proportion.go_on()
        self.replays.clear()
        self.service.tally.clear()
        drawn = stream(self.task.seed, "korea branches", round).permutation(len(self.branches))
        trainees = {
            clients[i]: replace(branch, history=copy(branch.history))
            for i, branch in zip(drawn, self.branches, strict=True)
            if i < len(clients)
        }
        there = yield present(range(len(self.data)))
        self.request(trainees, there, round)
        norms = yield par({c: self.train(branch, c, round) for c, branch in trainees.items()})
        trained = {trainees[c].number: trainees[c] for c in norms}
        self.branches = [trained.get(branch.number, branch) for branch in self.branches]
        if self.proportion.adapts:
            yield from self.measure({c: (trainees[c], norm) for c, (norm,) in norms.items()}, round)
        if trained:
            begun = [branch for branch in self.branches if branch.part1 is not self.part1]
            yield par(
                [
                    self.pull(AGGREGATOR, self.part1, [branch.part1 for branch in begun]),
                    self.pull(SERVER, self.part2, [branch.part2 for branch in begun]),
                ]
            )

    def branch(self, number: int) -> Branch:
        """A branch is the global model until a client has trained it."""
        history = LabelHistory(len(self.task.label_names), self.options.decay)
        return Branch(number, self.part1, self.part2, history)

    def pull(self, node: int, master: Replica, copies: Sequence[Replica]) -> Flow:
        """master <- mean of the copies; copy <- (copy + alpha * master) / (1 + alpha)."""
        alpha = self.options.alpha

        def pulled(copy: Replica) -> Flow:
            yield on(node, Average(), copy, [copy, master], [1 / (1 + alpha), alpha / (1 + alpha)])

        yield on(node, Average(), master, copies, [1 / len(copies)] * len(copies))
        yield par(pulled(copy) for copy in copies)

    def request(self, trainees: Mapping[int, Branch], there: Sequence[int], round: int) -> None:
        """Plan who of those `there` is asked for what. A client that has not told its labels trains without replay."""
        if self.options.proportion == "off":
            return
        idle = np.zeros(len(self.data), dtype=bool)
        idle[there] = True
        idle[list(trainees)] = self.options.assistants == "all"
        others = np.flatnonzero(idle)
        for c, branch in trainees.items():
            if self.service.told[c].occurred:
                candidates = stream(self.task.seed, "korea assistants", round, branch.number).permutation(
                    others[others != c]
                )
                replay = Replay(
                    self.task,
                    self.wanted(branch, c),
                    candidates,
                    self.data.n_batches(c) // self.data.local_epochs,
                    (round, branch.number),
                    self.service,
                )
                if replay.shares:
                    self.replays[c] = replay

    def wanted(self, branch: Branch, c: int) -> Ints:
        """The request of a branch that is going to be trained on client `c`."""
        earlier = branch.history.score
        branch.history.add(self.task.label_counts[c])
        score = earlier if self.options.history == "printed" else branch.history.score
        total = request_size(self.data.samples(c), self.proportion.value, len(score))
        return knowledge_request(score, total, self.options.rounding)

    def train(self, branch: Branch, c: int, round: int) -> Flow:
        """Train a branch on client `c`; gives the client's squared gradient norm, if that is asked for."""
        branch.part2 = yield send(branch.part2, SERVER, SERVER)  # for a fresh optimiser
        part1, replay = None, self.replays.get(c)
        for number, epoch in enumerate(self.data.epochs(c, round)):
            own = self.epoch(branch, c, part1, epoch, round)
            if replay and (number == 0 or (self.options.refresh_features and replay.answers)):
                _, part1 = yield par([self.gather(replay, branch, c, part1), own])
            else:
                part1 = yield from own
        if replay:
            self.service.tally["collected"] += sum(answer.samples for answer in replay.answers)
            replay.close()
        assert part1
        *norm, branch.part1 = yield par(
            [*([self.tell_norm(part1, c)] if self.proportion.adapts else []), self.upload(part1, c)]
        )
        return norm

    def upload(self, part1: Replica, c: int) -> Flow:
        """Part-1 goes to the aggregator."""
        return (yield send(part1, c, AGGREGATOR))

    def tell_norm(self, part1: Replica, c: int) -> Flow:
        """The client tells its part of the squared gradient norm."""
        norm = yield on(c, SquaredNorms(), part1)
        return (yield send(norm, c, SERVER))

    def epoch(self, branch: Branch, c: int, part1: Replica | None, epoch: Sequence[Batch], round: int) -> Flow:
        """One pass over the client's samples, with part-1 of the branch if it has none yet; gives part-1."""
        part1 = part1 or (yield send(branch.part1, AGGREGATOR, c))
        yield from self.batches(c, part1, branch.part2, epoch, round)
        return part1

    def gather(self, replay: Replay, branch: Branch, c: int, part1: Replica | None) -> Flow:
        """Let assistants forward with part-1 as it is when the epoch begins: at first that of the branch."""
        if part1:
            replay.again()
            try:
                part1 = yield from replay.moved(part1, c, AGGREGATOR)
            except Lost:
                yield from replay.give_up()
                raise
        yield from replay.gather(part1 or branch.part1)

    def serve(self, c: int, part2: Replica | Joined, smashed: Value, round: int) -> Flow:
        """With the rows of assistants that belong to the mini-batch."""
        if c in self.replays:
            knowledge = yield from self.replays[c].rows(smashed.step)
            if knowledge:
                step = TrainReplayed(self.optimiser(round), self.options.joint_forward)
                return (yield on(SERVER, step, part2, smashed, knowledge))
        return (yield from super().serve(c, part2, smashed, round))

    def measure(self, told: Mapping[int, tuple[Branch, Value]], round: int) -> Flow:
        """Add what clients have told to the squared norms of part-2, and keep their mean where it is known (FGN)."""

        def both(branch: Branch, own: Value) -> Flow:
            return (yield on(SERVER, SquaredNorms(), branch.part2, own))

        sums = yield par({c: both(branch, own) for c, (branch, own) in told.items()})
        total = 0.0
        for one in sums.values():
            number = yield read(one)
            if number is None:  # in a timing-only run: the proportion stays
                return
            total += number
        if sums:
            self.proportion.norms.append(self.optimiser(round).lr * total / len(sums) / self.data.local_epochs)

    def figures(self) -> dict[str, float]:
        """What replay came to; nothing if it is off."""
        if self.options.proportion == "off":
            return {}
        names = ("requested", "collected", "assistants", "late", "bytes")
        told = {f"replay_{name}": float(self.service.tally[name]) for name in names}
        norms = self.proportion.norms
        return {"replay_proportion": self.proportion.value, **told} | (
            {"replay_gradient_norm": norms[-1]} if norms else {}
        )

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """A part-2 for every branch, and their average."""
        return (max(len(clients), len(self.branches)) + 1) * self.part2.size_bytes
