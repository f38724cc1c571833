"""The batched executor against the eager one, in float64: same timeline, same weights up to rounding."""

import gc
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import ANY_CUT, CASES, batch_norm_net, distance, fleet, mlp, simulate, task, tensors, worlds
from torch import nn

from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.scenario.load import parse
from sfl_sim.testing import World, check_batched
from sfl_sim.training import stacked
from sfl_sim.training.batched import Batched
from sfl_sim.training.deferred import Deferred
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import Train

EXACT = 1e-10
CPU = torch.device("cpu")


def batched(name, work, max_group=64, **settings):
    """A method after its rounds under the batched executor; the executor; the operations."""
    executor = Batched(max_group, min_group=2)
    method, _, rows = simulate(name, work, executor=executor, **settings)
    executor.finish()
    return method, executor, rows


@settings(deadline=None, max_examples=20)
@given(
    case=st.sampled_from(CASES),
    world=worlds(
        st.lists(st.integers(2, 10), min_size=2, max_size=4),
        batch_size=st.integers(1, 5),
        build=st.sampled_from([mlp, batch_norm_net]),
        cut=st.integers(1, 2),
        local_epochs=st.integers(1, 2),
        weight_decay=st.sampled_from([0.0, 1e-2]),
    ),
    max_group=st.integers(2, 6),
)
def test_batched_is_eager(case, world, max_group):
    """Results are equal in any order of execution, for random methods, worlds and settings, rounds run together too."""
    executor = Batched(max_group, min_group=2)
    check_batched(case, world, executor)
    assert executor.one_by_one is None


@pytest.mark.parametrize("case", ANY_CUT, ids=str)
def test_batched_is_eager_where_clients_have_different_cuts(case):
    check_batched(case, World(settings={"cuts": [1, 2, 1]}))


def test_the_second_run_is_equal_to_the_bit():
    work = task([9, 7, 5], build=batch_norm_net, momentum=0.9)
    one, other = (tensors(batched("splitfed_v1", work)[0]) for _ in range(2))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.fixture
def group_sizes(monkeypatch):
    """Count the groups of replicas that ran as one, by step."""
    sizes = {name: Counter() for name in ("forward", "train", "backward")}

    def counting(name, usual):
        def counted(replicas, *args, **settings):
            sizes[name][len(replicas)] += 1
            return usual(replicas, *args, **settings)

        return counted

    for name in sizes:
        monkeypatch.setattr(stacked, name, counting(name, getattr(stacked, name)))
    return sizes


@pytest.fixture
def stack_sizes(monkeypatch):
    """List the number of replicas copied into each new stack."""
    sizes, usual = [], stacked.Stack.__init__
    monkeypatch.setattr(stacked.Stack, "__init__", lambda self, rows: sizes.append(len(rows)) or usual(self, rows))
    return sizes


def test_clients_with_equally_many_samples_go_in_step_however_fast_they_are(group_sizes, stack_sizes):
    """Stack each part once a round, beside the pair that shows if the part can be stacked."""
    rates = [1e4, 1e5, 2e5, 1e6, 3e6]
    batched("splitfed_v1", task([12] * 5), world=fleet(5, rates, rates[::-1]), rounds=2)
    assert group_sizes == {name: {5: 6} for name in group_sizes}
    assert sorted(stack_sizes) == [2, 2, 5, 5, 5, 5]


def test_clients_of_one_server_model_run_part_1_together_whatever_the_order_at_the_server(group_sizes, stack_sizes):
    batched("splitfed_v2", task([12] * 5), order="random_sweep", workers=1, rounds=1)
    assert group_sizes == {"forward": {5: 3}, "train": {}, "backward": {5: 3}}
    assert sorted(stack_sizes) == [2, 2, 5]


def test_a_wave_larger_than_a_group_may_be_goes_on_to_its_backward_passes_first(group_sizes):
    work = task([12] * 6)
    graphs = work.network.forward_settings.graphs
    batched("splitfed_v1", work, max_group=2, rounds=1)
    assert group_sizes == {name: {2: 9} for name in group_sizes}
    assert graphs.peak == 2


def test_graphs_beyond_the_limit_are_computed_again():
    work = task([12, 8, 10], build=batch_norm_net, momentum=0.9)
    work.network.forward_settings.graphs.limit = 2
    assert distance(simulate("splitfed_v2", work)[0], batched("splitfed_v2", work)[0]) < EXACT
    assert work.network.forward_settings.graphs.peak <= 2


class Branching(nn.Module):
    """A layer that looks at a value."""

    def forward(self, x):
        return x if not self.training or x.mean() > 0 else x + x


def with_layer(layer):
    def build(shape, n_labels):
        net = mlp(shape, n_labels)
        net[1].append(layer())
        return net

    return build


@pytest.mark.parametrize(("layer", "reason"), [(nn.Dropout, "random"), (Branching, "data-dependent")])
@pytest.mark.parametrize("name", ["fedavg", "splitfed_v1", "splitfed_v2"])
def test_what_cannot_run_as_one_runs_as_with_the_eager_executor_and_says_why(name, layer, reason):
    """Results are equal to the bit, random draws included."""
    torch.manual_seed(0)
    eager, *_ = simulate(name, task(build=with_layer(layer)))
    torch.manual_seed(0)
    late, executor, _ = batched(name, task(build=with_layer(layer)))
    assert reason in executor.one_by_one
    assert reason in executor.name
    assert distance(eager, late) == 0


class Halved(Train):
    """A user's own step: half the learning rate."""

    def run(self, part, data):
        return Train(Sgd(self.optimiser.lr / 2)).run(part, data)


def test_a_step_that_overrides_how_it_runs_is_not_run_by_what_it_inherits(group_sizes, monkeypatch):
    monkeypatch.setattr("sfl_sim.methods.fedavg.Train", Halved)
    eager, *_ = simulate("fedavg", task([8, 8]))
    late, *_ = batched("fedavg", task([8, 8]))
    assert distance(eager, late) == 0
    assert not group_sizes["train"]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_nothing_that_waited_is_alive_after_a_round(name):
    alive = batched(name, task([9, 7, 5], momentum=0.9), rounds=1)
    gc.collect()  # SimPy's processes are circles
    assert not [thing for thing in gc.get_objects() if type(thing) in {Deferred, stacked.Stack, stacked.Row}]
    del alive


def experiment(**train):
    values = {
        "data": {"train_samples": 200, "test_samples": 50, "partition": {"kind": "iid"}},
        "method": {"name": "splitfed_v1"},
        "train": {"rounds": 2, "batch_size": 8, **train},
    }
    run = Experiment(parse(values).variants[0].scenario, CPU)
    return run, list(run.rounds())


def test_a_scenario_chooses_it():
    eager, rounds = experiment()
    late, late_rounds = experiment(executor="batched")
    assert late.timeline_digest == eager.timeline_digest
    assert late.weights_digest() != eager.weights_digest()
    for one, other in zip(rounds, late_rounds, strict=True):
        assert one.row["loss"] == pytest.approx(other.row["loss"], rel=1e-4)
    assert experiment(executor="batched")[0].weights_digest() == late.weights_digest()


def test_compiled_code_is_refused():
    with pytest.raises(ScenarioError, match="cannot be batched"):
        experiment(executor="batched", compile=True)
