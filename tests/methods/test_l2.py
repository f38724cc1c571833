"""L2 regularisation towards the round's start: the optimiser, and SplitFedV2 with it."""

import pytest
import torch
from small_world import simulate, task, unsplit

from sfl_sim.training.optimisers import Proximal, Sgd

EXACT = 1e-10


def stepped(sgd, gradients):
    """The change of a part's first element, from 0, by steps with these gradients."""
    (whole,) = task().split()
    weights = whole.weights
    weights.flat.zero_()
    for gradient in gradients:
        weights.grad[0] = gradient
        sgd.step(weights)
    return float(weights.flat[0]), whole


def test_steps_by_hand():
    """lr .1, mu .5: -.1 * 1 = -.1; then g = 1 + .5 * -.1 = .95: -.195; then g = 2 + .5 * -.195 = 1.9025: -.38525."""
    found, _ = stepped(Sgd(0.1, rule=Proximal(0.5)), [1.0, 1.0, 2.0])
    assert found == pytest.approx(-0.38525, abs=1e-15)


def test_momentum_takes_the_penalty_in():
    """m = 1, then .5 * 1 + (1 - .05) = 1.45: -.1 - .145."""
    found, _ = stepped(Sgd(0.1, 0.5, rule=Proximal(0.5)), [1.0, 1.0])
    assert found == pytest.approx(-0.245, abs=1e-15)


def test_a_copy_refers_to_where_it_starts_itself():
    _, whole = stepped(Sgd(0.1, rule=Proximal(0.5)), [1.0])
    copy = whole.snapshot().weights
    for _ in range(2):
        copy.grad[0] = 1.0
        Sgd(0.1, rule=Proximal(0.5)).step(copy)
    assert float(copy.flat[0]) == pytest.approx(-0.1 - 0.195, abs=1e-15)


def by_hand(mu1, mu2):
    """Two rounds of one client: gradient descent with mu * (w - w_start) on top, for part-1 and part-2."""
    work = task([12])
    net = unsplit(work)
    for number in (1, 2):
        start = [parameter.detach().clone() for parameter in net.parameters()]
        for batch in work.data.batches(0, number):
            x, y = batch.load()
            net.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            with torch.no_grad():
                for (name, parameter), origin in zip(net.named_parameters(), start, strict=True):
                    mu = mu1 if name.startswith("0.") else mu2
                    parameter -= 0.1 * (parameter.grad + mu * (parameter - origin))
    return net.state_dict()


@pytest.mark.parametrize(("where", "mu1"), [("part2", 0.0), ("model", 2.0)])
def test_v2_is_regularised_where_it_is_told(where, mu1):
    method, *_ = simulate("splitfed_v2", task([12]), options={"l2": 2.0, "l2_on": where})
    expected = by_hand(mu1, 2.0)
    for part in method.model():
        for name, tensor in part.weights.named_tensors():
            assert (tensor - expected[name]).abs().max() < EXACT


@pytest.mark.parametrize("where", ["part2", "model"])
def test_the_penalty_of_part_1_is_4_bytes_more_with_every_mini_batch(where):
    work = task([12, 8, 6], device=None)
    plain, with_penalty = (
        simulate("splitfed_v2", work, 1, options=options)[2] for options in ({}, {"l2": 0.1, "l2_on": where})
    )
    jobs = (with_penalty["kind"] == b"smashed").sum()
    assert jobs == 3 + 2 + 2
    assert with_penalty["bytes"].sum() - plain["bytes"].sum() == (4 * jobs if where == "model" else 0)
