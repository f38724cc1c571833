"""Training on a device that only pretends: a tensor that lies elsewhere, or a step that waits for a number, fails.

torch's fake tensors have shapes, types and devices, and no numbers. So an operation of tensors of two devices fails,
and so does whatever asks for a number, such as a hidden `.item()`, for which the host would have to wait for a GPU. The
fake device is `meta`, since autograd refuses `cuda` where there is none. So what the code does for `cuda` alone is not
seen here: pinned memory, bf16. Nor is the decoder of `inversion`, a module that moves to its device, which fake tensors
refuse.
"""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

from sfl_sim.build.setup import setup_of
from sfl_sim.data.dataset import Dataset
from sfl_sim.engine.evaluation import Evaluator
from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.leakage import Meter
from sfl_sim.methods import METHODS
from sfl_sim.models import network
from sfl_sim.models.on_nan import OnNan
from sfl_sim.scenario.load import parse
from sfl_sim.training import optimisers, steps
from sfl_sim.training.codecs import CODECS
from sfl_sim.training.executors import Eager

DEVICE = torch.device("meta")
SMALL = {
    "data": {"name": "synthetic", "shape": [1, 8, 8], "n_labels": 4, "samples": 64, "test_samples": 8},
    "model": {"name": "cnn_small", "cut": 2},
    "clients": {"count": 4, "participation": 0.5},
    "train": {"rounds": 1, "batch_size": 8, "lr": 0.1, "momentum": 0.5},
}
READERS = [
    (Evaluator, "of_model"),
    (Evaluator, "of_round"),
    (OnNan, "end_round"),
    (Eager, "read"),
    (Meter, "measure"),
    (OnNan, "admits"),
]
"""What reads numbers; on the fake device, ones. All but the last, for `train.on_nan: skip`, once a round at most."""
WAITING = ["topk", "randtopk", "splitfc", "delta"]
"""Codecs that choose by the numbers what they send: with them the host waits for the device in every mini-batch."""
WITHOUT_NUMBERS = (RuntimeError, NotImplementedError)
"""What torch raises if a fake tensor is asked for a number, or meets a tensor of another device."""


@pytest.fixture(autouse=True)
def only_readers_read(monkeypatch):
    """Let the readers read ones, and nobody else. torch's fused steps, which know no fake tensors, go in parts."""
    reading = []

    def reads(function):
        def read(*args, **kwargs):
            reading.append(function)
            try:
                return function(*args, **kwargs)
            finally:
                reading.pop()

        return read

    def ones_for_readers(name, ones):
        real = getattr(torch.Tensor, name)

        def ask(x, *args):
            if reading and isinstance(x, FakeTensor):
                return ones(x)
            if isinstance(x, FakeTensor):
                return real(x, *args)
            with unset_fake_temporarily():  # it lies on the host
                return real(x, *args)

        monkeypatch.setattr(torch.Tensor, name, ask)

    for owner, name in READERS:
        monkeypatch.setattr(owner, name, reads(getattr(owner, name)))
    ones_for_readers("numpy", lambda x: np.ones(x.shape, str(x.dtype).partition(".")[2]))
    ones_for_readers("tolist", lambda x: np.ones(x.shape).tolist())
    ones_for_readers("item", lambda x: 1.0)
    ones_for_readers("__float__", lambda x: 1.0)
    ones_for_readers("__bool__", lambda x: True)
    monkeypatch.setattr(torch, "bincount", lambda x, weights=None, minlength=0: x.new_zeros(minlength))
    monkeypatch.setattr(Dataset, "largest_token", 19)
    monkeypatch.setattr(Dataset, "is_marked", False)
    monkeypatch.setattr(network, "_runs_channels_last", lambda sample, module: True)  # it was asked of the host
    monkeypatch.setattr(optimisers, "sgd", lambda *a, sgd=optimisers.sgd, **o: sgd(*a, **o | {"fused": False}))
    for name in ("adam", "adamw"):  # which read the number of their step where they are not fused
        monkeypatch.setattr(
            optimisers, name, lambda *a, **o: [torch.stack(together) for together in zip(*a[:4], strict=True)]
        )


def train(changes):
    """Run a round on the fake device; data and prices come from the host."""
    scenario = parse(SMALL | changes).variants[0].scenario
    setup_of(scenario, pixels=True)
    Experiment(scenario, device=None)
    with FakeTensorMode(allow_non_fake_inputs=True):
        (only,) = Experiment(scenario, DEVICE).rounds()
    assert only.row["round"] == 1


TEXT = {"name": "synthetic", "shape": [12], "n_labels": 20, "samples": 64, "test_samples": 8}
SETTINGS = {
    **{name: {"method": name} for name in METHODS},
    **{name: {"train": SMALL["train"] | {"optimizer": name}} for name in ("sgd", "nag", "adam", "adamw")},
    **{name: {"method": "splitfed_v2", "wire": {"up": name}} for name in CODECS if name not in WAITING},
    "snapshots": {"method": "splitfed_v2", "report": {"snapshots": {"rounds": [1], "every": 2}}},
    "dependence": {"report": {"leakage": {"samples": 10, "epochs": 1, "attacks": ["dependence"]}}},
    "attacks on labels": {"report": {"leakage": {"samples": 10, "epochs": 1, "attacks": ["labels"]}}},
    "noise": {"privacy": {"noise": {"clip": 1.0, "sigma": 0.1}, "gradient_noise": {"clip": 1.0, "sigma": 0.1}}},
    "nopeek": {"privacy": {"nopeek": 0.1}},
    "augmented images": {"data": SMALL["data"] | {"shape": [3, 32, 32], "augment": True}},
    "few graphs": {"train": SMALL["train"] | {"max_graphs": 1}},
    "updates left out": {"train": SMALL["train"] | {"on_nan": "skip"}},
    "coded updates": {"wire": {"update": "int8", "error_feedback": True}},
    "adapters": {"method": "splitfed_v2", "model": {"name": "gpt_small", "cut": 2}, "data": TEXT,
                 "lora": {"rank": 2, "targets": ["q", "v"]}},
}  # fmt: skip


def splits_nothing():
    """True if fake tensors without elements can be split, as those of a network without buffers are."""
    with FakeTensorMode():
        try:
            torch.empty(0).split([0])
            torch.empty(0).split(1)
        except IndexError:
            return False
    return True


@pytest.mark.skipif(not splits_nothing(), reason="fake tensors of this torch cannot be split if they are empty")
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_methods_optimisers_codecs_and_measures_stay_on_their_device_and_wait_for_nothing(settings):
    train({"method": "splitfed_v1"} | settings)


@pytest.mark.parametrize("codec", WAITING)
def test_codecs_that_choose_what_to_send_wait_for_their_numbers(codec):
    with pytest.raises(WITHOUT_NUMBERS):
        train({"method": "splitfed_v2", "wire": {"up": codec}})


@pytest.mark.parametrize(
    "mistake", [lambda loss: loss.item(), lambda loss: loss + torch.ones(3)], ids=["reads a number", "on the host"]
)
def test_a_mistake_in_a_step_is_seen(mistake, monkeypatch):
    differentiate = steps.differentiate
    monkeypatch.setattr(steps, "differentiate", lambda loss: (mistake(loss), differentiate(loss)))
    with pytest.raises(WITHOUT_NUMBERS):
        train({"method": "splitfed_v2"})
