"""Defaults of a user's own step."""

from dataclasses import dataclass

import torch
from small_world import fleet, simulate, task

from sfl_sim.methods import METHODS
from sfl_sim.methods.fedavg import FedAvg
from sfl_sim.ops import State, Step, Value, Work, on
from sfl_sim.training.steps import Train


class Count(Step):
    """Counts how often it is run, in a state of its own."""

    name = "count"

    def run(self, state, *args):
        state.content = 1 + (state.content or 0)


@dataclass(frozen=True)
class TrainCounted(Train):
    """`Train` with an argument more."""

    def run(self, part, data, counter):
        counter.content = 1 + (counter.content or 0)
        return super().run(part, data)


class Counting(FedAvg, survives=True):
    """FedAvg that counts mini-batches."""

    def __init__(self, task, options=None):
        super().__init__(task, options)
        self.clients, self.batches = State("clients"), State("mini-batches")

    def client(self, c, round, train):
        yield on(c, Count(), self.clients)
        copy = yield from super().client(c, round, train)
        batch = next(self.data.batches(c, round))
        yield on(c, TrainCounted(self.optimiser(round)), copy, batch, self.batches)
        return copy


def test_a_step_that_only_changes_its_own_state_costs_nothing_and_belongs_to_its_mini_batch():
    state = State("counter")
    assert Count().work(state) == Work.of(0)
    assert Count().out(state, [1, 2], Value("smashed", step=3)).step == 3
    assert (Count().out(state).step, Count().out(state).size_bytes) == (-1, 0)


def test_a_train_step_with_more_arguments_costs_what_train_costs(monkeypatch):
    monkeypatch.setitem(METHODS, "counting", Counting)
    method, _, trained = simulate("counting", task([8, 4]), 2, world=fleet(2))
    assert (method.clients.content, method.batches.content) == (4, 4)
    *_, timed = simulate("counting", task([8, 4], device=None), 2, world=fleet(2))
    assert trained.tobytes() == timed.tobytes()
    (first, *_, last) = timed[timed["client"] == 0][: 1 + 1 + 2 + 1 + 1]
    assert (first["kind"], first["macs"], last["kind"]) == (b"count", 0, b"train")
    assert last["macs"] == timed["macs"].max()
    assert torch.isfinite(method.whole.weights.flat).all()
