"""Codecs in the flows of methods: what is trained on, what comes back, what it costs."""

from dataclasses import replace

import pytest
import torch
from audit import BF16, Audit, single
from hypothesis import given, settings
from hypothesis import strategies as st
from lossy_world import gone_at, run
from small_world import CASES, batch_norm_net, distance, fleet, simulate, takes, task, tensors, unsplit, worlds
from torch import nn
from torch.nn.functional import cross_entropy

from sfl_sim import testing
from sfl_sim.build.method import SecondsPerSample
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.splitfed_v1 import SplitFedV1
from sfl_sim.methods.wire import Wire
from sfl_sim.ops import Send
from sfl_sim.testing import Watching, World, cases_of, check_timing_only
from sfl_sim.training.codecs import Bf16, Delta, Fp16, Int, RandTopK, SplitFC, TopK
from sfl_sim.training.coded import CodedUpdate
from sfl_sim.training.contents import packed_bytes
from sfl_sim.training.defences import Noisy, distance_correlation
from sfl_sim.training.executors import Eager

SPLIT = {
    case.kind: case
    for case in reversed(CASES)
    if case.kind.has("is_split", case.options) and takes(case, wire=Wire(TopK()))
}  # fmt: skip
"""Of each split method the first example that takes a codec."""
ALONE = [
    case for case in SPLIT.values()
    if case.kind.neutral and not case.kind.has_exits and case.kind.sends_labels and case.kind.sends_gradients
    and case.kind is not SplitFedV1
]  # fmt: skip
"""Those by which one client alone learns what it does by SplitFedV1: with the same two messages for a mini-batch."""
DRAWING = [
    (Int(bits=4), Int(rounding="stochastic")),
    (RandTopK(keep=0.3), None),
    (TopK(keep=0.4), Fp16()),
    (SplitFC(ratio=2.0), Int(per="channel")),
    (Int(per="channel"), TopK(keep=0.2)),
    (None, Bf16()),
]


def wired(up=None, down=None, update=None, error_feedback=False, samples=(12, 8, 4), **settings):
    return task(list(samples), wire=Wire(up, down, update, error_feedback), **settings)


def learned(name, work, **how):
    return simulate(name, work, **how)[0]


@pytest.mark.parametrize("case", SPLIT.values(), ids=str)
def test_declared_bytes_are_packed_bytes_for_every_method(case):
    for up, down in [(TopK(keep=0.4), Fp16()), (SplitFC(ratio=2.0), Int(per="channel")), (Int(bits=2), RandTopK())]:
        audit = Audit()
        testing.simulate(case.method(wired(up, down, samples=[10, 7], cut=2, momentum=0.9)), executor=audit)
        wrong = [(kind, priced, real) for kind, priced, real in audit.weighed if priced != real]
        assert not wrong


@settings(max_examples=25)
@given(
    case=st.sampled_from([*SPLIT.values(), cases_of(METHODS["fedavg"])[0]]),
    codecs=st.sampled_from(DRAWING),
    update=st.sampled_from([None, Int(), TopK(keep=0.2), Fp16()]),
    feedback=st.booleans(),
    world=worlds(st.lists(st.integers(2, 9), min_size=2, max_size=3)),
)
def test_a_run_without_training_has_the_same_timeline(case, codecs, update, feedback, world):
    wire = Wire(*codecs, update, feedback and update is not None)
    check_timing_only(case, replace(world, settings={"wire": wire}))


@pytest.mark.parametrize("case", SPLIT.values(), ids=str)
@pytest.mark.parametrize("up", [RandTopK(keep=1.0), SplitFC(ratio=1.0, bits=32)], ids=repr)
def test_codecs_that_keep_everything_change_nothing(case, up):
    world = World((8, 4), 1e5, 1e5, 1e5, settings={"build": batch_norm_net})
    coded, plain = (world.run(case, wire=wire).method for wire in (Wire(up), Wire()))
    assert distance(coded, plain) == 0


def test_top_k_of_everything_has_the_bytes_of_no_codec():
    *_, with_codec = simulate("splitfed_v2", wired(TopK(keep=1.0), TopK(keep=1.0)))
    *_, without = simulate("splitfed_v2", wired())
    assert with_codec.tobytes() == without.tobytes()


@pytest.mark.parametrize("codecs", DRAWING, ids=repr)
def test_one_client_learns_the_same_by_every_split_method(codecs):
    settings = {"samples": [14], "momentum": 0.9, "local_epochs": 2}
    one = learned("splitfed_v1", wired(*codecs, **settings))
    for case in ALONE:
        other = testing.simulate(case.neutrally.method(wired(*codecs, **settings))).method
        assert distance(one, other) < 1e-10, str(case)
    assert distance(one, learned("splitfed_v1", wired(**settings))) > 1e-6


def straight_through(x, codec, draw=None):
    return x + (codec.decode(codec.encode(x.detach(), draw), tuple(x.shape), x.dtype) - x).detach()


def assert_one_step(method, loss):
    """One client, one step of plain SGD by a loss of the network that is not split."""
    net = unsplit(method.task)
    (x, y), *_ = [batch.load() for batch in method.task.data.batches(0, 1)]
    loss(net, x, y).backward()
    for (name, parameter), found in zip(net.named_parameters(), tensors(method).values(), strict=True):
        torch.testing.assert_close(found, (parameter - 0.1 * parameter.grad).detach(), msg=name)


def test_the_server_trains_on_decoded_values_and_the_gradient_passes_straight_through():
    codec = Int(bits=2)
    method = learned("splitfed_v2", wired(codec, samples=[4]), rounds=1)
    assert_one_step(method, lambda net, x, y: cross_entropy(net[1:](straight_through(net[0](x), codec)), y))


def test_what_was_not_sent_gets_no_gradient():
    codec = TopK(keep=0.25)

    def loss(net, x, y):
        smashed = net[0](x)
        mask = codec.decode(codec.encode(smashed.detach(), None), (4, 8), torch.float64) != 0
        return cross_entropy(net[1:](mask * smashed), y)

    assert_one_step(learned("splitfed_v2", wired(codec, samples=[4]), rounds=1), loss)


def test_a_mask_of_the_way_up_shortens_the_way_down():
    *_, rows = simulate("splitfed_v2", wired(TopK(keep=0.25), Fp16(), samples=[4]), rounds=1)
    down = rows[rows["kind"] == b"gradients"]
    assert down["bytes"].tolist() == [4 * 2 * 2]  # of 8 elements two, in two bytes
    *_, rows = simulate("splitfed_v2", wired(TopK(keep=0.25), samples=[4]), rounds=1)
    assert rows[rows["kind"] == b"gradients"]["bytes"].tolist() == [4 * 2 * 8]


def test_harmonys_float16_is_the_codec():
    """Up and for the answers that come down: gradients stay as they are."""
    settings = {"build": batch_norm_net, "cuts": [1, 2], "samples": [8, 6]}
    usual, _, rows = simulate("harmony", task(**settings), options={"inner_steps": 1})
    work = task(**settings, wire=Wire(Fp16(), Fp16()))
    wired, _, same_rows = simulate("harmony", work, options={"inner_steps": 1, "quantise": False})
    assert distance(usual, wired) == 0
    assert rows.tobytes() == same_rows.tobytes()
    exact, *_ = simulate("harmony", task(**settings), options={"inner_steps": 1, "quantise": False})
    assert distance(usual, exact) > 0


@pytest.mark.parametrize(("up", "down"), [(Int(), None), (None, Int()), (Delta(), None)])
def test_harmony_has_one_codec_at_a_time(up, down):
    with pytest.raises(ScenarioError) as refused:
        METHODS["harmony"](task(wire=Wire(up, down), samples=[4, 4]))
    assert refused.value.key == ("wire.down" if down else "wire.up")


class Trained(Eager):
    """Notes how far each local step has moved the parameters."""

    def __init__(self):
        super().__init__()
        self.learned = 0

    def run(self, op):
        if op.step.name != "train":
            return super().run(op)
        before = op.state.weights.flat.clone()
        content = super().run(op)
        self.learned += op.state.weights.flat - before
        return content


def test_with_error_feedback_what_arrives_adds_up_to_what_was_learned():
    """FedAvg with one client: its global model moves by what arrives, and the rest is still to come."""
    work, trained = wired(update=TopK(keep=0.1), error_feedback=True, samples=[12]), Trained()
    (begun,) = work.split()
    method, *_ = simulate("fedavg", work, rounds=5, executor=trained)
    (error,) = work.wire._errors[0].content
    missing = trained.learned - (method.whole.weights.flat - begun.weights.flat)
    missing = torch.cat([view.reshape(-1) for view in begun.part.views(missing)])
    torch.testing.assert_close(missing[None], error, atol=1e-12, rtol=0)
    assert error.abs().max() > 1e-4


@pytest.mark.parametrize("codec", [Int(), Int(bits=2), TopK(keep=0.1), Fp16()], ids=repr)
def test_declared_bytes_of_updates_are_packed_bytes(codec):
    part1, _ = task(build=batch_norm_net).split(2)
    trained = part1.snapshot()
    trained.weights.flat.normal_()
    update = CodedUpdate(trained, part1, part1.snapshot(), codec, (0, "updates"), None)
    packed, arrived = update.packed(), update.snapshot()
    assert update.size_bytes == packed_bytes(packed) == arrived.size_bytes
    assert len(packed[0]) == (len(part1.part.shapes) if isinstance(codec, Int) else 1)
    received = update.envelope().unpacked(packed)
    found, wanted = (dict(each.weights.named_tensors()) for each in (received, arrived))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    ("name", "codecs", "kind", "memory"),
    [
        ("fedavg", {"update": TopK(keep=0.1), "error_feedback": True}, b"model", "_errors"),
        ("splitfed_v1", {"up": Delta()}, b"smashed", "_sent"),
    ],
)
def test_of_a_lost_upload_nothing_is_remembered(name, codecs, kind, memory):
    *_, (rows, *_) = run(name, [[0, 1, 2, 3]], wire=Wire(**codecs))
    upload = rows[(rows["client"] == 3) & (rows["kind"] == kind) & (rows["node"] == b"uplink")][0]
    wire = Wire(**codecs)
    run(name, [[0, 1, 2, 3]], gone_at({3: (upload["started_s"] + upload["ended_s"]) / 2}), wire=wire)
    assert [getattr(wire, memory)[c].content is None for c in range(4)] == [False, False, False, True]


def test_delta_above_every_cosine_sends_everything():
    for inner in (None, Int()):
        delta, plain = wired(Delta(inner=inner).model_copy(update={"theta": 1.5})), wired(inner)
        assert distance(learned("splitfed_v2", delta), learned("splitfed_v2", plain)) == 0


def test_delta_below_every_cosine_sends_each_sample_once():
    *_, rows = simulate("splitfed_v2", wired(Delta(theta=-1.0), samples=[8]), rounds=3)
    ups = rows[rows["kind"] == b"smashed"]
    assert ups["bytes"].tolist() == [4 * 64 + 1 + 32, 4 * 64 + 1 + 32, *[1 + 32] * 4]


def test_the_server_sees_what_was_sent_last():
    seen = []

    def look(op, content):
        if op.step.name == "train":
            seen.append({tuple(row.tolist()) for row in op.args[0].load()[0]})

    simulate("splitfed_v2", wired(Delta(theta=-1.0), samples=[4]), rounds=3, executor=Watching(done=look))
    first, *others = seen
    assert all(other == first for other in others)


def test_a_comparison_loads_no_samples_again():
    work = wired(Delta(assume_sent=0.5), samples=[8], device=None)
    once, again = (
        simulate("splitfed_v2", work, 1, world=replace(fleet(1), sample_s=sample_s))[1].now_s for sample_s in (0.0, 1.0)
    )
    assert again - once == pytest.approx(8)


def test_without_training_delta_is_timed_by_the_share_that_one_assumes():
    work = wired(Delta(assume_sent=0.25), samples=[8], device=None)
    *_, rows = simulate("splitfed_v2", work, rounds=2)
    ups = rows[rows["kind"] == b"smashed"]
    assert ups["bytes"].tolist() == [4 * 64 + 1 + 32] * 2 + [64 + 1 + 32] * 2
    with pytest.raises(ScenarioError) as refused:
        simulate("splitfed_v2", wired(Delta(), samples=[8], device=None))
    assert refused.value.key == "wire.up.assume_sent"


def test_without_codecs_the_flow_has_the_same_operations_and_values():
    work = task()
    method = METHODS["splitfed_v2"](work)
    flow = method.minibatch(0, method.part1, method.part2, next(work.data.batches(0, 1)), 1)
    smashed = next(flow).step.out(method.part1, next(work.data.batches(0, 1)))
    sent = flow.send(smashed)
    assert isinstance(sent, Send)
    assert sent.payload is smashed


def test_mixed_precision_is_coded_from_its_own_type():
    work = replace(single(BF16), wire=Wire(TopK(keep=0.2), Int()))
    audit = Audit()
    simulate("splitfed_v1", work, executor=audit)
    assert all(priced == real for _, priced, real in audit.weighed)


def test_estimates_of_speed_know_the_codec():
    work = task(device=None)
    world = fleet(3, macs_per_s=1e12, uplink_bps=8.0, downlink_bps=8.0)
    of = {
        codec: SecondsPerSample(work.network, work.cuts, work.data, world, Wire(codec, codec))(0)
        for codec in (None, Fp16())
    }
    assert of[None] == pytest.approx(8 * 8 * 2 + 8)
    assert of[Fp16()] == pytest.approx(8 * 2 * 2 + 8)


@pytest.mark.parametrize("case", [case for case in SPLIT.values() if takes(case, wire=Wire(nopeek=1.0))], ids=str)
def test_noise_and_nopeek_change_no_message_but_what_is_learned(case):
    world = World((8, 6), 1e5, 1e5, 1e5, settings={"build": batch_norm_net})
    usual, _, rows = world.run(case)
    defences = [Wire(up=Noisy(sigma=0.5))]
    if usual.gets_gradients:
        defences += [Wire(down=Noisy(clip=0.01)), Wire(nopeek=1.0)]
    for wire in filter(lambda wire: takes(case, wire=wire), defences):
        defended, _, others = world.run(case, wire=wire)
        assert distance(usual, defended) > 1e-6
        messages = [found[found["bytes"] > 0][["kind", "client", "bytes"]].tolist() for found in (rows, others)]
        assert sorted(messages[0]) == sorted(messages[1])


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_nopeek_is_the_gradient_of_one_loss_of_the_network_that_is_not_split(case):
    def loss(net, x, y):
        smashed = net[0](x)
        return cross_entropy(net[1:](smashed), y) + 3.0 * distance_correlation(x, smashed)

    work = task(samples=[4], wire=Wire(nopeek=3.0))
    assert_one_step(testing.simulate(case.neutrally.method(work), rounds=1).method, loss)


def test_nopeek_is_priced_by_distances_and_leaves_mini_batches_of_three_alone():
    *_, rows = simulate("splitfed_v2", task(samples=[7], wire=Wire(nopeek=1.0)), rounds=1)
    penalties = rows[rows["kind"] == b"nopeek"]
    assert penalties[["step", "macs", "bytes"]].tolist() == [(0, 3 * 4**2 * (16 + 8), 0)]


def test_nopeek_needs_no_graph_that_is_held():
    held, again = (task(samples=[8, 8], wire=Wire(nopeek=1.0)) for _ in range(2))
    again.network.forward_settings.graphs.limit = 0
    assert distance(learned("splitfed_v1", held), learned("splitfed_v1", again)) == 0


def test_harmony_has_no_defences():
    for wire in (Wire(Noisy(sigma=1.0)), Wire(down=Noisy(sigma=1.0)), Wire(nopeek=1.0)):
        with pytest.raises(ScenarioError) as refused:
            METHODS["harmony"](task(wire=wire, samples=[4, 4]))
        assert refused.value.key == "privacy"


def test_a_gradient_comes_back_to_layers_that_learn_and_to_no_others():
    """The first layer has no weights, the second one has."""

    def build(shape, n_labels):
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Linear(4, n_labels))

    network = task([2], build=build, device=None).network
    assert Wire().crossing_bytes(network.part(0, 1), 5) == (5 * (16 * 8 + 8), 0)
    assert Wire().crossing_bytes(network.part(0, 2), 5) == (5 * (4 * 8 + 8), 5 * 4 * 8)
