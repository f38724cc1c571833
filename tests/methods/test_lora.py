"""Split fine-tuning with adapters: every method is a host, and identities between them hold."""

import numpy as np
import pytest
import torch
from small_world import CPU, attention_net, distance, fleet, simulate, takes, task, tensors, usual_options

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.ahead import UploadOptions
from sfl_sim.methods.dtfl import DtflOptions
from sfl_sim.methods.wire import Wire
from sfl_sim.models.averages import average
from sfl_sim.models.lora import Lora, average_product, matrices, product_errors, truncated_product
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.orders import ORDERS
from sfl_sim.testing import Case
from sfl_sim.training.codecs import Int
from sfl_sim.training.executors import Timing

USUAL = Lora(rank=2)
WITH_EXITS = [name for name, kind in METHODS.items() if kind.has_exits]
FIVE_LAYERS = {"hydra": {"cut2": 4}}
"""Options of methods whose usual ones are for three layers."""


def takes_attention(name):
    kind = METHODS[name]
    case = Case(kind, kind.Options(**FIVE_LAYERS.get(name, usual_options(name))))
    return takes(case, build=attention_net, cut=3)


AVERAGING = [name for name, kind in METHODS.items() if kind.only_averages and takes_attention(name)]


def finetune(name, lora=USUAL, **settings):
    work = task(build=attention_net, lora=lora, **settings)
    return simulate(name, work, options=FIVE_LAYERS.get(name))


def moved(method):
    """Names of the tensors that training has changed."""
    before, after = dict(method.task.split()[0].weights.named_tensors()), tensors(method)
    return {key for key in before if key in after and not torch.equal(after[key], before[key])}


@pytest.mark.parametrize("aggregate", ["separate", "ffa"])
def test_adapters_of_attention_are_trained_and_nothing_else(aggregate):
    method, _, _ = finetune("splitfed_v1", Lora(rank=2, aggregate=aggregate), cut=2)
    assert {key[-2:] for key in moved(method)} == ({".A", ".B"} if aggregate == "separate" else {".B"})


@pytest.mark.parametrize("targets", [("0.1", "1.0", "2"), ("1.0", "2"), ("2",)])
@pytest.mark.parametrize("name", WITH_EXITS)
def test_methods_with_exits_train_adapters_on_any_side_of_the_cut(name, targets):
    """Exits sit on vectors or images, so this is a network of three linear maps; clients are cut after one or two."""
    work = task(cuts=[1, 2, 1], lora=Lora(rank=2, targets=targets))
    method, *_ = simulate(name, work)
    assert {key[-2:] for key in moved(method)} == {".A", ".B"}
    assert {key[0] for key in moved(method)} == {target[0] for target in targets}
    for depth, exit_head in METHODS[name](work).h.items():
        assert not torch.equal(method.h[depth].weights.flat, exit_head.weights.flat), "exits are trained whole"


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["splitfed_v1", "splitfed_v2", "splitnn", "mergesfl"])
def test_one_client_split_trains_as_one_that_is_not_split(name, cut):
    alone, _, _ = finetune("fedavg", samples=(12,))
    split, _, _ = finetune(name, samples=(12,), cut=cut)
    assert distance(alone, split) < 1e-12


def test_messages_hold_adapters_alone():
    lora = Lora(rank=2)
    _, _, rows = finetune("splitfed_v2", lora, cut=3)
    assert set(rows["bytes"][rows["kind"] == b"model"]) == {8 * 2 * 2 * 2 * (8 + 8)}


@pytest.mark.parametrize("wire", [Wire(), Wire(up=Int(bits=8)), Wire(down=Int(bits=8))], ids=["plain", "up", "down"])
@pytest.mark.parametrize("name", ["splitfed_v1", "splitfed_v2", "mergesfl", "smofi"])
def test_a_client_whose_layers_are_all_frozen_gets_no_gradient_and_computes_none(name, wire):
    _, _, rows = finetune(name, cut=1, wire=wire)
    assert rows["bytes"][rows["kind"] == b"gradients"].sum() == 0
    assert rows["macs"][rows["kind"] == b"backward"].sum() == 0
    assert rows["macs"][rows["kind"] == b"forward"].sum() > 0


def test_nopeek_leaves_clients_whose_layers_are_all_frozen_alone():
    lora = Lora(rank=2, targets=("block2.q",))
    _, _, rows = finetune("splitfed_v1", lora, cuts=[1, 3, 2], wire=Wire(nopeek=1.0))
    assert set(rows["client"][rows["kind"] == b"nopeek"]) == {1}


def prepared(lora):
    work = task(build=attention_net, cut=2, lora=lora, device=None)
    clock = EventClock(fleet(3), Timing(), Queueing(ORDERS["fcfs"], float("inf")))
    clock.run(METHODS["splitfed_v2"](work).prepare(), 1, in_round=False)
    return clock.take_rows()


def test_frozen_layers_go_to_every_client_once_before_the_first_round():
    frozen = sum(p.numel() for p in attention_net((1, 4, 4), 3)[:2].parameters())
    rows = prepared(Lora())
    assert sorted(rows["client"]) == [0, 1, 2]
    assert set(rows["bytes"]) == {4 * frozen}


def test_clients_that_run_the_last_layer_get_what_is_frozen_of_it():
    """As HARMONY's do with `head: embedding`."""
    work = task(cuts=[1, 2, 1], lora=Lora(rank=2, targets=("1.0",)), device=None)
    frozen = [work.network.frozen_bytes([layer]) for layer in work.network.layers]
    for head, last in (("embedding", frozen[2]), ("logits", 0)):
        clock = EventClock(fleet(3), Timing(), Queueing(ORDERS["fcfs"], float("inf")))
        method = METHODS["harmony"](work, METHODS["harmony"].Options(head=head))
        clock.run(method.prepare(), 1, in_round=False)
        rows = clock.take_rows()
        assert sorted(rows["bytes"]) == sorted([frozen[0] + last, frozen[0] + frozen[1] + last, frozen[0] + last])
    assert min(frozen) > 0


def messages_before(method):
    clock = EventClock(fleet(3), Timing(), Queueing(ORDERS["fcfs"], float("inf")))
    clock.run(method.prepare(), 1, in_round=False)
    return clock.take_rows()["bytes"].tolist()


def test_clients_with_a_head_get_what_is_frozen_of_it():
    """A head of the layers behind the cut has their frozen weights, DTFL's clients those up to the deepest tier."""
    work = task(build=attention_net, cut=1, lora=Lora(), device=None)
    frozen = [work.network.frozen_bytes([layer]) for layer in work.network.layers]
    whole = sum(frozen)
    assert messages_before(METHODS["splitfed_v2"](work)) == [frozen[0]] * 3
    assert messages_before(METHODS["cse_fsl"](work, UploadOptions(aux="twin"))) == [whole] * 3
    assert messages_before(METHODS["cse_fsl"](work, UploadOptions(aux="linear"))) == [frozen[0]] * 3
    two = messages_before(METHODS["dtfl"](work, DtflOptions(aux="linear", tiers=[1, 2])))
    assert two == [frozen[0] + frozen[1]] * 3
    assert 0 < frozen[1] < whole - frozen[0]


@pytest.mark.parametrize(("target", "is_needed"), [("2", False), ("0.1", True)])
def test_no_gradient_of_harmony_goes_to_clients_whose_layers_are_frozen(target, is_needed):
    *_, rows = simulate("harmony", task(cuts=[1, 1, 1], lora=Lora(rank=2, targets=(target,)), device=None))
    down = rows[(rows["node"] == b"downlink") & (rows["kind"] == b"gradients")]
    assert len(down)
    assert (down["bytes"] > 0).any() == is_needed


def test_clients_that_have_the_frozen_layers_get_nothing():
    assert len(prepared(Lora(preinstalled=True))) == 0
    assert len(prepared(None)) == 0


def test_timing_only_has_the_timeline_of_the_run_that_trains():
    timelines = [finetune("splitfed_v2", cut=2, device=device)[2] for device in (CPU, None)]
    np.testing.assert_array_equal(*timelines)


def test_adapters_at_the_server_cost_the_server_what_lies_above_the_first():
    lora = Lora(rank=2, targets=("block3.q",))
    _, _, rows = finetune("splitfed_v2", lora, cut=2)
    net = task(build=attention_net, lora=lora).network
    jobs = rows[(rows["kind"] == b"train") & (rows["node"] == b"server")]
    below, above = net.part(2, 3), net.part(3, 5)
    assert jobs["macs"][0] == below.work(4, passes=1).macs + above.work(4, passes=3).macs


def factors(replica):
    """Weights by name, and the product of every adapter by the name of its B."""
    tensors = dict(replica.weights.named_tensors())
    return tensors, {
        place.b: place.adapter.scale * tensors[place.b] @ tensors[place.a] for place in replica.part.adapters
    }


def trained_copies(aggregate, build=attention_net, n=3):
    """A replica, and copies of it with other adapters."""
    (replica,) = task(build=build, lora=Lora(rank=2, aggregate=aggregate)).split()
    generator = torch.Generator().manual_seed(1)
    copies = [replica.snapshot() for _ in range(n)]
    for copy in copies:
        copy.weights.flat.copy_(torch.randn(len(copy.weights.flat), generator=generator, dtype=torch.float64))
    return replica, copies


def effective(replica):
    """The weight matrices with their adapters added."""
    part, weights = replica.part, replica.weights
    part.call(part.views(weights.flat), weights.frozen, weights.buffer_views, torch.zeros(1, 1, 4, 4).double(), False)
    return {name: getattr(module, tensor).detach().clone() for name, module, tensor, _ in matrices(part.skeleton)}


def test_joined_adapters_are_the_average_of_products_and_new_ones_add_nothing():
    replica, copies = trained_copies("concat")
    initial = replica.snapshot()
    shares = [0.5, 0.3, 0.2]
    expected = [effective(copy) for copy in copies]
    average(replica.weights, [copy.weights for copy in copies], shares)
    for name, found in effective(replica).items():
        mean = sum(share * each[name] for share, each in zip(shares, expected, strict=True))
        torch.testing.assert_close(found, mean, rtol=1e-12, atol=1e-12)
    tensors, products = factors(replica)
    assert all(not product.any() for product in products.values())
    before, _ = factors(initial)
    assert all(not torch.equal(tensors[place.a], before[place.a]) for place in replica.part.adapters), "drawn anew"
    assert copies[0].weights.frozen is initial.weights.frozen, "others keep the frozen weights that they have"


def test_averaging_factors_apart_is_wrong_by_their_covariance():
    """With B = (1, 3), A = (2, 0) and equal shares, the true product is 1 and the average factors give 2."""
    pairs = [(torch.tensor([[2.0]]), torch.tensor([[1.0]])), (torch.tensor([[0.0]]), torch.tensor([[3.0]]))]
    assert average_product(pairs, [0.5, 0.5]).item() == 1.0
    wrong, right = product_errors(pairs, [0.5, 0.5]).sqrt().tolist()
    assert (wrong, right) == (1.0, 1.0)


def test_the_error_of_averages_is_measured_over_all_adapters():
    replica, copies = trained_copies("separate")
    shares = [0.5, 0.3, 0.2]
    average(replica.weights, [copy.weights for copy in copies], shares)
    products = [factors(copy)[1] for copy in copies]
    found = factors(replica)[1]
    true = {name: sum(k * each[name] for k, each in zip(shares, products, strict=True)) for name in found}
    wrong = sum((true[name] - found[name]).square().sum() for name in found) / 4.0**2
    right = sum(each.square().sum() for each in true.values()) / 4.0**2
    torch.testing.assert_close(replica.weights.product_errors, torch.stack([wrong, right]).double())


def test_where_a_is_frozen_averages_of_b_are_the_average_product():
    replica, copies = trained_copies("ffa")
    average(replica.weights, [copy.weights for copy in copies], [0.5, 0.5, 0.0])
    products, found = [factors(copy)[1] for copy in copies], factors(replica)[1]
    for name, product in found.items():
        torch.testing.assert_close(product, (products[0][name] + products[1][name]) / 2, rtol=1e-12, atol=1e-12)


def test_decomposed_adapters_are_the_best_product_of_their_rank():
    """By Eckart and Young no other is nearer to the average product, and its error is that of the singular values."""
    replica, copies = trained_copies("svd")
    frozen = replica.weights.frozen
    shares = [0.5, 0.3, 0.2]
    average(replica.weights, [copy.weights for copy in copies], shares)
    products = [factors(copy)[1] for copy in copies]
    wrong = right = 0.0
    for name, found in factors(replica)[1].items():
        left, values, rest = torch.linalg.svd(sum(k * each[name] for k, each in zip(shares, products, strict=True)))
        best = left[:, :2] * values[:2] @ rest[:2]
        torch.testing.assert_close(found, best, rtol=1e-10, atol=1e-10)
        wrong, right = wrong + values[2:].square().sum(), right + values.square().sum()
    torch.testing.assert_close(replica.weights.product_errors, torch.stack([wrong, right]) / 4.0**2)
    assert replica.weights.frozen == frozen


def test_adapters_of_more_rank_than_their_matrix_decompose_too():
    pairs = [(torch.ones(3, 5), torch.tensor([[1.0, 2.0, 3.0]]))]
    a, b, errors = truncated_product(pairs, [1.0])
    assert (a.shape, b.shape) == ((3, 5), (1, 3))
    torch.testing.assert_close(b @ a, torch.full((1, 5), 6.0))
    assert errors.tolist() == [0.0, pytest.approx(180.0)]


def test_a_decomposed_direction_that_has_learned_nothing_can_still_learn():
    """Where B is 0, the gradient of B needs an A that is not."""
    pairs = [(torch.rand(2, 5).double(), torch.zeros(4, 2).double())] * 2
    a, b, errors = truncated_product(pairs, [0.5, 0.5])
    torch.testing.assert_close(a @ a.T, torch.eye(2).double())
    assert not b.any()
    assert not errors.any()


@pytest.mark.parametrize("name", AVERAGING)
def test_methods_that_only_average_go_on_with_decomposed_adapters(name):
    method, _, rows = finetune(name, Lora(rank=2, aggregate="svd"), cut=3)
    apart, _, usual = finetune(name, cut=3)
    assert distance(method, apart) > 0
    assert set(rows["bytes"]) == set(usual["bytes"]), "factors travel as they do where they are averaged apart"


@pytest.mark.parametrize("name", AVERAGING)
def test_methods_that_only_average_go_on_with_joined_adapters(name):
    method, _, _ = finetune(name, Lora(rank=2, aggregate="concat"), cut=3)
    assert any(key.endswith(".original") for key in moved(method))


@pytest.mark.parametrize("aggregate", ["concat", "svd"])
def test_one_clients_adapters_are_its_own_product(aggregate):
    replica, copies = trained_copies(aggregate, n=1)
    expected = effective(copies[0])
    average(replica.weights, [copies[0].weights], [1.0])
    for name, found in effective(replica).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("aggregate", ["concat", "svd"])
@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if not kind.only_averages])
def test_methods_that_do_more_or_less_than_average_refuse_to_multiply_adapters(name, aggregate):
    with pytest.raises(ScenarioError) as refused:
        finetune(name, Lora(aggregate=aggregate), cut=2)
    assert refused.value.key == "lora.aggregate"


def test_joined_adapters_come_down_as_factors_of_all_and_go_up_as_ones_own():
    """Factors of three clients of rank 1 have 48 elements, of rank 2 more than the matrix, which then comes instead."""
    for rank, elements in ((1, 48), (2, 64)):
        _, _, rows = finetune("splitfed_v2", Lora(rank=rank, aggregate="concat"), cut=3)
        models = rows[rows["kind"] == b"model"]
        assert set(models["bytes"][models["node"] == b"downlink"]) == {8 * 4 * elements}
        assert set(models["bytes"][models["node"] == b"uplink"]) == {8 * 4 * rank * 16}


def test_adapters_of_heads_are_joined_too_and_what_is_coded_goes_up_as_ones_own():
    lora = Lora(rank=1, aggregate="concat")
    found = {}
    for update in (None, Int(bits=8)):
        work = task(build=attention_net, cut=2, lora=lora, wire=Wire(update=update))
        _, _, rows = simulate("cse_fsl", work, options={"aux": "twin", "server": "copies"})
        models = rows[(rows["kind"] == b"model") & (rows["bytes"] > 0) & (rows["round"] > 0)]
        found[update is None] = [set(models["bytes"][models["node"] == place]) for place in (b"downlink", b"uplink")]
    (plain_down,), (plain_up,) = found[True]
    (coded_down,), (coded_up,) = found[False]
    assert plain_down == coded_down == 3 * plain_up
    assert plain_up / 8 <= coded_up < plain_up / 2
