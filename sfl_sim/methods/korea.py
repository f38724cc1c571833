"""KoReA-SFL: branch models that are only pulled to their average, and assistants that replay what a branch forgets.

Xia et al., "KoReA-SFL: Knowledge Replay-based Split Federated Learning Against Catastrophic Forgetting", arXiv, 2024
(2404.12846); where it is silent, the code of the authors' MultiSFL (docs/methods/korea.md, whose steps of the algorithm
are numbered here).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import fmean
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import Method, MethodOptions, Task
from sfl_sim.methods.korea_assistants import Assistants, Ints, Request
from sfl_sim.models.on_nan import differentiate
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, ServerNode, Step, Value, Work, on, par, present, read, send
from sfl_sim.rng import stream
from sfl_sim.scenario.fields import OnlyWith, Unless
from sfl_sim.training.optimisers import Optimiser, SummedNorms
from sfl_sim.training.steps import Average, Backward, Forward, Train, gradient_at

Floats = NDArray[np.float64]
Rounding = Literal["largest_remainder", "floor"]
P_MAX = 0.5
"""Largest proportion that follows the gradient norm, from the authors' code."""
WINDOW = 10
"""Number of rounds over which gradient norms are averaged, from the authors' code."""


class KoreaOptions(MethodOptions):
    """Options of KoReA-SFL."""

    alpha: Annotated[float, Field(ge=0)] = 0.1
    """Strength with which a branch is pulled to the average of all."""
    decay: Annotated[float, Field(ge=0, le=1), Unless("proportion", "off")] = 0.5
    """Weight of a round in a branch's label history, relative to the next round."""
    rounding: Annotated[Rounding, Unless("proportion", "off")] = "largest_remainder"
    """Rounding of the numbers of samples that are asked for: up to their sum, or all down."""
    proportion: Literal["window_ratio", "fixed", "off"] = "window_ratio"
    """Number of samples that are asked for, as a share of the client's own: p0 at first and then in proportion to the
    gradient norm, always p0 (the paper's Conf2), or none (Conf1)."""
    p0: Annotated[float, Field(gt=0, le=1), Unless("proportion", "off")] = 0.01
    """The proportion, or the first one."""
    p_min: Annotated[float, Field(ge=0, le=P_MAX), OnlyWith("proportion", "window_ratio")] = 0.01
    """Smallest proportion that follows the gradient norm; the largest is 0.5."""
    one_per_label: Annotated[bool, Unless("proportion", "off")] = True
    """Ask for one sample of each label at least, as the authors' code does, however small the proportion is."""
    refresh_features: Annotated[bool, Unless("proportion", "off")] = True
    """Let assistants answer anew in every local epoch; else once a round."""
    joint_forward: Annotated[bool, Unless("proportion", "off")] = True
    """Let batch norm see the rows of assistants together with the client's; else by themselves."""
    assistants: Annotated[Literal["unselected", "all"], Unless("proportion", "off")] = "unselected"
    """Clients that may assist: those that take no part in the round, or all others, as in the authors' code."""
    patience_s: Annotated[Annotated[float, Field(gt=0)] | None, Unless("proportion", "off")] = None
    """Seconds after which the server asks others instead of an assistant that has not answered; null: never."""

    @property
    def adapts(self) -> bool:
        """True if the proportion follows the gradient norm."""
        return self.proportion == "window_ratio"


@dataclass(eq=False)
class KoreaBranch:
    """A branch model, kept over all rounds: part-1 at the aggregator, part-2 at the server."""

    number: int
    part1: Replica
    part2: Replica
    history: LabelHistory


class Korea(Method, survives=True):
    """Clients of a round train different branches, with features of assistants in their mini-batches at the server."""

    needs_labels = "samples are replayed by label"
    Options = KoreaOptions
    ignores: Mapping[str, str] = {"train.agg_weights": "branches are averaged, all alike"}
    options: KoreaOptions
    examples = (
        KoreaOptions(assistants="all", proportion="fixed", p0=0.5),
        KoreaOptions(assistants="all", p0=0.3),
        KoreaOptions(assistants="all", p0=0.5, one_per_label=False),
        KoreaOptions(assistants="all", proportion="fixed", p0=0.5, patience_s=0.5),
        KoreaOptions(proportion="off"),
    )

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        options = self.options
        self.depends_on_time = options.patience_s is not None
        self.forgets_lost = options.proportion == "off"
        self.local_epochs = task.data.common("local_epochs", task.method)
        if options.adapts and not options.p_min <= options.p0 <= P_MAX:
            problem, allowed = "is not within its bounds", f"{options.p_min:g} (p_min) to {P_MAX:g}"
            raise ScenarioError(problem, key="method.p0", found=options.p0, allowed=allowed)
        if not options.joint_forward and task.network.needs_batches_of_two:
            problem = "needs a model whose batch norm can do with the features of a single sample"
            raise ScenarioError(problem, key="method.joint_forward", found=False, allowed=[True])
        has_assistants = options.assistants == "all" or task.participants < len(self.data)
        if options.proportion != "off" and not has_assistants:
            problem = f"all clients take part in every round, so {task.method} has no assistants"
            raise ScenarioError(problem, key="clients.participation", allowed="less than 1")
        if options.adapts:
            self.rule = SummedNorms()
        self.part1, self.part2 = task.split(task.cut)
        """The master w: the mean of all branches."""
        self.branches: list[KoreaBranch] = []
        self.p = options.p0
        """The proportion of this round."""
        self.next_p = options.p0
        """That of the next one."""
        self.norms: list[float] = []
        """The gradient norm F of every round so far, where it is known: not in a timing-only run."""
        self.norm: float | None = None
        """That of this round."""
        least = 2 if task.network.needs_batches_of_two and task.network.needs_batches_of_two_before(task.cut) else 1
        self.assistants = Assistants(options.patience_s or inf, least)
        self.requests: dict[int, Request] = {}
        """Requests of this round, by the client that trains."""

    def setup(self) -> Flow:
        if self.options.proportion != "off":
            yield from self.assistants.register([self.tell_labels_of(c) for c in range(len(self.data))])

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Train a branch on every client (1 to 6); average all branches as the master, and pull them to it.

        A branch whose client is lost stays as it was: of what it has learned in the round, part-1 is gone.
        """
        self.p, self.norm = self.next_p, None
        self.requests.clear()
        self.assistants.tally.clear()
        branches = self.deal(clients, round)
        present_clients = yield present(range(len(self.data)))
        self.request(branches, present_clients, round)
        norms = yield par({c: self.train(branch, c, round) for c, branch in branches.items()})
        trained = {branches[c].number: branches[c] for c in norms}
        self.branches = [trained.get(branch.number, branch) for branch in self.branches]
        if self.options.adapts:
            yield from self.measure({c: (branches[c], norm) for c, (norm,) in norms.items()}, round)
        if trained:
            begun = [branch for branch in self.branches if branch.part1 is not self.part1]
            yield par(
                [
                    self.pull(AGGREGATOR, self.part1, [branch.part1 for branch in begun]),
                    self.pull(SERVER, self.part2, [branch.part2 for branch in begun]),
                ]
            )

    def deal(self, clients: Sequence[int], round: int) -> dict[int, KoreaBranch]:
        """Deal the branches to the clients by lot; a branch is the master until a client has trained it."""
        for number in range(len(self.branches), len(clients)):
            history = LabelHistory(np.zeros(len(self.task.label_names)))
            self.branches.append(KoreaBranch(number, self.part1, self.part2, history))
        numbers = stream(self.task.seed, "korea branches", round).permutation(len(self.branches))
        dealt = zip(numbers, self.branches, strict=True)
        return {clients[i]: replace(branch) for i, branch in dealt if i < len(clients)}

    def request(self, branches: Mapping[int, KoreaBranch], present_clients: Sequence[int], round: int) -> None:
        """Ask the `present_clients` for what each branch lacks (2 to 4).

        A client whose label counts the server does not know trains without replay.
        """
        if self.options.proportion == "off":
            return
        idle = np.zeros(len(self.data), dtype=bool)
        idle[present_clients] = True
        idle[list(branches)] = self.options.assistants == "all"
        others = np.flatnonzero(idle)
        for c, branch in branches.items():
            if self.assistants.registered[c].occurred:
                q = self.lacking(branch, c)
                draw = round, branch.number
                candidates = stream(self.task.seed, "korea assistants", *draw).permutation(others[others != c])
                request = Request(self.task, q, candidates, draw, self.assistants)
                if request.shares:
                    self.requests[c] = request

    def lacking(self, branch: KoreaBranch, c: int) -> Ints:
        """q (L,): what a branch asks for that is going to be trained on client `c`, whose labels enter its history."""
        branch.history = branch.history.after(self.task.label_counts[c], self.options.decay)
        sv = branch.history.sv
        least = len(sv) if self.options.one_per_label else 0
        return knowledge_request(sv, request_size(self.data.samples(c), self.p, least), self.options.rounding)

    def train(self, branch: KoreaBranch, c: int, round: int) -> Flow:
        """Train a branch on client `c` (1, 5, 6); gives the client's squared gradient norm, if that is asked for."""
        branch.part2 = yield send(branch.part2, SERVER, SERVER)  # for a fresh optimiser
        part1: Replica | None = None
        request = self.requests.get(c)
        for batches in filter(None, self.data.epochs(c, round)):  # there may be fewer mini-batches than epochs
            if request:
                request.steps = range(batches[0].step, batches[-1].step + 1)
            epoch = self.epoch(branch, c, part1, batches, round)
            if request and part1 is None:
                _, part1 = yield par([request.gather(branch.part1), epoch])
            elif request and part1 and self.options.refresh_features and request.answers:
                _, part1 = yield par([request.gather_again(part1, c), epoch])
            else:
                part1 = yield from epoch
        if request:
            request.close()
        assert part1
        tell_norm = [self.tell_norm(part1, c)] if self.options.adapts else []
        *norm, branch.part1 = yield par([*tell_norm, self.wire.deliver(part1, c, round)])
        return norm

    def epoch(self, branch: KoreaBranch, c: int, part1: Replica | None, batches: Sequence[Batch], round: int) -> Flow:
        """One pass over the client's samples, with part-1 of the branch if it has none yet; gives part-1."""
        part1 = part1 or (yield from self.wire.fetch(branch.part1, c))
        for batch in batches:
            yield from self.minibatch(branch, c, part1, batch, round)
        return part1

    def minibatch(self, branch: KoreaBranch, c: int, part1: Replica, batch: Batch, round: int) -> Flow:
        """Train both parts on one mini-batch; the server adds the rows of assistants that belong to it."""
        optimiser, knowledge = self.optimiser(round, SERVER), []
        smashed = yield on(c, Forward(), part1, batch)
        smashed = yield from self.wire.upload(smashed, part1.part, batch, c, round)
        if c in self.requests:
            knowledge = yield from self.requests[c].rows(batch.step)
        if knowledge:
            replayed = TrainReplayed(optimiser, self.options.joint_forward)
            gradient = yield on(SERVER, replayed, branch.part2, smashed, knowledge)
        else:
            gradient = yield on(SERVER, Train(optimiser), branch.part2, smashed)
        gradient = yield from self.wire.download(gradient, smashed, part1, c, round)
        yield on(c, Backward(self.optimiser(round, c)), part1, gradient)

    def tell_norm(self, part1: Replica, c: int) -> Flow:
        """Let the client tell its part of the squared gradient norm (6)."""
        norm = yield on(c, SquaredNorms(), part1)
        return (yield send(norm, c, SERVER))

    def measure(self, client_norms: Mapping[int, tuple[KoreaBranch, Value]], round: int) -> Flow:
        """Keep F: lr / epochs times the mean over branches of the squared gradient norms of both parts (Eq. 5).

        The next proportion follows it; both stay as they were if no client is left.
        """

        def both(branch: KoreaBranch, client_norm: Value) -> Flow:
            # The norm is in a list, so that it is no client's job, which could be lost.
            return (yield on(SERVER, SquaredNorms(), branch.part2, [client_norm]))

        sums = yield par({c: both(branch, client_norm) for c, (branch, client_norm) in client_norms.items()})
        total = 0.0
        for norm in sums.values():
            number = yield read(norm)
            if number is None:  # in a timing-only run: the proportion stays
                return
            total += number
        if sums:
            self.norm = self.optimiser(round, SERVER).lr * total / len(sums) / self.local_epochs
            self.norms.append(self.norm)
            self.next_p = min(max(next_proportion(self.p, self.norms), self.options.p_min), P_MAX)

    def pull(self, node: ServerNode, master: Replica, branches: Sequence[Replica]) -> Flow:
        """w <- mean of the branches W; W <- (W + alpha * w) / (1 + alpha)."""
        alpha = self.options.alpha

        def pulled(branch: Replica) -> Flow:
            yield on(node, Average(), branch, [branch, master], [1 / (1 + alpha), alpha / (1 + alpha)])

        yield on(node, Average(), master, branches, [1 / len(branches)] * len(branches))
        yield par(pulled(branch) for branch in branches)

    def model(self) -> list[Replica]:
        return [self.part1, self.part2]

    def figures(self) -> dict[str, float]:
        """Columns about the round's replay; none if it is off."""
        if self.options.proportion == "off":
            return {}
        names = ("requested", "collected", "assistants", "late", "bytes")
        tally = {f"replay_{name}": float(self.assistants.tally[name]) for name in names}
        norm = {} if self.norm is None else {"replay_gradient_norm": self.norm}
        return {"replay_proportion": self.p, **tally, **norm}

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """A part-2 for every branch, and their average."""
        return (max(len(clients), len(self.branches)) + 1) * self.part2.size_bytes


ROUNDING, DIGITS = 1e-12, 9
"""Accuracy of floats that should be equal: the relative one of products and means, decimal places of quotients."""
SMALLEST_NORM = 1e-12
"""Smallest gradient norm by which one divides."""


@dataclass(frozen=True)
class LabelHistory:
    """The labels that a branch was trained on, those of earlier rounds weighted by powers of the decay (Eq. 2).

    Attributes:
        counts: (L,) the weighted sum of the label counts of its clients.
        weight: the sum of the weights.
    """

    counts: Floats
    weight: float = 0.0

    def after(self, counts: Ints, decay: float) -> LabelHistory:
        """The history after another round, on a client that holds `counts` (L,) samples of each label."""
        return LabelHistory(decay * self.counts + counts, decay * self.weight + 1)

    @property
    def sv(self) -> Floats:
        """The score vector (L,): the weighted mean of counts; zeros before the first round."""
        return self.counts / self.weight if self.weight else self.counts


def request_size(samples: int, p: float, least: int) -> int:
    """Q: the proportion p of a client's samples, `least` of them at least; nothing if p is zero."""
    return 0 if not p else max(least, int(samples * p * (1 + ROUNDING)))


def knowledge_request(sv: Floats, total: int, rounding: Rounding = "largest_remainder") -> Ints:
    """q (L,): how many of `total` samples to ask for of each label, the more the less it was seen (Eq. 3, 4).

    Labels that were seen more than the mean get none. Largest remainders add up to `total`, of equal ones the first
    label's counts; `floor` leaves out the rest. Nothing is asked for if all labels have been seen equally often.

        >>> knowledge_request(np.array([80 / 7, 10, 200 / 7, 0]), 15)
        array([ 1,  2,  0, 12])
    """
    mean = sv.mean()
    prior = np.where(sv < mean * (1 - ROUNDING), mean - sv, 0)
    if not prior.any():
        return np.zeros(len(sv), dtype=np.int64)
    exact = np.round(total * prior / prior.sum(), DIGITS)
    request: Ints = np.floor(exact).astype(np.int64)
    if rounding == "largest_remainder":
        remainders = np.round(exact - request, DIGITS)
        request[np.argsort(-remainders, kind="stable")[: total - request.sum()]] += 1
    return request


def next_proportion(p: float, norms: Sequence[float], window: int = WINDOW) -> float:
    """p_{r+1}, before it is clipped, from p_r and the gradient norms F of all rounds so far (Eq. 6).

    As the mean norm of the last `window` rounds shrinks, so does p.

        >>> round(next_proportion(0.1, [1.0, 0.8], 1), 3)
        0.08
    """
    if len(norms) < 2:
        return p
    before, now = fmean(norms[:-1][-window:]), fmean(norms[-window:])
    if not (isfinite(before) and isfinite(now)):  # of a model that diverges
        return p
    return p * (now / max(before, SMALLEST_NORM))


@dataclass(frozen=True)
class TrainReplayed(Step):
    """`Train` on a client's smashed data and on knowledge; gives the gradient at the client's rows alone.

    Attributes:
        joint: one forward pass for both, so that batch norm sees them as one; else one for each.
    """

    optimiser: Optimiser
    joint: bool = True
    name = "train"

    def work(self, part2: Replica, smashed: Value, knowledge: Sequence[Value]) -> Work:
        work = part2.part.work(sum(value.samples for value in (smashed, *knowledge)), passes=3)
        return work if self.joint else work.called(2)

    def out(self, part2: Replica, smashed: Value, knowledge: Sequence[Value]) -> Value:
        return gradient_at(part2.part, smashed)

    def run(self, part2: Replica, smashed: Value, knowledge: Sequence[Value]) -> Tensor | None:
        """The gradient of the mean loss over all rows at those of the client (n, ...), evaluated before the step."""
        client_rows, *replayed_rows = (value.load() for value in (smashed, *knowledge))
        blocks = [[client_rows, *replayed_rows]] if self.joint else [[client_rows], replayed_rows]
        inputs = [torch.cat([x for x, _ in block]).requires_grad_() for block in blocks]
        labels = torch.cat([labels for _, labels in (client_rows, *replayed_rows)])
        scores = torch.cat([part2.weights(x, training=True) for x in inputs])
        differentiate(part2.part.loss(scores, labels))
        self.optimiser.step(part2.weights)
        gradient: Tensor | None = inputs[0].grad
        return None if gradient is None else gradient[: smashed.samples]


class SquaredNorms(Step):
    """Tell the squared gradient norms that `SummedNorms` has added up, on top of what other nodes tell."""

    name = "norm"

    def out(self, part: Replica, elsewhere: Sequence[Value] = ()) -> Value:
        return Value("norm", part.part.dtype.itemsize)

    def run(self, part: Replica, elsewhere: Sequence[Value] = ()) -> Tensor:
        """The sum (), 0 for a part that has taken no step."""
        norm_here = part.weights.squared_norms
        if norm_here is None:
            norm_here = part.weights.flat.new_zeros(())
        for norm in elsewhere:
            norm_here = norm_here + norm.load()
        return norm_here
