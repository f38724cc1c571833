"""KoReA-SFL: golden values, identities, bytes, time, and assistants that do not answer (docs/methods/korea.md)."""

import gc
import weakref
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import lossy_world
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import batch_norm_net, distance, fleet, simulate, task, tensors

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.korea import P_MAX, LabelHistory, TrainReplayed, knowledge_request, next_proportion, request_size
from sfl_sim.methods.korea_assistants import Assistants, Request, divide
from sfl_sim.methods.wire import Wire
from sfl_sim.ops import SERVER, Event, Value
from sfl_sim.sim.dropouts import Dropouts
from sfl_sim.sim.nodes import link_between
from sfl_sim.sim.prices import Prices
from sfl_sim.system.presence import Presence
from sfl_sim.testing import Watching
from sfl_sim.training.codecs import RandTopK
from sfl_sim.training.coded import Coded
from sfl_sim.training.optimisers import Sgd

EXACT = 1e-10
FIXED = {"proportion": "fixed", "p0": 0.5}


def history(counts, decay=0.5):
    kept = LabelHistory(np.zeros(len(counts[0])))
    for row in counts:
        kept = kept.after(np.array(row), decay)
    return kept.sv


@pytest.mark.parametrize(("one_per_label", "asks"), [(True, True), (False, False)])
def test_a_small_proportion_asks_for_one_sample_of_each_label_only_if_that_is_the_least(one_per_label, asks):
    options = {"proportion": "fixed", "p0": 0.01, "assistants": "all", "one_per_label": one_per_label}
    method, *_ = simulate("korea", task([9] * 4, device=None), 1, options=options, clients=[0])
    assert bool(method.lacking(method.branches[0], 1).sum()) == asks


def test_golden_scores_and_request():
    counts = [(40, 10, 0, 0), (0, 30, 20, 0), (10, 0, 40, 0)]
    assert history(counts[:1]).tolist() == [40, 10, 0, 0]
    assert history(counts[:2]) == pytest.approx([40 / 3, 70 / 3, 40 / 3, 0])
    score = history(counts)
    assert score == pytest.approx([80 / 7, 10, 200 / 7, 0])
    assert request_size(50, 0.3, 4) == 15
    assert [request_size(120, 0.01, least) for least in (10, 0)] == [10, 1], "with the floor, and without it"
    assert knowledge_request(score, 15).tolist() == [1, 2, 0, 12]
    assert knowledge_request(score, 15, "floor").sum() == 14


def test_golden_proportions():
    assert next_proportion(0.10, [1.0, 0.8]) == pytest.approx(0.09)
    assert next_proportion(0.10, [1.0, 0.8], window=1) == pytest.approx(0.08)
    assert next_proportion(0.10, [9.0, 1.0, 2.0, 3.0], window=3) == pytest.approx(0.10 * 2 / 4)
    assert next_proportion(0.10, [1.0]) == 0.10


@pytest.mark.parametrize("norms", [[1.0, float("inf")], [float("nan")] * 2, [float("inf"), 1.0]])
def test_a_model_that_diverges_does_not_stop_the_run(norms):
    assert next_proportion(0.10, norms, window=3) == 0.10


counts = st.lists(st.integers(0, 300), min_size=4, max_size=4)


@settings(max_examples=100)
@given(st.lists(counts, min_size=1, max_size=6), st.floats(0, 0.99), st.integers(1, 500))
def test_a_request_is_as_large_as_it_should_be(rows, decay, total):
    """It sums to Q, asks for nothing that has been seen more than on average, and for more of what was seen less."""
    score = history(rows, decay)
    request = knowledge_request(score, total)
    assert request.sum() == (total if np.ptp(score) > 0 else 0)
    assert not request[score >= score.mean()].any()
    by_score = request[np.argsort(score, kind="stable")]
    assert all(one >= other - 1 for one, other in pairwise(by_score.tolist()))


@settings(max_examples=200)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=8), st.floats(0, 1), st.integers(2, 12))
def test_a_uniform_history_asks_for_nothing(rounds, decay, n_labels):
    assert not knowledge_request(history([[n] * n_labels for n in rounds], decay), 50).any()


def test_of_equal_remainders_the_first_label_s_counts():
    even = np.array([1.0, 1.0, 1.0, 9.0])  # each lacks as much
    assert knowledge_request(even, 4).tolist() == [2, 1, 1, 0]
    assert knowledge_request(even * 0.1 + 12, 5).tolist() == [2, 2, 1, 0]


@settings(max_examples=200)
@given(st.integers(1, 1000), st.integers(1, 100))
def test_a_request_is_no_sample_short_for_rounding(hundreds, percents):
    assert request_size(100 * hundreds, percents / 100, 1) == hundreds * percents


@settings(max_examples=100)
@given(st.lists(counts, min_size=1, max_size=6), counts, st.integers(1, 3))
def test_candidates_give_what_they_have_until_nothing_is_missing(held, request, least):
    held, missing = np.array(held), np.array(request)
    found = list(divide(missing, range(len(held)), held, least))
    given_away = sum((share.counts for share in found), np.zeros(4, dtype=int))
    assert (given_away <= missing).all()
    assert all((share.counts <= held[share.assistant]).all() and share.samples >= least for share in found)
    if least == 1:  # whatever anybody had is given
        assert (given_away == np.minimum(missing, held.sum(axis=0))).all()


@pytest.mark.parametrize("build", [batch_norm_net, None])
@pytest.mark.parametrize("cut", [1, 2])
def test_i13_without_replay_and_all_the_pull_it_is_v1_with_equal_weights(build, cut):
    work = task([12, 8, 4], cut=cut, momentum=0.9, uniform_weights=True, **({"build": build} if build else {}))
    korea, *_ = simulate("korea", work, 3, options={"proportion": "off", "alpha": 1e9})
    v1, *_ = simulate("splitfed_v1", work, 3)
    assert distance(korea, v1) < 1e-8  # of alpha's order


def test_i13_the_pull_leaves_the_mean_of_the_branches():
    work = task([12, 8, 4])
    korea, *_ = simulate("korea", work, 3, options={"proportion": "off", "alpha": 0.7})
    for master, parts in zip(
        korea.model(), zip(*((b.part1, b.part2) for b in korea.branches), strict=True), strict=True
    ):
        mean = torch.stack([part.weights.flat for part in parts]).mean(dim=0)
        assert torch.allclose(mean, master.weights.flat, atol=1e-14)
    assert not torch.allclose(korea.branches[0].part1.weights.flat, korea.branches[1].part1.weights.flat)


def test_without_pull_branches_are_models_that_never_mix():
    work = task([12, 8, 4])
    korea, *_ = simulate("korea", work, 1, options={"proportion": "off", "alpha": 0.0})
    alone = {c: simulate("splitfed_v1", work, 1, clients=[c])[0] for c in range(3)}
    ours = {tuple(branch.part1.weights.flat.tolist()) for branch in korea.branches}
    assert ours == {tuple(v1.model()[0].weights.flat.tolist()) for v1 in alone.values()}


def test_i13_off_bypasses_replay():
    """Not one message or operation more than V1's, apart from averages and pulls."""
    work = task([12, 8, 4], device=None)
    _, _, korea = simulate("korea", work, 2, options={"proportion": "off"})
    _, _, v1 = simulate("splitfed_v1", work, 2)
    kinds = [Counter(zip(rows["node"], rows["kind"], strict=True)) for rows in (korea, v1)]
    for kind in kinds:
        assert kind.pop((b"server", b"average"))
        assert kind.pop((b"aggregator", b"average"))
    assert kinds[0] == kinds[1]
    assert korea["bytes"].sum() == v1["bytes"].sum()


@pytest.mark.parametrize("assistants", ["unselected", "all"])
@pytest.mark.parametrize("rounds", range(1, 6))
def test_a_branch_never_trains_on_its_own_assistant(assistants, rounds):
    options = {**FIXED, "assistants": assistants}
    method, _, rows = simulate("korea", task([9] * 8, device=None), rounds, options=options, clients=[0, 2, 5])
    asked = {c: {share.assistant for share in request.shares} for c, request in method.requests.items()}
    assert any(asked.values())
    assert all(c not in helpers for c, helpers in asked.items())
    last = rows[rows["round"] == rounds]
    assert set(last["client"][last["kind"] == b"request"]) == set().union(*asked.values())
    assert set(last["client"][last["kind"] == b"backward"]) == {0, 2, 5}
    if assistants == "unselected":
        assert not set().union(*asked.values()) & {0, 2, 5}


@pytest.mark.parametrize("refresh", [True, False])
def test_bytes_are_those_of_v1_and_of_the_assistants(refresh):
    """An assistant's answer is P1 and 4L down, q (A be + by) up; for a refresh, part-1 goes up from the client, too."""
    work = task([8] * 6, device=None, local_epochs=3)
    options = {**FIXED, "refresh_features": refresh}
    method, _, rows = simulate("korea", work, 1, options=options, clients=[1, 4])
    _, _, v1 = simulate("splitfed_v1", work, 1, clients=[1, 4])
    part1, uses = method.part1, 3 if refresh else 1
    shares = [share for request in method.requests.values() for share in request.shares]
    sample_bytes = part1.part.out_numel * 8 + 8
    down = sum(part1.size_bytes + 4 * 3 for _ in shares) * uses
    up = sum(share.samples for share in shares) * sample_bytes * uses
    refreshed = (uses - 1) * len(method.requests) * part1.size_bytes
    labels = 6 * 4 * 3
    assert method.figures()["replay_bytes"] == down + up + refreshed
    assert rows["bytes"].sum() == v1["bytes"].sum() + down + up + refreshed + labels
    assert rows["bytes"][rows["kind"] == b"knowledge"].sum() == up


def alone(patience_s=None, p0=0.5, presence=None, **rates):
    """One branch on client 0; client 1, and then client 2, or the other way round, are the assistants."""
    work = task([8, 20, 20], device=None)
    options = {"proportion": "fixed", "p0": p0, "patience_s": patience_s}
    world, dropouts = replace(fleet(3, **rates), presence=presence), Dropouts("drop", presence)
    return simulate("korea", work, 1, options=options, clients=[0], world=world, dropouts=dropouts)


def ended(rows, kind, node, client):
    return rows["ended_s"][(rows["kind"] == kind) & (rows["node"] == node) & (rows["client"] == client)]


def test_the_server_waits_for_the_features_of_the_mini_batch():
    """A job is asked for when both are there: the client's smashed data and the assistants' rows of that mini-batch."""
    method, simulator, rows = alone(uplink_bps=[1e6, 1e4, 2e4])
    request = method.requests[0]
    jobs = np.sort(rows[(rows["node"] == b"server") & (rows["kind"] == b"train")], order="step")
    arrived = {c: ended(rows, b"knowledge", b"uplink", c)[0] for c in {s.assistant for s in request.shares}}
    smashed = np.sort(ended(rows, b"smashed", b"uplink", 0))
    n_rows = request.shares[-1].last // len(jobs)
    for step, job in enumerate(jobs):
        first, last = step * n_rows, (step + 1) * n_rows
        needed = [arrived[s.assistant] for s in request.shares if s.first < last and first < s.last]
        assert job["requested_s"] == pytest.approx(max(smashed[step], *needed))
    prices = Prices(simulator.prices.fleet)
    for c in arrived:  # its answer begins with the round, after the labels have been told
        begin = rows["ended_s"][rows["kind"] == b"label counts"].max()
        down, up = link_between(SERVER, c), link_between(c, SERVER)
        asked_s = prices.transfer_s(down, begin, 12)[0] + prices.transfer_s(down, begin, method.part1.size_bytes)[0]
        q = sum(share.samples for share in request.shares if share.assistant == c)
        device_s = q * method.part1.part.macs / 1e6
        size = q * (method.part1.part.out_numel * 8 + 8)
        assert arrived[c] == pytest.approx(begin + asked_s + device_s + prices.transfer_s(up, 0, size)[0])


SLOW_BPS = 100.0
"""Label counts take a second, features half a minute."""


def test_who_does_not_answer_in_time_is_passed_over():
    """The request goes to the next candidate; when there is none any more, what was collected is all there is."""
    reached, *_ = alone(patience_s=5.0)
    assert reached.figures()["replay_late"] == 0
    assert reached.figures()["replay_collected"] == reached.figures()["replay_requested"] == 4

    (first,) = (share.assistant for share in reached.requests[0].shares)
    uplink_bps = [SLOW_BPS if c == first else 1e6 for c in range(3)]
    method, simulator, rows = alone(patience_s=5.0, uplink_bps=uplink_bps)
    assert method.figures()["replay_late"] == 1
    assert set(rows["client"][rows["kind"] == b"knowledge"]) == {3 - first}
    assert method.figures()["replay_collected"] == 4
    assert 5 < simulator.now_s < 10

    nobody, simulator, rows = alone(patience_s=5.0, uplink_bps=[1e6, SLOW_BPS, SLOW_BPS])
    assert nobody.figures()["replay_late"] == 2
    assert nobody.figures()["replay_collected"] == 0
    assert 10 < simulator.now_s < 15
    trained = rows[(rows["node"] == b"server") & (rows["kind"] == b"train")]
    assert trained["macs"].tolist() == [3 * 4 * nobody.part2.part.macs] * 2  # without a row of assistants


@pytest.mark.parametrize("patience_s", [None, 100.0])
def test_an_assistant_that_goes_away_is_not_waited_for(patience_s):
    """Nor is it late. The request goes to the next candidate, or with endless patience to nobody: the list is gone."""
    rates = {"uplink_bps": [1e6, 1e4, 1e4]}
    reached, _, rows = alone(patience_s, **rates)
    (first,) = (share.assistant for share in reached.requests[0].shares)
    answer = rows[(rows["kind"] == b"knowledge") & (rows["client"] == first)][0]
    presence = [Presence([(0.0, 1e6)], 1e6)] * 3
    presence[first] = Presence([(0.0, (answer["started_s"] + answer["ended_s"]) / 2)], 1e6)
    method, simulator, _ = alone(patience_s, presence=presence, **rates)
    assert method.figures()["replay_late"] == 0
    assert method.figures()["replay_collected"] == (0 if patience_s is None else 4)
    assert [loss.client for loss in simulator.records.take_dropouts()] == [first]
    assert simulator.now_s < 100


def test_who_is_not_there_when_the_round_begins_is_not_asked():
    """It has told its labels before: client 0 needs a second for its own."""
    rates = {"uplink_bps": [SLOW_BPS, 1e6, 1e6]}
    reached, *_ = alone(**rates)
    (first,) = (share.assistant for share in reached.requests[0].shares)
    presence = [Presence([(0.0, 1e6)], 1e6)] * 3
    presence[first] = Presence([(0.0, 0.5)], 1e6)
    method, simulator, _ = alone(presence=presence, **rates)
    assert [share.assistant for share in method.requests[0].shares] == [3 - first]
    assert not simulator.records.take_dropouts()


def test_candidates_that_were_not_asked_stay_candidates():
    """One assistant for each of two labels; both are late, and each has a substitute further down the list."""
    held = np.array([[9, 0, 0], [5, 0, 0], [0, 5, 0], [5, 0, 0], [0, 5, 0]])
    work = replace(task([9, 5, 5, 5, 5], device=None), label_counts=held)
    assistants = Assistants(5.0, 1, registered=[occurred() for _ in held])
    for order in ([1, 2, 4, 3], [1, 2, 3, 4]):
        request = Request(work, np.array([5, 5, 0]), np.array(order), (1, 0), assistants)
        assert [share.assistant for share in request.shares] == [1, 2]
        assert [[other.assistant for other in request.ask(share.counts)] for share in request.shares] == [[3], [4]]


def occurred():
    event = Event("it")
    event.occurred = True
    return event


def test_who_owes_an_answer_is_not_asked_again():
    """A phone whose answer takes four rounds gets one request in that time, and the model is not sent to it in vain."""
    work = task([8, 20, 20, 20], local_epochs=4, device=None)
    options = {"proportion": "fixed", "p0": 1.0, "patience_s": 3.0}
    world = fleet(4, uplink_bps=[2e3, SLOW_BPS, SLOW_BPS, 1e6])
    *_, rows = simulate("korea", work, 8, options=options, clients=[0], world=world)
    for c in (1, 2):
        asked, answered = ended(rows, b"request", b"downlink", c), ended(rows, b"knowledge", b"uplink", c)
        assert len(asked) - len(answered) in (0, 1)
        assert all(later > earlier for earlier, later in zip(answered, asked[1:], strict=False))
    silent = fleet(4, downlink_bps=[1e6, 20.0, 20.0, 1e6])  # the request takes longer than patience
    *_, rows = simulate("korea", work, 8, options=options, clients=[0], world=silent)
    assert len(ended(rows, b"request", b"downlink", 1)) > 1  # a model under way would keep it busy for minutes
    assert not len(ended(rows, b"model", b"downlink", 1))


def test_a_refresh_for_nobody_is_not_sent():
    work = task([8, 20, 20], local_epochs=3, device=None)
    options = {"proportion": "fixed", "p0": 0.5, "patience_s": 3.0}
    world = fleet(3, uplink_bps=[1e6, SLOW_BPS, SLOW_BPS])
    _, _, rows = simulate("korea", work, 1, options=options, clients=[0], world=world)
    assert len(ended(rows, b"model", b"uplink", 0)) == 1


def test_an_epoch_without_a_mini_batch_asks_nobody():
    """Four epochs of 5 samples are two full mini-batches of 8: part-1 goes up for a refresh, and in the end."""
    work = task([5, 20, 20], batch_size=8, local_epochs=4, device=None)
    work = replace(work, data=replace(work.data, rest="carry"))
    method, _, rows = simulate("korea", work, 1, options=FIXED, clients=[0])
    assert len(ended(rows, b"model", b"uplink", 0)) == 2
    assert (rows["kind"] == b"request").sum() == 2 * len(method.requests[0].shares)


def test_every_message_draws_by_itself():
    """Where a participant assists, too, and answers anew in every epoch."""
    sent, work = [], task([8] * 4, local_epochs=2, wire=Wire(up=RandTopK(keep=0.5)))
    simulate("korea", work, 1, options={**FIXED, "assistants": "all"}, executor=Watching(sent.append))
    drawn = [payload.draw for payload in sent if isinstance(payload, Coded)]
    assert len(set(drawn)) == len(drawn) > 4 * 2 * 2


def test_features_of_earlier_epochs_are_dropped_at_once():
    """They are large, and Python looks for cycles rarely while a round runs."""
    gc.collect()
    gc.disable()
    try:
        alive = []

        def remember(payload):
            if payload.kind == "knowledge":
                alive.append(weakref.ref(payload.content[0]))

        simulate("korea", task([8] * 4, local_epochs=3), 2, options=FIXED, clients=[0], executor=Watching(remember))
        assert len(alive) >= 6
        assert [ref for ref in alive if ref() is not None] == []
    finally:
        gc.enable()


def test_who_never_told_its_labels_is_not_asked():
    """A phone out of reach does not stop anybody, not even before the first round."""
    method, simulator, rows = alone(patience_s=5.0, uplink_bps=[1e6, 1e-3, 1e6])
    assert method.figures()["replay_late"] == 0
    assert 1 not in rows["client"]
    assert simulator.now_s < 10


def test_a_client_that_has_not_told_its_labels_trains_without_replay():
    method, _, rows = alone(patience_s=5.0, uplink_bps=[1.0, 1e6, 1e6])
    assert not (rows["kind"] == b"request").any()
    assert method.figures()["replay_requested"] == 0


def test_late_answers_are_paid_for_in_the_round_in_which_they_come():
    """Nobody waits for them, their bytes count, and what was trained has not a row of them."""
    work = task([8, 20, 20, 20], local_epochs=4)
    options = {"proportion": "fixed", "p0": 1.0, "patience_s": 3.0}
    world = fleet(4, uplink_bps=[2e3, SLOW_BPS, SLOW_BPS, 1e6])
    method, _, rows = simulate("korea", work, 6, options=options, clients=[0], world=world)
    came = rows[(rows["kind"] == b"knowledge") & (rows["client"] != 3)]
    assert len(came)
    in_time = rows[(rows["kind"] == b"knowledge") & (rows["client"] == 3)]
    sample_bytes = method.part1.part.out_numel * 8 + 8
    macs = rows["macs"][(rows["node"] == b"server") & (rows["kind"] == b"train")].sum()
    assert macs == 3 * (6 * 4 * 8 + in_time["bytes"].sum() / sample_bytes) * method.part2.part.macs
    assert all(torch.isfinite(tensor).all() for tensor in tensors(method).values())


def test_by_the_clock_alone_the_adaptive_proportion_stays():
    (method, _, timed), (_, _, fixed) = (
        simulate("korea", task([8] * 5, device=None), 3, options={"p0": 0.2, **options}, clients=[0, 3])
        for options in ({}, {"proportion": "fixed"})
    )
    assert method.p == 0.2
    ours, theirs = (Counter(map(tuple, rows[["kind", "client", "step", "bytes"]])) for rows in (timed, fixed))
    assert {kind for kind, *_ in ours - theirs} == {b"norm"}
    assert not theirs - ours


def test_by_the_clock_alone_nothing_differs_but_the_proportion():
    """Where the bounds leave it no way, the timeline is that of training, with the norms that clients tell."""
    options = {"p0": P_MAX, "p_min": P_MAX}
    world = fleet(5, latency_s=0.1)
    trained, timed = (
        simulate("korea", task([8] * 5, device=device), 3, options=options, clients=[0, 3], world=world, workers=1)
        for device in (torch.device("cpu"), None)
    )
    assert trained[2].tobytes() == timed[2].tobytes()
    fixed = simulate(
        "korea", task([8] * 5, device=None), 3, options={"proportion": "fixed", "p0": P_MAX}, clients=[0, 3],
        world=world, workers=1,
    )  # fmt: skip
    assert timed[1].now_s == pytest.approx(fixed[1].now_s, rel=1e-4)  # four bytes, and no latency in a model's way


def test_the_proportion_follows_the_gradient_norm():
    """lr times the sum of squared gradients of both parts, the mean over epochs and branches; p within its bounds."""
    work = task([8] * 5, local_epochs=2)
    method, *_ = simulate("korea", work, 4, options={"p0": 0.3}, clients=[0, 3])
    norms, expected = method.norms, 0.3
    assert len(norms) == 4
    for n_rounds in (2, 3):
        expected *= np.mean(norms[:n_rounds]) / np.mean(norms[: n_rounds - 1])
    assert method.p == pytest.approx(expected) != 0.3
    for training, bound in (({"lr_decay": 0.5}, 0.3), ({"lr": 2.0}, P_MAX)):  # norms that shrink, and that grow
        work = task([8] * 5, local_epochs=2, **training)
        assert simulate("korea", work, 8, options={"p0": 0.3, "p_min": 0.3}, clients=[0, 3])[0].p == bound


def test_a_round_in_which_nobody_finishes_leaves_the_proportion():
    options = {"p0": 0.3, "p_min": 0.0}
    _, _, (*_, third) = lossy_world.run("korea", [[0, 1]] * 3, options=options)
    arrives_s = {c: ended(third, b"smashed", b"uplink", c).min() for c in (0, 1)}
    away = lossy_world.gone_at({c: arrival_s - 0.01 for c, arrival_s in arrives_s.items()}, for_s=0.01)
    lost, after = (lossy_world.run("korea", [[0, 1]] * n, away, options)[0] for n in (3, 4))
    assert (len(lost.norms), len(after.norms)) == (2, 3)
    assert lost.p == after.p != 0.3
    assert "replay_gradient_norm" not in lost.figures()
    assert after.figures()["replay_gradient_norm"] == after.norms[-1]


def test_who_is_done_loses_nothing_because_another_is_late():
    """The server adds the norms of a round up when all branches have ended, and after the deadline."""
    options = {"p0": 0.3}
    _, _, (rows,) = lossy_world.run("korea", [[0, 1]], options=options)
    sooner_s, later_s = sorted(ended(rows, b"model", b"uplink", c).max() for c in (0, 1))
    method, clock, _ = lossy_world.run(
        "korea", [[0, 1]], options=options, policy="deadline", deadline_s=(sooner_s + later_s) / 2
    )
    assert len({loss.client for loss in clock.records.dropouts}) == 1
    assert len(method.norms) == 1


def test_the_first_gradient_norm_is_that_of_one_step():
    """One mini-batch, no replay to speak of: ||g||^2 from how far plain SGD has moved the weights."""
    work = task([4, 4], batch_size=4)
    korea, *_ = simulate("korea", work, 1, options={"alpha": 0.0, "p_min": 0.0}, clients=[0])
    before = work.split(1)
    moved = [(b.weights.flat - a.weights.flat) / 0.1 for a, b in zip(korea.model(), before, strict=True)]
    assert korea.norms == [pytest.approx(0.1 * sum(float(step.square().sum()) for step in moved))]


def test_more_epochs_are_averaged_not_added_up():
    """Where weights hardly move, every epoch has the same squared gradients."""
    once, twice = (
        simulate("korea", task([8] * 3, batch_size=8, lr=1e-9, local_epochs=n), 1, clients=[0])[0].norms for n in (1, 2)
    )
    assert twice == pytest.approx(once, rel=1e-6)


def test_assistants_leave_no_trace_in_the_clients_part_1():
    """Batch norm's running statistics move with the client's own samples alone; at the server with all rows."""
    work = task([8] * 4, build=batch_norm_net, cut=1)
    runs = {
        name: simulate("korea", work, 1, options={**options, "alpha": 0.0}, clients=[0])[0]
        for name, options in {"off": {"proportion": "off"}, "on": FIXED}.items()
    }
    first = {name: method.model()[0].weights for name, method in runs.items()}
    second = {name: method.model()[1].weights for name, method in runs.items()}
    assert not torch.equal(second["on"].buffers, second["off"].buffers)
    one = task([4] * 4, build=batch_norm_net, cut=1, batch_size=4)  # a single step: part-1 has not changed before it
    on, off = (
        simulate("korea", one, 1, options={**o, "alpha": 0.0}, clients=[0])[0] for o in (FIXED, {"proportion": "off"})
    )
    assert torch.equal(on.model()[0].weights.buffers, off.model()[0].weights.buffers)
    assert not torch.equal(first["on"].flat, first["off"].flat)


def test_two_forward_passes_call_every_layer_twice():
    """The same MACs; a cost profile with an overhead for every call tells them apart."""
    _, part2 = task().split(1)
    smashed, knowledge = Value("smashed", samples=4), [Value("knowledge", samples=3)]
    joint, apart = (TrainReplayed(Sgd(0.1), joint).work(part2, smashed, knowledge) for joint in (True, False))
    assert joint == part2.part.work(7, passes=3)
    assert (apart.macs, apart.n_ops) == (joint.macs, 2 * joint.n_ops)


def test_bad_options_are_told():
    korea = METHODS["korea"]
    for options in ({"p_min": 0.4}, {"p0": 0.6}):
        with pytest.raises(ScenarioError) as refused:
            korea(task(), korea.Options(**options))
        assert refused.value.key == "method.p0"
    korea(task(), korea.Options(proportion="fixed", p0=0.7))  # which has no bounds
