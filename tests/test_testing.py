"""The checks of methods: every method passes them all, and each check finds what it is for."""

import re

import pytest
import torch
from drawn import drawn
from small_world import CASES

from sfl_sim.methods import METHODS, MethodOptions
from sfl_sim.methods.fedavg import FedAvg
from sfl_sim.methods.splitfed_v1 import SplitFedV1
from sfl_sim.methods.splitfed_v2 import SplitFedV2
from sfl_sim.ops import AGGREGATOR, SERVER, Step, Value, on, par, send
from sfl_sim.testing import CHECKS, Case, cases_of, check_method
from sfl_sim.training.steps import Average, Forward, Train


def every_check_of_every_method():
    """Return all pairs; three methods of each check are drawn by the commit."""
    for check in CHECKS:
        chosen = drawn(range(len(CASES)), 3, check.__name__)
        for i, case in enumerate(CASES):
            marks = [pytest.mark.drawn] if i in chosen else []
            yield pytest.param(case, check, marks=marks, id=f"{case}-{check.__name__}")


@pytest.mark.night
@pytest.mark.parametrize(("case", "check"), list(every_check_of_every_method()))
def test_every_method_passes(case, check):
    check(case)


class Undocumented(FedAvg):
    class Options(MethodOptions):
        share: float = 0.5


class Forgetful(FedAvg, survives=True):
    """Clients remember how often they have trained outside of states, and count from one when the run is resumed."""

    def client(self, c, round, train):
        self.seen = getattr(self, "seen", 0) + 1
        yield on(c, Count(self), self.whole)
        return (yield from super().client(c, round, train))


class Count(Step):
    """Adds what the method remembers to the model."""

    name = "count"

    def __init__(self, method):
        self.method = method

    def run(self, state):
        self.method.total = getattr(self.method, "total", 0) + 1
        state.weights.flat.add_(self.method.total)


class Curious(SplitFedV1):
    """The server waits for another message where it has got numbers."""

    def minibatch(self, c, part1, part2, batch, round, visit=0):
        yield from super().minibatch(c, part1, part2, batch, round, visit)
        if part1.content is not None:
            yield send(Value("more", 8), c, SERVER)


class Growing(FedAvg, regular=True):
    """Clients run one mini-batch more in every round."""

    def client(self, c, round, train):
        copy = yield from self.wire.fetch(self.whole, c)
        for batch in list(self.data.batches(c, round))[:round]:
            yield on(c, train, copy, batch)
        return (yield from self.wire.deliver(copy, c, round))


class Short(SplitFedV1):
    """Messages count too few bytes."""

    forward = type("ShortForward", (Forward,), {"out": lambda self, *args: halved(Forward().out(*args))})()


def halved(value):
    value.size_bytes //= 2
    return value


class Raw(SplitFedV1):
    """Activations travel as they are, whatever codec the scenario names."""

    def minibatch(self, c, part1, part2, batch, round, visit=0):
        smashed = yield on(c, self.forward, part1, batch)
        smashed = yield send(smashed, c, SERVER)
        gradient = yield on(SERVER, self.server_step(round), part2, smashed)
        gradient = yield send(gradient, SERVER, c)
        yield on(c, self.backward(round, c), part1, gradient)


class Lasting(SplitFedV2):
    """The optimiser of the server goes on in the next round."""

    def round(self, round, clients):
        flow, sent = super().round(round, clients), None
        next(flow)  # to renew it
        while True:
            try:
                sent = yield flow.send(sent)
            except StopIteration:
                return


class Twice(FedAvg):
    """Clients take every step twice."""

    def client(self, c, round, train):
        copy = yield from self.wire.fetch(self.whole, c)
        for batch in self.data.batches(c, round):
            yield on(c, train, copy, batch)
            yield on(c, train, copy, batch)
        return (yield from self.wire.deliver(copy, c, round))


class Restless(SplitFedV2, survives=True):
    """Who looks at the current model changes it."""

    def current(self):
        self.part2.weights.flat.mul_(0.9)
        return super().current()


class Stubborn(FedAvg, survives=True):
    """A round waits until each client has come, without end if one is lost."""

    def round(self, round, clients):
        for c in clients:
            yield on(c, Train(self.optimiser(round)), self.whole, next(self.data.batches(c, round)))


class Trained(FedAvg, survives=True):
    """Base of methods whose clients train by a step of their own."""

    def client(self, c, round, train):
        return (yield from super().client(c, round, self.step(self.optimiser(round))))


class Noise(Train):
    """Training with noise that no seed decides."""

    def run(self, part, data):
        gradient = super().run(part, data)
        part.weights.flat.add_(torch.rand(len(part.weights.flat)))
        return gradient


class Noisy(Trained):
    """Clients add noise."""

    step = Noise


class Rash(Train):
    """Training that does not ask whether a gradient may be applied."""

    def run(self, part, data):
        gradient = self.differentiate(part, data)
        part.weights.flat.sub_(self.optimiser.lr * part.weights.grad)
        part.weights.grad.zero_()
        return gradient


class Reckless(Trained):
    """Clients apply any gradient."""

    step = Rash


class Counting(FedAvg, survives=True):
    """The aggregator divides by the clients that were chosen, not by those that are left."""

    def round(self, round, clients):
        copies = yield par({c: self.client(c, round, Train(self.optimiser(round))) for c in clients})
        shares = [share / len(clients) * len(copies) for share in self.task.shares(list(copies))] if copies else []
        yield on(AGGREGATOR, Average(), self.whole, list(copies.values()), shares)


def claiming(kind, **traits):
    """Make a method that only claims other traits."""
    survives, regular = kind.survives, traits.pop("regular", False)
    return type(f"Claiming{kind.__name__}", (kind,), {"__doc__": "It says so.", **traits}, survives=survives,
                regular=regular)  # fmt: skip


WRONG = [
    (Undocumented, "check_documented", "has no docstring"),
    (Forgetful, "check_resume", "outside of states"),
    (Curious, "check_timing_only", "another timeline"),
    (Growing, "check_array_clock", "is not regular"),
    (claiming(METHODS["fedbuff"], regular=True), "check_array_clock", "is not regular"),
    (Noisy, "check_repeatable", "different numbers"),
    (Reckless, "check_on_nan", "not finite"),
    (Counting, "check_lost_early", "changes numbers"),
    (Counting, "check_all_lost", "changes the model"),
    (Short, "check_bytes", "smashed of"),
    (Raw, "check_codecs", r"wire\.up codes no"),
    (Lasting, "check_optimisers", "not new"),
    (Twice, "check_neutral", "is not SGD"),
    (Restless, "check_current", "`current` changes"),
    (Stubborn, "check_rounds_end", "has gone away"),
    (claiming(SplitFedV1, gets_gradients=False), "check_messages", "gets_gradients is False"),
    (claiming(SplitFedV1, uploads_model=False), "check_messages", "uploads_model is False"),
    (claiming(METHODS["splitfed_v3"], uploads_model=True), "check_messages", "uploads_model is True"),
    (claiming(SplitFedV1, sends_labels=False), "check_messages", "sends_labels is False"),
    (claiming(SplitFedV1, has_exits=True), "check_deployed", "has_exits is True"),
    (claiming(SplitFedV1, trains_part1=False), "check_deployed", "trains_part1 is False"),
    (claiming(SplitFedV1, follows_order=True), "check_time", "follows_order is True"),
    (claiming(SplitFedV1, shares_server_model=True), "check_second_worker", "shares_server_model is True"),
    (claiming(SplitFedV1, depends_on_time=True), "check_time", "depends_on_time is True"),
    (claiming(SplitFedV2, depends_on_time=False), "check_time", "depends_on_time is False"),
    (claiming(SplitFedV2, forgets_lost=True), "check_lost", "forgets_lost is True"),
    (claiming(FedAvg, forgets_lost=False), "check_lost", "forgets_lost is False"),
    (claiming(FedAvg, ignores={"clients.choice": "it says so"}), "check_ignored", r"clients\.choice has an effect"),
    (claiming(METHODS["gas"], ignores={}), "check_ignored", r"clients\.choice has no effect"),
    (claiming(METHODS["fedprox"], like="fedavgm"), "check_idea", "other numbers than fedavgm"),
    (claiming(SplitFedV1, like="fedavg"), "check_idea", "learns what fedavg"),
    (claiming(METHODS["fedavgm"], only_averages=True), "check_adapters", "it aggregates otherwise"),
]


@pytest.mark.parametrize(
    ("kind", "check", "problem"), WRONG, ids=[f"{kind.__name__}-{check}" for kind, check, _ in WRONG]
)
def test_a_wrong_method_is_found(kind, check, problem):
    (run,) = [each for each in CHECKS if each.__name__ == check]
    with pytest.raises(Exception, match=problem):
        run(cases_of(kind)[0])


def test_all_problems_of_a_method_are_told_in_one_line_each():
    with pytest.raises(AssertionError) as failed:
        check_method(claiming(FedAvg, forgets_lost=False, gets_gradients=True))
    lines = str(failed.value).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["ClaimingFedAvg", "check_messages"], ["ClaimingFedAvg", "check_codecs"], ["ClaimingFedAvg", "check_lost"],
    ]  # fmt: skip


def test_options_of_the_caller_replace_the_examples(monkeypatch):
    seen = []
    monkeypatch.setattr("sfl_sim.testing.CHECKS", (seen.append,))
    options = SplitFedV1.Options(server_agg_every="step")
    check_method(SplitFedV1, options)
    assert seen == [Case(SplitFedV1, options)]
    assert str(seen[0]) == "SplitFedV1 {'server_agg_every': 'step'}"


@pytest.mark.parametrize("kind", ["splitfed_v1", int, None])
def test_what_is_no_class_of_a_method_is_named(kind):
    with pytest.raises(TypeError, match=re.escape(repr(kind))):
        check_method(kind)
