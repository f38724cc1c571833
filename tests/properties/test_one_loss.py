"""One loss: whatever trains, attacks or evaluates asks the network for it, so that another one takes its place.

Twice the loss at half the learning rate is the same training to the bit, unless some step has a loss of its own.
"""

from dataclasses import replace

import pytest
import torch
from small_world import distance, simulate, task, usual_options

from sfl_sim.engine.experiment import Experiment
from sfl_sim.methods import METHODS
from sfl_sim.models.forward_settings import ForwardSettings
from sfl_sim.models.losses import cross_entropy
from sfl_sim.models.replica import through
from sfl_sim.scenario.load import parse
from sfl_sim.training.evaluate import evaluate

CPU = torch.device("cpu")
SPLIT = [name for name, kind in METHODS.items() if kind.is_split]


def twice(outputs, targets, reduction="mean"):
    return 2 * cross_entropy(outputs, targets, reduction)


def trained(name, scale, loss=cross_entropy):
    """A method after two rounds, at learning rates divided by `scale`, as is the weight of what is no task's loss."""
    work = task([8, 8, 6], lr=0.1 / scale)
    work = replace(work, network=work.network.with_settings(ForwardSettings(loss=loss)))
    options = {
        "fedprox": {"mu": 0.1 * scale},
        "harmony": {"inner_lr": 0.05 / scale, "csa_weight": 20.0 * scale, "quantise": False},
        "splitgp": {"ft_steps": 2, "ft_lr": 0.1 / scale},
        "locfedmix": {"recon_weight": scale},
    }.get(name, usual_options(name))
    method, simulator, _ = simulate(name, work, options=options)
    simulator.run(method.finish(), 2, in_round=False)
    return method


def answers(method, c):
    """What client `c` answers by itself and with the server, of which an exit learns by steps of its own."""
    model, x = method.deployed(c), torch.linspace(-1, 1, 32, dtype=torch.float64).view(2, 1, 4, 4)
    ways = model.on_device, [*model.front, *model.back]
    return torch.cat([through(way, x, training=False) for way in ways])


@pytest.mark.parametrize("name", sorted(METHODS))
def test_twice_the_loss_at_half_the_rate_is_the_same_training(name):
    usual, other = trained(name, 1), trained(name, 2, twice)
    assert distance(usual, other) <= (1e-6 if name == "fsl_sage" else 0)  # whose Adam has an epsilon
    if usual.has_exits:
        assert all(torch.equal(answers(usual, c), answers(other, c)) for c in range(3))
    assert distance(usual, trained(name, 2)) > 1e-4  # or nothing would have been learned from any loss


def experiment(name, loss, monkeypatch):
    monkeypatch.setattr("sfl_sim.build.method.build_loss", lambda *args: loss)
    options = {"hydra": {"cut2": 3}, "harmony": {"quantise": False}}
    options |= {name: {"host": "splitfed_v1"} for name in ("fedbuff", "fedasync")}
    scenario = {
        "data": {"train_samples": 40, "test_samples": 10},
        "clients": {"count": 4, "participation": 0.5},
        "method": {"name": name, **options.get(name, {})},
        "train": {"batch_size": 8, "momentum": 0.5},
        "report": {"leakage": {"samples": 10}},
    }
    return Experiment(parse(scenario).variants[0].scenario, CPU)


@pytest.mark.parametrize("name", SPLIT)
def test_who_listens_sees_gradients_of_the_loss(name, monkeypatch):
    def heard(loss):
        with monkeypatch.context() as patch:
            run = experiment(name, loss, patch)
        front, back = run.method.sides(0)
        images = run.meter.images
        with torch.no_grad():
            smashed = through(front, images.prepare(images.x[:8]), training=False)
        return run.meter._exchanged(smashed, images.y[:8], back, (1, 1, 0, 0))[1]

    usual, other = heard(cross_entropy), heard(twice)
    assert usual.any()
    assert torch.equal(other, 2 * usual)


def test_evaluation_reports_the_loss(monkeypatch):
    def reported(loss):
        with monkeypatch.context() as patch:
            run = experiment("splitfed_v3", loss, patch)
        data = run.dataset
        return evaluate(run.method.model(), data.x_test, data.y_test, data.n_labels, run.method.data.images.prepare)

    assert reported(twice).loss == 2 * reported(cross_entropy).loss
