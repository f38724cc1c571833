"""HERON, HO-SFL and MU-SplitFed: what they learn with all directions, what they send, and what a phone saves."""

import math

import pytest
import torch
from small_world import distance, fleet, task
from torch import nn

from sfl_sim.errors import NonFiniteError, ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.ahead import UploadOptions
from sfl_sim.methods.heron import HeronOptions
from sfl_sim.methods.ho_sfl import HoOptions
from sfl_sim.methods.mu_splitfed import MuOptions
from sfl_sim.models.zoo import network
from sfl_sim.ops import Value
from sfl_sim.store import places
from sfl_sim.testing import simulate, tensors
from sfl_sim.training.memory import client_memory_bytes
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.zeroth import Directions, SeededStep, ZerothSteps


@pytest.fixture
def axes(monkeypatch):
    """Directions are the axes, each as long as the root of their number: together they find any gradient."""

    def draw(self, number, replicas):
        sizes = [replica.part.n_parameters for replica in replicas]
        u = torch.zeros(sum(sizes), dtype=torch.float64)
        u[number % len(u)] = math.sqrt(len(u))
        pieces = zip(replicas, torch.split(u, sizes), strict=True)
        return [one.part.with_gaps(piece, one.part.shapes) for one, piece in pieces]

    monkeypatch.setattr(Directions, "draw", draw)


def small(shape, n_labels):
    """A net of few parameters, bent before the cut."""
    first = nn.Sequential(nn.Flatten(), nn.AvgPool1d(8), nn.Linear(2, 3), nn.Tanh())
    return nn.Sequential(first, nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, n_labels))


def linear(shape, n_labels):
    """A net whose part-1 is linear."""
    first = nn.Sequential(nn.Flatten(), nn.AvgPool1d(8), nn.Linear(2, 3))
    return nn.Sequential(first, nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, n_labels))


def run(name, options=None, rounds=1, samples=(6, 6), world=None, build=small, batch_size=3, **settings):
    work = task(samples, batch_size=batch_size, build=build, **settings)
    return simulate(METHODS[name](work, options), rounds, "cyclic", world or fleet(len(samples)))


N1, N_HEAD = 9, 12
"""Parameters of part-1, and of the head of an exit."""


@pytest.mark.parametrize("estimator", ["one_sided", "central"])
def test_heron_with_all_axes_takes_the_steps_of_cse_fsl(axes, estimator):
    options = HeronOptions(directions=N1 + N_HEAD, mu=1e-6, estimator=estimator)
    assert distance(run("heron", options).method, run("cse_fsl").method) < 1e-4


def test_a_shift_of_heron_is_as_long_as_the_option_says():
    method = run("heron", HeronOptions(mu=0.02)).method
    u = method.directions.of(0, 1, 0).draw(0, method.client_model.replicas)
    assert method.directions.mu * float(torch.cat(u).norm()) == pytest.approx(0.02)


def test_heron_costs_two_passes_where_a_client_of_cse_fsl_costs_up_to_three_and_sends_the_same():
    """One forward pass more instead of a backward pass that is worth two, or one in the first layer."""
    options = {"heron": HeronOptions(upload_every=2), "cse_fsl": UploadOptions(upload_every=2)}
    runs = [run(name, its_options, device=None) for name, its_options in options.items()]
    ours, plain = (each.rows for each in runs)
    macs = [rows["macs"][rows["node"] == b"client"].sum() for rows in (ours, plain)]
    part1, head = (replica.part.macs for replica in runs[0].method.client_model.replicas)
    assert macs == [2 * 6 * (2 * part1 + n * head) for n in (2, 3)]
    sent = [rows["bytes"][places.at(rows["node"], "uplink")].tolist() for rows in (ours, plain)]
    assert sorted(sent[0]) == sorted(sent[1])


def test_heron_with_clients_at_rest_teaches_the_server_what_splitfed_v2_teaches():
    rates = {"server": {"lr": 0.1}, "lr": 0.0}
    assert distance(run("heron", **rates).method, run("splitfed_v2", **rates).method) < 1e-12


@pytest.mark.parametrize("mu", [1e-3, 1.0])
def test_ho_sfl_with_a_linear_part_1_and_all_axes_is_mergesfl_averaged_every_step(axes, mu):
    """Whatever the length of a shift, where one step is a round."""
    options, settings = HoOptions(directions=N1, mu=mu), {"build": linear, "batch_size": 6, "rounds": 3}
    ours = run("ho_sfl", options, **settings).method
    assert distance(ours, run("mergesfl", **settings).method) < 1e-6  # slopes are sent in float32


def test_ho_sfl_otherwise_errs_with_the_length_of_a_shift(axes):
    settings = {"batch_size": 6}
    plain = run("mergesfl", **settings).method
    apart = [
        distance(run("ho_sfl", HoOptions(directions=N1, mu=mu), **settings).method, plain) for mu in (1, 1e-1, 1e-2)
    ]
    assert apart[0] > 5 * apart[1] > 25 * apart[2]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("catch_up", ["replay", "model"])
def test_all_clients_have_one_part_1_to_the_bit_and_who_was_away_catches_up(catch_up, optimizer):
    options = HoOptions(directions=2, catch_up=catch_up)
    rounds = [[0, 1, 2], [0, 1], [0, 1], [0, 1, 2]]
    method = run("ho_sfl", options, rounds, (6, 6, 6), optimizer=optimizer, momentum=0.9).method
    for c in (0, 1, 2):
        assert torch.equal(method.part1s[c].weights.flat, method.part1.weights.flat)


def test_ho_sfl_sends_numbers_instead_of_models():
    """Up: activations with labels and P slopes; down: gradients, P seeds and P means; a replay 8 P bytes a step."""
    rounds = [[0, 1], [0], [0, 1]]
    rows = run("ho_sfl", HoOptions(directions=5, catch_up="replay"), rounds, device=None).rows
    own = rows[(rows["client"] == 0) & (rows["round"] == 1) & (rows["step"] == 0)]
    up, down = (own[places.at(own["node"], place)]["bytes"].sum() for place in ("uplink", "downlink"))
    assert up == 3 * (3 * 8 + 8) + 4 * 5
    assert down == 3 * 3 * 8 + 4 * 5
    seeds = rows[rows["kind"] == b"seeds"]
    assert set(seeds["bytes"]) == {4 * 5}
    late = rows[(rows["client"] == 1) & (rows["round"] == 3) & (rows["kind"] == b"numbers")]
    assert late[places.at(late["node"], "downlink")]["bytes"][0] == 8 * 5 * 2
    assert not (rows["kind"] == b"model").any()


def test_a_client_of_ho_sfl_that_is_cheaper_off_with_the_model_gets_it():
    """Nine parameters of 8 bytes are fewer bytes than 5 numbers and seeds of two steps."""
    rows = run("ho_sfl", HoOptions(directions=5), [[0, 1], [0], [0, 1]], device=None).rows
    (model,) = rows[rows["kind"] == b"model"]
    assert (model["client"], model["bytes"]) == (1, 9 * 8)


def test_rates_of_single_clients_are_refused_by_ho_sfl():
    with pytest.raises(ScenarioError, match="part-1s stay equal"):
        run("ho_sfl", client_lr=[0.1, 0.2])


def test_the_golden_step_of_ho_sfl(monkeypatch):
    """x = 1 (label 0) and 2 (label 1) at two clients, w1 = 1, w2 = (0, 1), u = 0.5, mu = 0.1, learning rate 0.5."""

    def scalar(shape, n_labels):
        first = nn.Sequential(nn.Flatten(), nn.Linear(16, 1, bias=False))
        return nn.Sequential(first, nn.Linear(1, n_labels, bias=False))

    monkeypatch.setattr(
        Directions, "draw", lambda self, number, replicas: [0.5 * torch.ones_like(replicas[0].weights.flat)]
    )
    method = METHODS["ho_sfl"](task([1, 1], batch_size=1, build=scalar, lr=0.5), HoOptions(directions=1, mu=0.1))
    images = method.data.images
    images.x = torch.zeros(2, 1, 4, 4, dtype=torch.float64)
    images.x[:, 0, 0, 0], images.y = torch.tensor([1.0, 2.0]), torch.tensor([0, 1])
    for replica, values in ((method.part1, [1.0] + 15 * [0.0]), (method.part2, [0, 1.0, -99])):
        (view,) = replica.part.views(replica.weights.flat)
        view.copy_(torch.tensor(values, dtype=torch.float64).view_as(view))
    method.initial = method.part1.snapshot()
    simulate(method, 1)
    w1, w2 = (one.part.views(one.weights.flat)[0].flatten() for one in (method.part1, method.part2))
    assert w1[0].item() == pytest.approx(0.9692092, abs=1e-6)
    assert w2[:2].tolist() == pytest.approx([0.1231632, 0.8768368], abs=1e-7)


def test_mu_splitfed_with_all_axes_and_a_server_at_rest_is_splitfed_v1(axes):
    """Its clients have one direction each, so that part-1 has one parameter here."""

    def one(shape, n_labels):
        first = nn.Sequential(nn.Flatten(), nn.AvgPool1d(16), nn.Linear(1, 1, bias=False), nn.Tanh())
        return nn.Sequential(first, nn.Linear(1, 3), nn.Linear(3, n_labels))

    settings = {"build": one, "samples": (6,), "server": {"lr": 0.0}}
    ours = run("mu_splitfed", MuOptions(mu=1e-6, global_lr=1.0), **settings)
    assert distance(ours.method, run("splitfed_v1", **settings).method) < 1e-4


def test_a_model_that_is_not_pulled_stays():
    method = run("mu_splitfed", MuOptions(global_lr=0.0)).method
    initial = task((6, 6), build=small).split(1)
    found = tensors(method)
    assert all(torch.allclose(found[name], value) for part in initial for name, value in part.weights.named_tensors())


def test_more_steps_of_the_server_move_the_same_bytes_and_hide_behind_the_uplink():
    """Until they take longer than two messages."""
    slow = fleet(2, uplink_bps=1e4, speedup=1.0)
    found = [run("mu_splitfed", MuOptions(tau=tau), world=slow, device=None) for tau in (1, 2)]
    sent = [run.rows[places.at(run.rows["node"], "uplink")]["bytes"].tolist() for run in found]
    assert sent[0] == sent[1]
    assert found[0].clock.now_s == found[1].clock.now_s
    assert found[1].rows["macs"].sum() > found[0].rows["macs"].sum()
    long = [run("mu_splitfed", MuOptions(tau=tau), world=fleet(2, speedup=1e-4), device=None) for tau in (1, 2)]
    assert long[1].clock.now_s > 1.2 * long[0].clock.now_s


def test_mu_splitfed_sends_three_activations_and_gets_a_number():
    rows = run("mu_splitfed", device=None).rows
    own = rows[(rows["client"] == 0) & (rows["step"] == 0)]
    assert own[places.at(own["node"], "uplink")]["bytes"].sum() == 3 * 3 * 3 * 8 + 3 * 8
    assert own[places.at(own["node"], "downlink")]["bytes"].tolist() == [4]
    macs = [layer.macs for layer in METHODS["mu_splitfed"](task((6,), build=small)).task.network.layers]
    assert own[own["node"] == b"client"]["macs"].sum() == 3 * 3 * macs[0]
    assert own[own["node"] == b"server"]["macs"].sum() == (2 * 2 + 2) * 3 * sum(macs[1:])


@pytest.mark.parametrize("name", ["heron", "ho_sfl", "mu_splitfed"])
def test_a_phone_without_a_backward_pass_needs_less_memory(name):
    """It keeps nothing of a mini-batch but the outputs of a layer."""
    net, kind = network("cnn8", (3, 32, 32), 10), METHODS[name]
    first, cut = kind.at_client(net, 3, kind.Options())
    needs = [client_memory_bytes(first, cut, 64, 0, keeps_graphs=keeps) for keeps in (True, kind.keeps_graphs)]
    assert needs[1] < 0.7 * needs[0]


@pytest.mark.parametrize("name", ["heron", "ho_sfl", "mu_splitfed"])
def test_a_loss_that_is_no_number_stops_the_run(name):
    """As where gradients are computed: an endless rate makes weights infinite."""
    with pytest.raises(NonFiniteError, match=r"is (inf|-inf|nan); try a smaller train\.lr"):
        run(name, rounds=4, lr=math.inf)


def test_an_optimisers_step_without_a_backward_pass_is_counted_too():
    """With `cost: torch` it takes time: the weights that it moves, once for each step."""
    part = run("ho_sfl").method.part2
    directions = Directions("gauss", 2, 1e-3, 0, (1, 1))
    steps = ZerothSteps(Sgd(0.1), (directions, directions))
    assert steps.work(part, Value("smashed", samples=3)).updated == 2 * part.part.n_parameters
    assert SeededStep(Sgd(0.1), directions).work(part, Value("numbers")).updated == part.part.n_parameters
