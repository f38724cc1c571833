"""CSE-FSL and local loss: what a client learns from its own head, what goes up, and that nobody waits."""

import numpy as np
import pytest
import torch
from small_world import fleet, mlp, task

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.ahead import UploadOptions
from sfl_sim.models.heads import auxiliary_network
from sfl_sim.models.zoo import network
from sfl_sim.store import places
from sfl_sim.testing import bits, simulate

SAMPLES = [9, 6, 8]


def run(name, options=None, rounds=2, world=None, samples=SAMPLES, **settings):
    work = task(samples, batch_size=settings.pop("batch_size", 3), **settings)
    world = world or fleet(len(samples), uplink_bps=[1e6, 2e6, 3e6][: len(samples)])
    return simulate(METHODS[name](work, options), rounds, "cyclic", world)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_a_twin_of_part_2_as_head_local_loss_is_splitfed_v1_to_the_bit(momentum):
    """Head and copy see the same activations and begin with the same numbers, so that their gradients are one."""
    ours = run("cse_fsl", UploadOptions(aux="twin", server="copies"), momentum=momentum)
    assert bits(ours.method) == bits(run("splitfed_v1", momentum=momentum).method)


def test_the_server_learns_what_it_learns_from_clients_that_are_frozen():
    """Part-2 does not depend on heads where part-1 has no learning rate: it is SplitFedV2's, in the same order."""
    rates = {"server": {"lr": 0.1}, "lr": 0.0}
    ours, plain = (run(name, **rates).method for name in ("cse_fsl", "splitfed_v2"))
    assert bits(ours) == bits(plain)


def test_the_golden_step():
    """z = w1 x with w1 = 1, x = (1, 2), labels (0, 1), logits z a with a = (1, 0), w2 = (0, 1), learning rate 0.5."""

    def scalar(shape, n_labels):
        first, last = torch.nn.Linear(16, 1, bias=False), torch.nn.Linear(1, n_labels, bias=False)
        return torch.nn.Sequential(torch.nn.Sequential(torch.nn.Flatten(), first), last)

    method = METHODS["cse_fsl"](task([2], batch_size=2, build=scalar, lr=0.5), UploadOptions(aux="twin"))
    method.data.images.x = torch.zeros(2, 1, 4, 4, dtype=torch.float64)
    method.data.images.x[:, 0, 0, 0] = torch.tensor([1.0, 2.0])
    method.data.images.y = torch.tensor([0, 1])
    for replica, values in (
        (method.part1, [1.0] + 15 * [0.0]),
        (method.head, [1.0, 0, -99]),
        (method.part2, [0, 1.0, -99]),
    ):
        (weights,) = replica.part.views(replica.weights.flat)
        weights.copy_(torch.tensor(values, dtype=torch.float64).view_as(weights))
    simulate(method, 1)
    w1, a, w2 = (
        replica.part.views(replica.weights.flat)[0].flatten() for replica in (method.part1, method.head, method.part2)
    )
    assert w1[0].item() == pytest.approx(0.6268368, abs=1e-7)
    assert a[:2].tolist() == pytest.approx([0.6268368, 0.3731632], abs=1e-7)
    assert w2[:2].tolist() == pytest.approx([0.1231632, 0.8768368], abs=1e-7)


@pytest.mark.parametrize(("upload", "steps"), [("first", [0, 2]), ("last", [1])])
def test_one_mini_batch_of_h_goes_up(upload, steps):
    """Of three, the first and the third, or the second alone; labels with them, and nothing comes down but models."""
    rows = run("cse_fsl", UploadOptions(upload_every=2, upload=upload), 1, samples=[9, 9], device=None).rows
    own = rows[rows["client"] == 0]
    up = own[places.at(own["node"], "uplink") & (own["kind"] == b"smashed")]
    assert up["step"].tolist() == steps
    assert up["bytes"].tolist() == [3 * (8 * 8 + 8)] * len(steps)
    assert set(own["kind"][places.at(own["node"], "downlink")]) == {b"model"}
    assert own["step"][own["node"] == b"server"].tolist() == steps


def test_a_slow_server_delays_no_client():
    """Only the end of the round waits for it."""
    fast, slow = (run("cse_fsl", None, 1, fleet(3, speedup=speedup), device=None) for speedup in (100.0, 1e-3))
    ours = [found.rows[np.isin(found.rows["node"], [b"client", b"uplink", b"downlink"])] for found in (fast, slow)]
    assert ours[0].tobytes() == ours[1].tobytes()
    assert slow.clock.now_s > 2 * fast.clock.now_s


def test_activations_cross_beside_the_backward_pass():
    """The message leaves when the forward pass has ended, and the model behind it."""
    rows = run("cse_fsl", None, 1, fleet(1, macs_per_s=1e4, uplink_bps=1e4), [9], device=None).rows
    forward, backward = (rows[rows["kind"] == kind] for kind in (b"forward", b"backward"))
    smashed = rows[rows["kind"] == b"smashed"]
    assert smashed["started_s"][0] == forward["ended_s"][0] == backward["started_s"][0]
    model = rows[places.at(rows["node"], "uplink") & (rows["kind"] == b"model")]
    assert model["started_s"][0] == smashed["ended_s"].max()


def test_a_client_computes_three_passes_of_its_head_and_two_of_part_1_which_has_one_layer():
    """Nobody needs the gradient of samples; nor that of activations at the server, whose first layer takes two, too."""
    found = run("cse_fsl", UploadOptions(aux="linear"), 1, samples=[9], device=None)
    part1, head = found.method.part1.part, found.method.head.part
    own = found.rows[found.rows["node"] == b"client"]
    assert own["macs"].sum() == 9 * (2 * part1.macs + 3 * head.macs)
    served, layers = found.rows[found.rows["kind"] == b"train"], found.method.task.network.layers
    assert served["macs"].sum() == 9 * (2 * layers[1].macs + 3 * layers[2].macs)


def test_a_client_that_would_never_send_anything_is_refused():
    with pytest.raises(ScenarioError) as refused:
        run("cse_fsl", UploadOptions(upload_every=3))
    assert (refused.value.key, refused.value.allowed) == ("method.upload_every", "1 to 2")


def test_the_server_holds_a_part_for_each_client_unless_they_share_it():
    each, one = (run("cse_fsl", UploadOptions(server=server), device=None).method for server in ("copies", "shared"))
    assert each.server_bytes(range(3)) == 3 * one.server_bytes(range(3))


@pytest.mark.parametrize("aux", ["exit", "linear", "twin", 1])
def test_heads_fit_behind_every_cut_or_say_what_does_not(aux):
    small = task([4], build=mlp).network
    for cut in (1, 2):
        if aux == 1 and cut == 2:
            with pytest.raises(ScenarioError, match="allowed: 0 to 0"):
                auxiliary_network(small, cut, aux)
        else:
            assert auxiliary_network(small, cut, aux).layers[-1].out_shape == (3,)


def test_a_text_model_has_heads_of_its_own_layers():
    """One that pools images, or joins all positions, makes other answers."""
    text = network("gpt_small", (16,), 30)
    assert auxiliary_network(text, 2, 1).layers[-1].parameters == sum(text.layers[i].parameters for i in (2, -1))
    for aux in ("exit", "linear"):
        with pytest.raises(ScenarioError, match="behind layer 2") as refused:
            auxiliary_network(text, 2, aux)
        assert refused.value.key == "method.aux"
