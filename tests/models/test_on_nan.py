"""A learning rate at which every network diverges: the run stops at the first loss that shows it, or goes on."""

import math

import pytest
import torch
from small_world import batch_norm_net, simulate, task

from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import NonFiniteError
from sfl_sim.methods.smofi import Fusion
from sfl_sim.methods.wire import Wire
from sfl_sim.models.averages import average
from sfl_sim.models.network import Network
from sfl_sim.models.on_nan import OnNan
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import Value, on
from sfl_sim.scenario.load import parse
from sfl_sim.training.executors import Eager
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import Train

CPU = torch.device("cpu")


def experiment(method, lr, on_nan, options=None, model=None, **train):
    scenario = {
        "model": model or {},
        "data": {"train_samples": 120, "test_samples": 40},
        "clients": {"count": 5, "participation": 0.8},
        "method": {"name": method, **(options or {})},
        "train": {"rounds": 3, "batch_size": 8, "lr": lr, "on_nan": on_nan, **train},
    }
    return Experiment(parse(scenario).variants[0].scenario, CPU)


def test_the_first_loss_that_is_no_number_stops_the_run_and_names_the_operation():
    run = experiment("splitfed_v1", 1e30, "stop")

    with pytest.raises(NonFiniteError) as caught:
        list(run.rounds())

    assert caught.match(r"train of mini-batch 1 of client \d, at the server is nan; .*train\.lr, .*train\.on_nan")


def test_a_client_that_trains_alone_is_named():
    with pytest.raises(NonFiniteError, match=r"train of mini-batch 1 of client \d is nan"):
        list(experiment("fedavg", 1e30, "stop").rounds())


@pytest.mark.parametrize("method", ["splitfed_v1", "smofi"])
def test_a_run_that_skips_goes_on_and_ends_with_finite_weights(method):
    run = experiment(method, 1e30, "skip", **({"momentum": 0.5} if method == "smofi" else {}))

    rounds = list(run.rounds())

    assert len(rounds) == 3
    assert sum(found.row["skipped"] for found in rounds) > 0
    assert all(torch.from_numpy(values).isfinite().all() for values in run.weights().values())


def test_where_all_is_finite_nothing_is_skipped_and_not_a_bit_differs():
    stop, skip = (experiment("splitfed_v2", 0.05, on_nan, momentum=0.9) for on_nan in ("stop", "skip"))

    rounds = [list(stop.rounds()), list(skip.rounds())]

    assert [found.row["skipped"] for found in rounds[1]] == [0, 0, 0]
    assert "skipped" not in rounds[0][0].row
    assert stop.weights_digest() == skip.weights_digest()


def test_an_update_that_is_left_out_leaves_everything_as_it_was():
    """Also the statistics of batch norm, which the forward pass has moved."""
    (model,) = Network("tried", batch_norm_net, (2, 8, 8), 3, torch.float64).split(seed=0, device=CPU)
    executor = Eager(OnNan(skips=True))
    train, labels = Train(Sgd(0.1, momentum=0.9)), torch.tensor([0, 1])
    x = torch.rand(2, 2, 8, 8, dtype=torch.float64)
    fine, bad = (Value("batch", samples=2, content=(images, labels)) for images in (x, 1e308 * x))
    weights = model.weights
    executor.run(on(0, train, model, fine))
    before = [numbers.clone() for numbers in (weights.flat, weights.buffers, weights.momentum)]

    executor.run(on(0, train, model, bad))

    assert executor.on_nan.take() == 1
    for was, now in zip(before, (weights.flat, weights.buffers, weights.momentum), strict=True):
        assert torch.equal(was, now)
    executor.run(on(0, train, model, fine))
    assert not torch.equal(before[0], weights.flat)


def test_a_fused_step_that_is_left_out_leaves_the_surrogates_own_buffer():
    (model,) = Network("tried", batch_norm_net, (2, 8, 8), 3, torch.float64).split(seed=0, device=CPU)
    sgd = Sgd(0.1, momentum=0.5)
    fusion = Fusion(model, 1, sgd)
    model.weights.grad.fill_(1.0)
    fusion.advance(model.weights, 0, sgd)
    model.weights.grad.fill_(float("nan"))

    with OnNan(skips=True).in_force():
        fusion.advance(model.weights, 0, sgd)

    assert fusion.buffers[0].eq(1).all()


def test_harmony_leaves_the_statistics_of_an_update_that_is_left_out():
    """They come from the adapted copy, in which the loss has overflowed."""
    run = experiment("harmony", 0.01, "skip", options={"inner_lr": 1e30}, model={"name": "cnn_patches_bn"})

    rounds = list(run.rounds())

    assert sum(found.row["skipped"] for found in rounds) > 0
    assert all(torch.from_numpy(values).isfinite().all() for values in run.weights().values())


def test_fednag_goes_on_where_all_updates_of_a_client_were_left_out():
    run = experiment("fednag", 0.05, "skip", momentum=0.5)
    images, ill = run.method.data.images, run.shares[run.walk.participation.draw(1, run.setup.cyclic)[0]]
    images.x = images.x.float() / 255
    images.x[ill] = float("inf")
    skipped = [found.row["skipped"] for found in run.rounds()]
    assert skipped[0] > 0
    assert all(piece.weights.momentum.isfinite().all() for piece in run.method.pieces)


def test_a_velocity_that_is_not_there_counts_as_zero():
    (replica,) = Network("tried", batch_norm_net, (2, 8, 8), 3, torch.float64).split(seed=0, device=CPU)
    into, moving, resting = (replica.snapshot().weights for _ in range(3))
    moving.momentum = torch.ones_like(moving.flat)
    average(into, [moving, resting], [0.25, 0.75], with_momentum=True)
    assert into.momentum.tolist() == [0.25] * len(into.flat)


def test_layers_that_have_taken_no_step_are_at_rest_where_others_are_not():
    network = Network("tried", batch_norm_net, (2, 8, 8), 3, torch.float64)
    parts = [Replica(each.part, each.content, has_velocity=True) for each in network.split(1, seed=0, device=CPU)]
    moving = parts[1].weights.momentum = torch.ones_like(parts[1].weights.flat)
    velocity = Joined(network.part(0, 3), parts).snapshot().weights.momentum
    assert velocity.tolist() == [0.0] * len(parts[0].weights.flat) + moving.tolist()


@pytest.mark.parametrize(
    ("name", "wire", "options"), [("harmony", {}, {"csa_weight": math.inf}), ("splitfed_v1", {"nopeek": math.inf}, {})]
)
def test_a_loss_beside_the_tasks_stops_the_run_where_it_appears(name, wire, options):
    """The task's loss of the next mini-batch would be NaN."""
    with pytest.raises(NonFiniteError, match=r"(align|nopeek) of mini-batch 0 of client 0.* is inf"):
        simulate(name, task([8, 8], wire=Wire(**wire)), options=options)


def test_losses_on_a_gpu_are_looked_at_when_the_round_ends():
    on_nan = OnNan()
    on_nan._unseen = [(torch.tensor(1.0), " of a"), (torch.tensor(float("inf")), " of b")]

    with pytest.raises(NonFiniteError, match=r"^the loss of b is inf"):
        on_nan.end_round()
    on_nan.end_round()
