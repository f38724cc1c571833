"""The first step: what would end a run within its first round is told before it, with its key."""

import random
from math import inf

import numpy as np
import pytest
import torch
from small_study import SCENARIO, TIMING, study, summaries
from torch import nn
from torch.nn import functional

from sfl_sim.data.batches import ClientData
from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.first_step import CLIENT_S, MACS_PER_S, N_TESTED, OP_S, first_step
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.splitfed_v1 import SplitFedV1
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.own_code import Permission, permitted
from sfl_sim.studies import train
from sfl_sim.studies.launch import TrialsFailed
from sfl_sim.studies.train import check, run_study
from sfl_sim.training.codecs import Codec

pytestmark = pytest.mark.usefixtures("without_pages")

CPU = torch.device("cpu")
TRAINING = Settings(device="cpu", threads=1)
HERE = __name__


class Two(nn.Module):
    """Two layers, to be called in a way of one's own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 16), nn.Linear(16, 10)


class ChangesInPlace(Two):
    def forward(self, x):
        hidden = self.a(x.flatten(1)).exp()
        hidden.mul_(2)
        return self.b(hidden)


class Detached(Two):
    def forward(self, x):
        return self.b(self.a(x.flatten(1)).relu()).detach()


class Synchronised(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.b = nn.SyncBatchNorm(1), nn.Linear(64, 10)

    def forward(self, x):
        return self.b(self.norm(x).flatten(1))


class SevenLabels(Two):
    def __init__(self):
        super().__init__()
        self.b = nn.Linear(16, 7)

    def forward(self, x):
        return self.b(self.a(x.flatten(1)))


class Complex(Two):
    def forward(self, x):
        return torch.fft.fft(self.b(self.a(x.flatten(1))))


class WithDefaults(Two):
    """Arguments with defaults are no place for a shape and a number of labels."""

    def __init__(self, width=16, n_labels=10):
        super().__init__()
        self.a, self.b = nn.Linear(64, width), nn.Linear(width, n_labels)

    def forward(self, x):
        return self.b(self.a(x.flatten(1)))


def for_two_samples(outputs, targets):
    return functional.cross_entropy(outputs.view(2, 10), targets)


def of_seven_labels(outputs, targets):
    weights = torch.ones(7) if len(outputs) > 2 else None
    return functional.cross_entropy(outputs, targets, weight=weights)


def by_sample(outputs, targets):
    return (outputs.argmax(1) == targets).float()


def of_one(candidates):
    return candidates.clients[:1]


def by_losses_of_no_client(candidates, utility):
    return sorted(candidates.clients, key=lambda client: utility["losses", client])[: candidates.n]


def lost(roster):
    return lambda waiting, now_s: waiting["nobody"]


def waits(roster):
    """Serve nobody before three clients have come."""
    came = set()

    def policy(waiting, now_s):
        came.update(waiting)
        return min(waiting.values(), key=lambda job: job.client) if len(came) == 3 else None

    return policy


class OfTwoNumbers(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.view(2)
        return super().step(closure)


class Sevenths(Codec):
    def size_bytes(self, shape, dtype):
        return 4

    def encode(self, x, draw):
        return (x.view(7, -1),)

    def decode(self, code, shape, dtype):
        return code[0]


class Forgetful(SplitFedV1):
    def round(self, round, clients):
        yield from ()
        raise LookupError("forgotten")


def never_finite(outputs, targets):
    return functional.cross_entropy(outputs, targets) * torch.nan


CALLED = []


def counted(round, experiment):
    CALLED.append(round.row["round"])


DRAWS = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(), nn.Linear(16, 10))


def the_same_object():
    return DRAWS


def of(sections):
    return parse(SCENARIO | {"method": {"name": "splitfed_v1"}}, overrides=sections)


def of_the_caller():
    """Global generators and threads of this process."""
    numpys = np.random.get_state()[1].tolist()  # noqa: NPY002
    return torch.get_rng_state().tolist(), numpys, random.getstate(), torch.get_num_threads()


TOKENS = {"data": {"name": "synthetic", "shape": [8], "n_labels": 11, "samples": 40}, "model": {"name": "gpt_small"}}
SMOOTHED = {"train.class_weights": "balanced", "train.label_smoothing": 0.1}


@pytest.mark.parametrize(
    ("key", "sections"),
    [
        ("train.loss", {"train.loss": f"{HERE}:for_two_samples"}),
        ("train.loss", {"train.loss": f"{HERE}:of_seven_labels"}),
        ("train.optimizer", {"train.optimizer": f"{HERE}:OfTwoNumbers"}),
        ("report.metrics.mine", {"report.metrics": {"mine": f"{HERE}:by_sample"}}),
        ("clients.choice", {"clients.participation": 0.67, "clients.choice": f"{HERE}:of_one"}),
        ("clients.choice", {"clients.participation": 0.67, "clients.choice": f"{HERE}:by_losses_of_no_client"}),
        ("server.order", {"server.order": f"{HERE}:lost", "method.name": "splitfed_v2"}),
        ("wire.up", {"wire.up": {"kind": f"{HERE}:Sevenths"}}),
        ("wire", {"wire.up": {"kind": f"{HERE}:Sevenths"}, "wire.down": "fp16"}),
        ("method.name", {"method.name": f"{HERE}:Forgetful"}),
    ],
)
def test_what_fails_in_the_first_round_is_told_before_it_with_its_key(key, sections):
    with permitted(Permission(everything=True)):
        faulty = of(sections)
        check(faulty, CPU)  # building does not show it
        with pytest.raises(ScenarioError) as told:
            check(faulty, CPU, steps_s=inf)
    assert told.value.key == key


@pytest.mark.parametrize(
    ("key", "sections"),
    [
        ("model.factory", {"model": {"factory": ChangesInPlace}}),
        ("model.factory", {"model": {"factory": Detached}}),
        ("model.factory", {"model": {"factory": Synchronised}}),
        ("model.factory", {"model": {"factory": SevenLabels}}),
        ("model", {"model": {"factory": Complex}}),
        ("train.loss", {"train.loss": f"{HERE}:by_sample"}),
        ("method.name", TOKENS | {"method": {"name": "gas"}}),
        ("method.aux", TOKENS | {"method": {"name": "fsl_sage", "aux": 1}}),
        ("method.name", {"method": {"name": "fsl_sage"}, "lora": {"rank": 1, "targets": ["conv2"]}}),
        ("clients.choice", {"method.name": "gas", "clients.participation": 0.67, "clients.choice": "oort"}),
    ],
)
def test_what_needs_no_step_is_told_without_one(key, sections):
    with permitted(Permission(everything=True)), pytest.raises(ScenarioError) as told:
        check(of(sections))
    assert told.value.key == key


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"factory": WithDefaults}},
        SMOOTHED,
        SMOOTHED | {"clients.participation": 0.67, "clients.choice": "oort"},
        {"train.batch_size": 1},
        {"train.on_round_end": f"{HERE}:counted"},
        {"server.order": f"{HERE}:waits", "method.name": "splitfed_v2"},
    ],
)
def test_what_runs_passes_and_nobody_is_called_for_a_round_that_was_none(sections, tmp_path):
    """Also where an order waits for more clients than take the step."""
    CALLED.clear()
    with permitted(Permission(everything=True)):
        check(of(sections), CPU, steps_s=inf)
        assert not CALLED
        assert run_study(of(sections), tmp_path / "run", TRAINING, lambda news: None).status == "complete"


def test_a_loss_that_is_not_finite_is_left_to_the_run_which_says_where(tmp_path):
    with permitted(Permission(everything=True)):
        check(of({"train.loss": f"{HERE}:never_finite"}), CPU, steps_s=inf)
        with pytest.raises(TrialsFailed, match="mini-batch 0 of client"):
            run_study(of({"train.loss": f"{HERE}:never_finite"}), tmp_path / "run", TRAINING, lambda news: None)


@pytest.mark.parametrize("method", ["splitfed_v2", "fedbuff", "harmony"])
def test_a_run_is_to_the_bit_what_it_is_without_a_step_and_the_caller_keeps_his_world(method, tmp_path, monkeypatch):
    """Also of a model that draws, and of which there is a single object in this process."""
    sections = {"model.factory": f"{HERE}:the_same_object", "method.name": method, "train.momentum": 0.9}
    figures, steps = [], []

    def noted(*given):
        steps.append(given)
        before = of_the_caller()
        left_s = first_step(*given)
        assert of_the_caller() == before
        return left_s

    with permitted(Permission(everything=True)):
        for step in (noted, lambda built, device, within_s: within_s):
            monkeypatch.setattr(train, "first_step", step)
            folder = run_study(of(sections), tmp_path / str(len(figures)), TRAINING, lambda news: None).folder
            (found,) = summaries(folder).values()
            figures.append([found[key] for key in ("weights_digest", "timeline_digest", "best_accuracy")])
    assert len(steps) == 1
    assert figures[0] == figures[1]


def test_a_step_for_which_no_time_is_left_is_left_out_and_so_are_those_after_it():
    with permitted(Permission(everything=True)):
        (variant,) = of({"train.loss": f"{HERE}:of_seven_labels"}).variants
        built = Experiment(variant.scenario, None)
        assert first_step(built, CPU, within_s=1e-3) == 0
        assert check(of({"train.loss": f"{HERE}:of_seven_labels"}), CPU, steps_s=1e-3) == []
    (variant,) = of({"model": {"name": "mlp"}}).variants
    built = Experiment(variant.scenario, None)
    n_ops, passes, samples = 2 * 3 + 2, 3, 2 * 8  # forward, train and backward of two clients, and two averages
    macs = (passes * samples + N_TESTED) * built.method.task.network.macs
    likely_s = 3 * CLIENT_S + n_ops * OP_S + macs / MACS_PER_S
    assert 10 - first_step(built, CPU, within_s=10) == pytest.approx(likely_s, rel=0.01)


def test_steps_are_taken_once_for_all_seeds_and_not_by_who_trains_nothing(tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr(train, "first_step", lambda *given: steps.append(given) or 1.0)
    several = study(repeats=2, grid={"train.lr": [0.1, 0.2]})
    run_study(several, tmp_path / "timed", TIMING, lambda news: None)
    assert not steps
    run_study(several, tmp_path / "trained", TRAINING, lambda news: None)
    assert len(steps) == 2
    resumed = Settings(device="cpu", threads=1, resume=True)
    assert run_study(several, tmp_path / "trained", resumed, lambda news: None).status == "complete"
    assert len(steps) == 2


def test_assistants_are_asked_for_labels_that_they_hold_in_the_step(monkeypatch):
    """Once they were asked for those of the whole run, and some had nothing to send."""
    drawn, some = [], ClientData.some

    def noted(data, *asked):
        drawn.append(some(data, *asked))
        return drawn[-1]

    monkeypatch.setattr(ClientData, "some", noted)
    data = {**SCENARIO["data"], "train_samples": 120, "partition": {"kind": "dirichlet", "alpha": 0.5}}
    korea = {"name": "korea", "p0": 0.3, "assistants": "all"}
    check(study(data=data, clients={"count": 6}, method=korea), CPU, steps_s=inf)
    assert drawn
    assert [batch.samples for batch in drawn] == [len(batch.numbers) for batch in drawn]
