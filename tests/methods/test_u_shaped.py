"""U-shaped split learning: labels stay at the client, and what is learned is what others learn without."""

import numpy as np
import pytest
from small_world import batch_norm_net, distance, fleet, mlp, task

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.u_shaped import UShapedOptions
from sfl_sim.methods.wire import Wire
from sfl_sim.store import places
from sfl_sim.testing import simulate
from sfl_sim.training.codecs import Int
from sfl_sim.training.coded import CodedGradient
from sfl_sim.training.defences import Noisy

SAMPLES = [9, 6, 8]
ORDERS = ["fcfs", "cyclic", "cyclic_reverse", "random_job", "shortest_job", "label_aware"]


def run(name, options=None, order="fcfs", build=mlp, **settings):
    work = task(SAMPLES, batch_size=3, build=build, **settings)
    return simulate(METHODS[name](work, options), 2, order, fleet(3, uplink_bps=[1e6, 2e6, 3e6]))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("build", [mlp, batch_norm_net])
def test_without_layers_at_the_end_and_one_part_at_the_server_it_is_splitfed_v2_to_the_bit(order, build):
    """The server is held between the two visits of a mini-batch, so that part-2 is what it was."""
    plain = run("splitfed_v2", None, order, build=build)
    ours = run("u_shaped", UShapedOptions(tail=0, server="shared"), order, build=build)
    jobs = [rows[(rows["node"] == b"server") & (rows["client"] >= 0)] for rows in (plain.rows, ours.rows)]
    if jobs[0]["client"].tolist() == jobs[1]["client"][::2].tolist():  # arrival may drive the order
        assert distance(plain.method, ours.method) == 0
    else:
        assert order in ("fcfs", "shortest_job", "label_aware")
    assert jobs[1]["client"][::2].tolist() == jobs[1]["client"][1::2].tolist(), "both visits in a row"
    assert jobs[1]["kind"].tolist() == [b"forward", b"backward"] * (len(jobs[1]) // 2)


@pytest.mark.parametrize("tail", [0, 1])
def test_with_copies_it_learns_what_splitfed_v1_learns(tail):
    assert distance(run("splitfed_v1").method, run("u_shaped", UShapedOptions(tail=tail)).method) < 1e-12


def test_bytes_and_macs_are_those_of_two_crossings_each_way():
    found = run("u_shaped", device=None)
    network, n, rows = found.method.task.network, SAMPLES[0], found.rows
    own = rows[(rows["client"] == 0) & (rows["round"] == 1)]
    numel = [network.part(0, cut).out_numel for cut in (1, len(network) - 1)]
    crossing = own[np.isin(own["kind"], [b"smashed", b"gradients"])]
    for place in ("uplink", "downlink"):
        assert crossing["bytes"][places.at(crossing["node"], place)].sum() == 8 * n * sum(numel)
    macs = [layer.macs for layer in network.layers]
    assert own["macs"][own["node"] == b"client"].sum() == n * (2 * macs[0] + 3 * macs[-1])  # no gradient of samples
    assert own["macs"][own["node"] == b"server"].sum() == 3 * n * sum(macs[1:-1])


def test_a_cut_that_leaves_nothing_to_the_server_is_refused():
    with pytest.raises(ScenarioError) as refused:
        METHODS["u_shaped"](task([4], cut=2, device=None), UShapedOptions(tail=1))
    assert (refused.value.key, refused.value.allowed) == ("model.cut", "1 to 1")


def test_noise_on_gradients_is_refused_for_activations_come_down_too():
    wire = Wire(down=Noisy(clip=1.0, sigma=0.1))
    with pytest.raises(ScenarioError) as refused:
        METHODS["u_shaped"](task([4], device=None, wire=wire))
    assert refused.value.key == "privacy.gradient_noise"


def test_the_server_holds_a_part_for_each_client_unless_they_share_it():
    each, one = (run("u_shaped", UShapedOptions(server=server), device=None).method for server in ("copies", "shared"))
    assert each.server_bytes(range(3)) == 3 * one.server_bytes(range(3)) == 3 * one.part2.size_bytes


def test_the_two_gradients_of_a_mini_batch_are_coded_with_draws_of_their_own(monkeypatch):
    """With equal draws the noise on one would tell that on the other."""
    drawn = []

    def noted(*given):
        drawn.append(given[-1])
        return CodedGradient(*given)

    monkeypatch.setattr("sfl_sim.methods.wire.CodedGradient", noted)
    run("u_shaped", wire=Wire(down=Int(bits=4)))
    assert len(set(drawn)) == len(drawn) == 2 * 2 * sum(n // 3 + (n % 3 > 0) for n in SAMPLES)
