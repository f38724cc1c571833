"""Zeroth order: directions, estimates, and weights that nothing shifts for good."""

import pytest
import torch
from small_world import batch_norm_net, task
from torch import nn

from sfl_sim.ops import Value
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.zeroth import Directions, SeededStep, shifted


@pytest.mark.parametrize(("dist", "squared"), [("gauss", 5), ("sign", 3), ("sphere", 3)])
def test_directions_have_the_variance_that_theory_gives(dist, squared):
    """E |g|^2 of one direction is d + 2 or d times the gradient's squared norm, and E u u^T is the identity."""
    replica = vector(3)
    drawn = torch.stack([Directions(dist, 1, 1.0, n).draw(0, [replica])[0][:3] for n in range(3000)])
    assert torch.allclose(drawn.T @ drawn / len(drawn), torch.eye(3, dtype=drawn.dtype), atol=0.1)
    gradient = torch.tensor([1.0, 0, 0], dtype=drawn.dtype)
    estimates = (drawn @ gradient).unsqueeze(1) * drawn
    assert estimates.square().sum(dim=1).mean().item() == pytest.approx(squared, rel=0.08)


def vector(n):
    """Three parameters, those of a linear map."""

    def build(shape, n_labels):
        return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(16, n)), nn.Linear(n, 1, bias=False), nn.Flatten())

    return task([2], build=build).network.split(1, 2, seed=0, device=torch.device("cpu"))[1]


def test_directions_are_the_same_whenever_they_are_drawn_and_differ_otherwise():
    one, replica = Directions("gauss", 2, 1.0, seed=3, ids=(1, 2)), vector(3)
    assert torch.equal(one.draw(1, [replica])[0], one.draw(1, [replica])[0])
    others = [
        one.draw(0, [replica]),
        one.of(1, 3).draw(1, [replica]),
        Directions("gauss", 2, 1.0, 4, (1, 2)).draw(1, [replica]),
    ]
    assert all(not torch.equal(one.draw(1, [replica])[0], other[0]) for other in others)
    assert len(set(one.seeds().tolist())) == 2


def test_a_sphere_is_that_of_all_parameters_together():
    parts = task([2]).network.split(1, seed=0, device=torch.device("cpu"))
    u = Directions("sphere", 1, 1.0, 0).draw(0, parts)
    n = sum(part.part.n_parameters for part in parts)
    assert sum(float(piece.square().sum()) for piece in u) == pytest.approx(n)


def test_shifts_leave_nothing_behind():
    """Not in weights, whatever the number of passes, nor in statistics."""
    (whole,) = task([4], build=batch_norm_net).split()
    before = whole.weights.flat.clone(), whole.weights.buffers.clone()
    directions = Directions("gauss", 20, 1e-3, 0)
    for u in directions.all([whole]):
        shifted([whole], torch.randn(3, 1, 4, 4, dtype=torch.float64), u, directions.mu)
    assert torch.equal(before[0], whole.weights.flat)
    assert torch.equal(before[1], whole.weights.buffers)


def test_a_step_takes_the_mean_of_directions_times_slopes():
    replica, directions = vector(3), Directions("gauss", 2, 1.0, 0)
    before = replica.weights.flat.clone()
    SeededStep(Sgd(0.5), directions).run(replica, Value("numbers", content=torch.tensor([1.0, -3.0])))
    one, other = (u[0] for u in directions.all([replica]))
    assert torch.allclose(replica.weights.flat, before - 0.5 * (one - 3 * other) / 2)
