"""GAS: what the server learns from, when it begins to draw activations, and whom it waits for."""

import numpy as np
import pytest
import torch
from small_world import fleet, task
from torch import nn
from torch.nn.functional import cross_entropy

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.gas import Gas, GasOptions, Observe, PriorGradient, TrainFilled, merged_moments, moments
from sfl_sim.ops import State, Value
from sfl_sim.store import places
from sfl_sim.testing import simulate
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import InputGradient

SAMPLES = (12, 12, 12, 12)


def run(rounds=3, options=None, world=None, **settings):
    work = task(SAMPLES, batch_size=4, **settings)
    return simulate(Gas(work, options), rounds, world=world or fleet(4, macs_per_s=[1e5, 2e5, 4e5, 8e5]))


def test_statistics_of_bfloat16_are_kept_in_float32():
    statistics = State("statistics")
    z = torch.ones(1, 2, dtype=torch.bfloat16)
    for number in range(1, 1001):
        data = Value("smashed", samples=1, content=(z * (number > 900), torch.tensor([0])))
        Observe(n_labels=1, weight=float(number)).run(statistics, [data])
    weights, means, _ = statistics.content
    assert weights.dtype == torch.float32
    assert means[0, 0].item() == pytest.approx(1 - 900 * 901 / (1000 * 1001), rel=1e-3), "of 901 to 1000"


def rows_of(z, labels):
    return Value("smashed", samples=len(labels), content=(torch.tensor(z, dtype=torch.float64), torch.tensor(labels)))


def test_moments_merge_in_any_order_to_those_of_all_rows():
    """With equal weights of rows they are the mean and variance of everything, by label."""
    torch.manual_seed(0)
    pieces = [torch.randn(n, 3, dtype=torch.float64) for n in (2, 5, 9)]
    found = [moments(piece, torch.ones(len(piece), 1, dtype=torch.float64), weight=1.0) for piece in pieces]
    one = merged_moments(merged_moments(found[0], found[1]), found[2])
    other = merged_moments(found[2], merged_moments(found[1], found[0]))
    whole = torch.cat(pieces)
    for _, means, variances in (one, other):
        assert torch.allclose(means[0], whole.mean(0))
        assert torch.allclose(variances[0], whole.var(0, correction=0) + 1e-5)


def test_a_label_that_has_not_been_seen_has_no_weight():
    is_label = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    weights, means, variances = moments(torch.tensor([[1.0], [3.0]]), is_label, weight=2.0)
    assert weights.tolist() == [4.0, 0.0]
    assert means.flatten().tolist() == [2.0, 0.0]
    assert variances.flatten().tolist() == pytest.approx([1.0 + 1e-5, 0.0])


def test_every_label_is_seen_once_all_have_come():
    statistics, step = State("statistics"), Observe(n_labels=2, weight=1.0)
    assert step.run(statistics, [rows_of([[1.0], [3.0]], [0, 0])]) == 0
    assert step.run(statistics, [rows_of([[5.0]], [1])]) == 1
    weights, means, variances = statistics.content
    assert weights.tolist() == [2.0, 1.0]
    assert means.flatten().tolist() == [2.0, 5.0]
    assert variances.flatten().tolist() == pytest.approx([1.0 + 1e-5, 1e-5], rel=1e-6)


def test_each_label_gets_equally_many_rows_of_which_real_ones_come_first():
    fill = TrainFilled(Sgd(0.1), (3, 2), (0, "gas", 1))
    z, labels = torch.tensor([[1.0], [2.0], [3.0], [4.0], [9.0]]), torch.tensor([0, 0, 0, 0, 1])
    moments = torch.ones(2), torch.tensor([[2.0], [9.0]]), torch.zeros(2, 1)
    found, targets = fill.filled(z, labels, moments, 3, 2)
    assert targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.flatten()[:4].tolist() == [1.0, 2.0, 3.0, 9.0]
    assert found.flatten()[4:].tolist() == pytest.approx([9.0, 9.0], abs=0.02)
    again, _ = fill.filled(z, labels, moments, 3, 2)
    assert torch.equal(found, again)


def test_shares_of_labels_shift_the_answers_and_equal_ones_change_nothing():
    """A constant in front of a softmax changes nothing."""
    part2 = task([4]).network.split(1, seed=0, device=torch.device("cpu"))[1]
    value = rows_of(np.random.default_rng(0).normal(size=(2, 8)).tolist(), [0, 2])
    steps = InputGradient(), PriorGradient((-1.0,) * 3), PriorGradient((0.0, -2.0, -3.0))
    plain, equal, skewed = (step.run(part2, value) for step in steps)
    assert torch.allclose(plain, equal)
    x = value.content[0].clone().requires_grad_()
    answers = part2.weights(x, training=True) + torch.tensor([0.0, -2.0, -3.0], dtype=x.dtype)
    cross_entropy(answers, value.content[1]).backward()
    assert torch.allclose(skewed, x.grad)
    assert not torch.allclose(plain, skewed)


def test_the_server_steps_on_a_full_buffer_and_clients_wait_for_gradients_alone():
    """A step for as many mini-batches as clients train at a time; from the second on, on as many rows of each label.

    Gradients at the cut are jobs of their own, so a step's first layer computes none.
    """
    found = run(options=GasOptions(assume_start=1), device=None)
    jobs = found.rows[found.rows["node"] == b"server"]
    n, part2 = 4, found.method.parts[1].part
    gradients, steps = (jobs[jobs["kind"] == kind] for kind in (b"differentiate", b"train"))
    assert len(steps) == len(gradients) // len(SAMPLES)
    assert set(gradients["macs"]) == {2 * n * part2.macs}
    step_macs = 3 * part2.macs - found.method.task.network.layers[1].macs
    assert steps["macs"][0] == len(SAMPLES) * n * step_macs
    assert set(steps["macs"][1:]) == {3 * n * step_macs}
    down = found.rows[places.at(found.rows["node"], "downlink") & (found.rows["kind"] == b"gradients")]
    assert set(down["bytes"]) == {n * 8 * 8}


def test_gradients_for_clients_leave_part_2_alone_and_rounds_end_with_as_many_updates():
    found = run(rounds=2)
    assert found.method.version == 2
    figures = found.method.figures()
    assert figures.keys() == {"staleness_mean", "staleness_max"}
    assert figures["staleness_mean"] == pytest.approx(np.mean(found.method.staleness))


def test_rows_of_later_steps_weigh_more():
    """A row of step k counts k times."""
    method = run(rounds=2).method
    weights, _, _ = method.statistics.content
    assert method.n_steps > 1
    assert weights.sum() == sum(number * len(SAMPLES) * 4 for number in range(1, method.n_steps + 1))


def test_label_counts_are_sent_once():
    rows = run(rounds=2, device=None).rows
    counts = rows[places.at(rows["node"], "uplink") & (rows["kind"] == b"label counts")]
    assert sorted(counts["client"]) == [0, 1, 2, 3]
    assert set(counts["bytes"]) == {4 * 3}


def test_the_server_holds_one_part_a_buffer_and_statistics():
    method = run(rounds=0).method
    assert method.server_bytes(range(4)) == method.parts[1].size_bytes + (4 * 4 + 2 * 3) * 8 * 8


def test_clients_begin_a_round_while_part_2_is_still_busy():
    slow = fleet(4, macs_per_s=[1e5, 2e5, 4e5, 8e5], speedup=1e-2)
    rows = run(rounds=2, device=None, world=slow).rows
    ended_s = rows["ended_s"][(rows["round"] == 1) & (rows["kind"] == b"average")].max()
    goes_down = (rows["kind"] == b"model") & places.at(rows["node"], places.DOWNLINK)
    began_s = rows["requested_s"][(rows["round"] == 2) & goes_down].min()
    busy = rows[places.at(rows["node"], places.SERVER)]
    assert ((busy["started_s"] < ended_s) & (ended_s < busy["ended_s"])).any(), "part-2 is busy when the round ends"
    assert began_s == pytest.approx(ended_s)


def test_next_tokens_are_refused_for_activations_are_drawn_by_label():
    tokens = task(SAMPLES, build=lambda *_: nn.Sequential(nn.Flatten(1, 2), nn.Linear(4, 4), nn.Linear(4, 3)))
    with pytest.raises(ScenarioError) as refused:
        Gas(tokens)
    assert (refused.value.key, refused.value.found) == ("method.name", "gas")


def test_clients_with_mini_batches_of_other_sizes_are_refused():
    work = task(SAMPLES, batch_size=(2, 4, 4, 4))
    with pytest.raises(ScenarioError) as refused:
        Gas(work, GasOptions())
    assert refused.value.key == "train.batch_size"
