"""FedBuff and FedAsync: whose update counts when and how much, by hand and by plain loops, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_world import batch_norm_net, distance, fleet, simulate, task, tensors, unsplit
from torch.nn.functional import cross_entropy

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.asynchronous import AsynchronousOptions
from sfl_sim.methods.fedbuff import AddDifferences
from sfl_sim.methods.wire import Wire
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.orders import ORDERS
from sfl_sim.system.presence import Presence
from sfl_sim.testing import Watching
from sfl_sim.training.codecs import Fp16
from sfl_sim.training.coded import Coded, CodedGradient
from sfl_sim.training.executors import Eager, Timing

EXACT = 1e-10
HOSTS = ["fedavg", "splitfed_v1"]
SAMPLES = (8, 8, 8)
MACS = {"fedavg": 8 * (2 * 16 * 8 + 3 * (8 * 6 + 6 * 3)), "splitfed_v1": 8 * 2 * 16 * 8}
"""Of a client's device in a visit of 8 samples: forward pass, weights' gradients and, but for samples, inputs'."""
UPLOADED_BYTES = {"fedavg": 8 * (17 * 8 + 9 * 6 + 7 * 3), "splitfed_v1": 8 * 17 * 8 + 8 * (8 * 8 + 8)}
"""In a visit: the whole model, or part-1 and the smashed data of 8 samples with their labels."""


def by_hand(host="fedavg", speeds=(1, 2, 4)):
    """The fastest client trains for 1 s in a visit, and everybody uploads for 0.1 s; all else takes no time."""
    macs_per_s = [MACS[host] * speed / max(speeds) for speed in speeds]
    return fleet(len(speeds), macs_per_s, 8 * UPLOADED_BYTES[host] / 0.1, downlink_bps=1e18, speedup=1e12)


def rounds_of(name, options, n_rounds, work=None, world=None, places=3, dropouts=None):
    """The method; how stale the updates of each round were; each round's operations; its last `figures`."""
    work = work or task(SAMPLES, device=None)
    method = METHODS[name](work, METHODS[name].Options(**options))
    world = world or by_hand(method.options.host)
    simulator = EventClock(world, Eager() if work.device else Timing(), Queueing(ORDERS["fcfs"], 9), dropouts=dropouts)
    staleness, rows = [], []
    for number in range(1, n_rounds + 1):
        simulator.run(method.round(number, range(places)), number)
        staleness.append(method.staleness)
        rows.append(simulator.take_rows())
    return method, staleness, rows


def ends_s(rows):
    return pytest.approx([each["ended_s"].max() for each in rows], abs=1e-6)


def learned(work, state, client, visit, rho=0.0):
    """`state` after a client's visit: plain SGD on one network, written without any of the simulator."""
    net = unsplit(work)
    net.load_state_dict(state)
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    for batch in work.data.batches(client, visit):
        x, y = batch.load()
        sgd.zero_grad()
        away = sum((parameter - state[key]).square().sum() for key, parameter in net.named_parameters())
        (cross_entropy(net(x), y) + rho / 2 * away).backward()
        sgd.step()
    return net.state_dict()


def off(method, expected):
    """The largest difference of the global model from what is expected."""
    return max(float((tensor - expected[key]).abs().max()) for key, tensor in tensors(method).items())


@pytest.mark.parametrize("build", [{}, {"build": batch_norm_net}])
@pytest.mark.parametrize("host", HOSTS)
def test_with_everybody_equally_fast_and_in_the_buffer_fedbuff_is_its_host(host, build):
    work = task(SAMPLES, momentum=0.9, uniform_weights=True, local_epochs=2, **build)
    buffered, clock, _ = simulate("fedbuff", work, 3, options={"host": host, "buffer": 3})
    usual, usual_clock, _ = simulate(host, work, 3)
    assert distance(buffered, usual) < EXACT
    assert clock.now_s == usual_clock.now_s
    assert buffered.figures() == {"staleness_mean": 0, "staleness_max": 0, "updates_discarded": 0}


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("server_lr", [1.0, 0.3])
def test_fedbuff_by_hand_and_by_a_plain_loop(host, server_lr):
    """Two updates make a version. Visits take clients 0, 1 and 2 4.1, 2.1 and 1.1 s:

    1.1  client 2, begun at 0 with version 0            4.1  client 0, begun at 0 with 0: 2 behind
    2.1  client 1, begun at 0 with 0: version 1         4.2  client 1, begun at 2.1 with 1: 1 behind, version 3
    2.2  client 2, begun at 1.1 with 0: 1 behind        4.4  client 2, begun at 3.3 with 2: 1 behind
    3.3  client 2, begun at 2.2 with 1: version 2       5.5  client 2, begun at 4.4 with 3: version 4
    """
    in_time = [[(2, 1, 0), (1, 1, 0)], [(2, 2, 0), (2, 3, 1)], [(0, 1, 0), (1, 2, 1)], [(2, 4, 2), (2, 5, 3)]]
    work = task(SAMPLES)
    method, staleness, rows = rounds_of("fedbuff", {"host": host, "buffer": 2, "server_lr": server_lr}, 4, work)
    assert staleness == [[0, 0], [1, 0], [2, 1], [1, 0]]
    assert ends_s(rows) == [2.1, 3.3, 4.2, 5.5]
    versions = [unsplit(work).state_dict()]
    for now, updates in enumerate(in_time):
        after = dict(versions[now])
        for client, visit, began in updates:
            there = learned(work, versions[began], client, visit)
            scale = server_lr / (2 * np.sqrt(1 + now - began))
            after = {key: after[key] + scale * (there[key] - versions[began][key]) for key in after}
        versions.append(after)
    assert off(method, versions[-1]) < EXACT


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("rho", [0.0, 2.0])
def test_fedasync_by_hand_and_by_a_plain_loop(host, rho):
    """The same visits, but every update is a version, and three are a round.

    1.1  client 2, begun with version 0                 4.1  client 0, begun at 0 with 0: 4 behind
    2.1  client 1, begun at 0 with 0: 1 behind          4.2  client 1, begun at 2.1 with 2: 3 behind, end of round 2
    2.2  client 2, begun at 1.1 with 1: 1 behind        (4.4  client 2, begun at 3.3 with 4)
    3.3  client 2, begun at 2.2 with 3
    """
    in_time = [(2, 1, 0), (1, 1, 0), (2, 2, 1), (2, 3, 3), (0, 1, 0), (1, 2, 2)]
    work = task(SAMPLES)
    method, staleness, rows = rounds_of("fedasync", {"host": host, "alpha": 0.8, "a": 1.0, "rho": rho}, 2, work)
    assert staleness == [[0, 1, 1], [0, 4, 3]]
    assert ends_s(rows) == [2.2, 4.2]
    versions = [unsplit(work).state_dict()]
    for now, (client, visit, began) in enumerate(in_time):
        there, share = learned(work, versions[began], client, visit, rho), 0.8 / (1 + now - began)
        versions.append({key: (1 - share) * old + share * there[key] for key, old in versions[now].items()})
    assert off(method, versions[-1]) < EXACT


def test_updates_that_are_too_stale_are_discarded_and_no_others():
    """In FedBuff's timeline above, client 0's at 4.1: round 3 then waits for client 2's at 4.4, which is fresh then."""
    method, staleness, rows = rounds_of("fedbuff", {"buffer": 2, "max_staleness": 1}, 3)
    assert staleness == [[0, 0], [1, 0], [1, 0]]
    assert ends_s(rows) == [2.1, 3.3, 4.4]
    assert method.figures() == {"staleness_mean": 0.5, "staleness_max": 1, "updates_discarded": 1}


def test_staleness_counts_as_the_papers_say():
    def weights(*staleness, **options):
        return [AsynchronousOptions(**options).weight(each) for each in staleness]

    assert weights(0, 3, 8) == pytest.approx([1, 1 / 2, 1 / 3])
    assert weights(0, 3, staleness="polynomial", a=2.0) == pytest.approx([1, 1 / 16])
    assert weights(0, 4, 5, staleness="hinge") == pytest.approx([1, 1, 1 / 11])
    assert weights(1, 2, 4, staleness="hinge", a=0.5, b=1.0) == pytest.approx([1, 1 / 1.5, 1 / 2.5])
    assert weights(0, 100, staleness="constant") == [1, 1]


def test_running_statistics_are_averaged_and_stay_variances_whatever_the_steps():
    """Where a variance was larger when a client began, the difference would make it negative."""
    work = task(SAMPLES, build=batch_norm_net)
    into, replica, origin = (work.split()[0] for _ in range(3))
    for weights, variance in ((into.weights, 1.0), (replica.weights, 2.0), (origin.weights, 9.0)):
        weights.buffers.fill_(variance)
    AddDifferences(lr=4.0).run(into, [replica], [0.25], [origin])
    assert into.weights.buffers.eq(1.25).all()


@pytest.mark.parametrize("name", ["fedbuff", "fedasync"])
def test_nobody_waits_for_those_who_are_slow(name):
    options = {"fedbuff": {"buffer": 3}, "fedasync": {}}[name]
    method, _, rows = rounds_of(name, options, 2, world=by_hand(speeds=(1, 1, 1000)))
    assert ends_s(rows) == [3 * 1.1, 6 * 1.1]
    assert set(np.concatenate(rows)["client"][np.concatenate(rows)["kind"] == b"train"]) == {2}
    assert method.took_part(range(3)) == [0, 1, 2]  # at work they are, though nothing of theirs has ended


def test_what_spans_the_end_of_a_round_is_recorded_once_in_the_round_in_which_it_ends():
    method, _, rows = rounds_of("fedbuff", {"buffer": 1}, 9)
    starts_s = [0.0, *(each["ended_s"].max() for each in rows)]
    spanning = [each["started_s"] < start_s - 1e-3 for each, start_s in zip(rows, starts_s, strict=False)]
    assert any(each.any() for each in spanning)
    for number, each in enumerate(rows, 1):
        assert (each["round"] == number).all()
    rows = np.concatenate(rows)
    trained = rows[rows["node"] == b"client"]
    for c in range(3):
        steps = trained["step"][trained["client"] == c]
        assert steps.tolist() == [0, 1] * (len(steps) // 2) + [0] * (len(steps) % 2)
        assert len(steps) in (2 * method.visits[c] - 2, 2 * method.visits[c] - 1, 2 * method.visits[c])


@pytest.mark.parametrize("name", ["fedbuff", "fedasync"])
def test_messages_of_a_clients_visits_in_one_round_have_draws_of_their_own(name):
    sent, options = [], {"host": "splitfed_v1", **({"buffer": 3} if name == "fedbuff" else {})}
    work = task(SAMPLES, wire=Wire(Fp16(), Fp16()))
    method, *_ = simulate(name, work, 1, options=options, executor=Watching(sent.append), world=by_hand("splitfed_v1"))
    draws = [payload.draw for payload in sent if isinstance(payload, Coded | CodedGradient)]
    assert max(method.visits.values()) > 1
    assert len(draws) == len(set(draws)) > 0


def test_a_free_place_goes_to_any_client_that_is_idle():
    """Two places, five clients, equally fast."""
    work = task([8] * 5, device=None)
    method, _, rows = rounds_of("fedbuff", {"buffer": 1}, 30, work, by_hand(speeds=[1] * 5), places=2)
    rows = np.concatenate(rows)
    downloads = rows[rows["node"] == b"downlink"]
    assert set(downloads["client"]) == set(range(5))
    uploads = rows[rows["node"] == b"uplink"]
    at_work = [(downloads["started_s"] <= t).sum() - (uploads["ended_s"] <= t).sum() for t in np.arange(0.5, 10, 0.5)]
    assert max(at_work) <= 2
    assert 1 <= len(method.took_part(range(2))) <= 4


def away(*intervals_s):
    """There in the given intervals, which repeat after a thousand seconds."""
    return Presence(intervals_s, 1000.0)


ALWAYS = away((0.0, 1000.0))


def test_the_update_of_a_client_that_is_lost_is_gone_and_its_place_another_s():
    """Client 2 goes away at 3.0 s, when it trains for the third time, and is back at 10; client 0 is there from 3.5 on.

    So 1.1: client 2; 2.1: client 1; 2.2: client 2; 3.0: client 2 is lost, and nobody is idle and there; 3.5: client 0
    begins; 4.2 and 6.3: client 1; 7.6: client 0.
    """
    presence = [away((3.5, 1000.0)), ALWAYS, away((0.0, 3.0), (10.0, 1000.0))]
    world = replace(by_hand(), presence=presence)
    method, staleness, rows = rounds_of(
        "fedbuff", {"buffer": 1}, 6, world=world, places=2, dropouts=Dropouts("drop", presence)
    )
    assert ends_s(rows) == [1.1, 2.1, 2.2, 4.2, 6.3, 7.6]
    assert staleness == [[0], [1], [1], [1], [0], [2]]
    assert method.took_part(range(2)) == [0, 1]


def test_two_places_do_not_go_to_the_same_client_though_both_have_waited_for_it():
    presence = [away((1.0, 1000.0)), away((2.0, 1000.0)), away((500.0, 1000.0))]
    world = replace(by_hand(speeds=(1, 1, 1)), presence=presence)
    *_, rows = rounds_of("fedbuff", {"buffer": 2}, 1, world=world, places=2)
    begun = rows[0][rows[0]["node"] == b"downlink"]
    assert dict(zip(begun["client"][:2], begun["started_s"][:2], strict=True)) == {0: 1.0, 1: 2.0}


@pytest.mark.parametrize("host", HOSTS)
def test_what_is_served_in_the_end_is_cut_as_the_host_s(host):
    work = task(SAMPLES, cut=2)
    method, *_ = simulate("fedasync", work, options={"host": host})
    found, usual = method.deployed(0), METHODS[host](work).deployed(0)
    assert (found.device_work, found.server_work) == (usual.device_work, usual.server_work)
    assert method.is_split == method.has("is_split", method.options) == (host == "splitfed_v1")
    assert method.server_bytes(range(3)) == METHODS[host](work).server_bytes(range(3))


def test_where_nobody_stays_for_a_visit_the_run_says_so_instead_of_going_on_for_ever(monkeypatch):
    """Everybody is there for 0.25 s at a time, and no visit takes less than 1 s."""
    monkeypatch.setattr("sfl_sim.sim.operations.MAX_LOSSES", 0)
    monkeypatch.setattr("sfl_sim.sim.operations.MAX_LOSSES_A_CLIENT", 20)
    presence = [Presence([(0.0, 0.25)], 0.5)] * 3
    world = replace(by_hand(), presence=presence)
    with pytest.raises(ScenarioError, match="round 1 has lost 61 ") as refused:
        rounds_of("fedbuff", {"buffer": 2}, 1, world=world, dropouts=Dropouts("drop", presence))
    assert refused.value.key == "clients.availability.profile"
