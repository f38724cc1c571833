"""A run neither takes over what its caller has set, nor leaves anything changed."""

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import sfl_sim
from sfl_sim.training.process import SETTINGS, _read, own_process

pytestmark = pytest.mark.usefixtures("without_pages")


def drawing():
    """A network that draws from all global generators when it is made, and from torch's when it runs."""
    last = nn.Linear(144, 10)
    with torch.no_grad():
        last.weight *= 1 + np.random.rand() * random.random()  # noqa: NPY002
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), last)


def drawn_data():
    x = np.random.randn(40, 1, 8, 8) + torch.rand(40, 1, 8, 8).numpy()  # noqa: NPY002
    y = np.arange(40) % 10
    random.shuffle(y)
    return x[:30], y[:30], x[30:], y[30:]


def digests(out, **more):
    """Run a study whose model, data and optimiser draw; gives the digests of weights and timeline."""
    scenario = {
        "model": {"factory": drawing}, "data": {"factory": drawn_data}, "clients": {"count": 2},
        "train": {"rounds": 2, "batch_size": 8} | more,
    }  # fmt: skip
    summary = sfl_sim.run(scenario, out=out, progress=False).summary
    return summary["weights_digest"].tolist() + summary["timeline_digest"].tolist()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The digests in a process in which nothing has been set."""
    return digests(tmp_path_factory.mktemp("plain") / "run")


def states():
    """All that a caller can ask for of its process."""
    return [
        *map(_read, SETTINGS), np.geterr(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.get_default_device(), torch.get_rng_state().tolist(), str(np.random.get_state()),  # noqa: NPY002
        random.getstate(),
    ]  # fmt: skip


WORLDS = {
    "seeds": (lambda: (torch.manual_seed(5), np.random.seed(6), random.seed(7)), nullcontext),  # noqa: NPY002
    "dtype": (lambda: torch.set_default_dtype(torch.float64), nullcontext),
    "autocast": (nullcontext, lambda: torch.autocast("cpu", torch.bfloat16)),
    "no gradients": (nullcontext, torch.no_grad),
    "inference": (nullcontext, torch.inference_mode),
    "device": (nullcontext, lambda: torch.device("meta")),
    "deterministic": (lambda: torch.use_deterministic_algorithms(mode=True, warn_only=True), nullcontext),
    "threads": (lambda: torch.set_num_threads(2), nullcontext),
    "denormals": (lambda: torch.set_flush_denormal(True), nullcontext),
    "convolutions": (lambda: setattr(torch.backends.mkldnn, "enabled", False), nullcontext),
    "products": (lambda: torch.set_float32_matmul_precision("medium"), nullcontext),
    "cudnn": (lambda: setattr(torch.backends.cudnn, "benchmark", True), nullcontext),
    "attention": (lambda: torch.backends.cuda.enable_flash_sdp(enabled=False), nullcontext),
    "numpy": (nullcontext, lambda: np.errstate(all="raise")),
}


@pytest.mark.parametrize("name", WORLDS)
def test_what_the_caller_has_set_changes_no_run_and_is_given_back(name, plain, tmp_path):
    setting, context = WORLDS[name]
    with own_process():  # which takes back what this test sets
        setting()
        with context():
            before = states()
            seen = digests(tmp_path / "run")
            assert states() == before
    assert seen == plain


def test_a_run_in_bfloat16_within_the_caller_s_autocast_steps_its_own_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("sfl_sim.training.hardware._slow_bf16", lambda *_: None)
    alone = digests(tmp_path / "alone", precision="bf16")
    with torch.autocast("cpu", torch.bfloat16):
        assert digests(tmp_path / "within", precision="bf16") == alone


def test_a_run_that_fails_gives_all_back_too(tmp_path):
    def failing():
        torch.set_default_dtype(torch.float64)
        np.random.rand()  # noqa: NPY002
        raise ValueError("no data")

    before = states()
    with pytest.raises(sfl_sim.ScenarioError):
        sfl_sim.run({"data": {"factory": failing}}, out=tmp_path / "run", progress=False)
    assert states() == before
