"""Multi-exit, SplitGP and HARMONY: what they reduce to (I14 and I15 in docs/methods/README.md#identities)."""

from dataclasses import replace

import pytest
import torch
from small_exits import COMINGS, EXACT, PLAIN, deep_task, trained
from small_world import distance, simulate, tensors

from sfl_sim.methods.harmony import contrast
from sfl_sim.models.heads import exit_network


def numbers(states):
    """Parameters and running statistics by name."""
    replicas = [replica for state in states for replica in state.members]
    return {name: values.clone() for replica in replicas for name, values in replica.weights.named_tensors()}


def on_device(method, c):
    """Of front end and exit of client `c`."""
    deployed = method.deployed(c)
    return numbers([*deployed.front, deployed.head])


def at_server(method, c):
    """Of what its features run through."""
    return numbers(method.deployed(c).back)


def gap(one, other):
    """The largest difference of the same numbers."""
    assert one.keys() == other.keys()
    return max(float((values - other[name]).abs().max()) for name, values in one.items())


def apart(one, other):
    """The largest difference between two methods in what they leave any client."""
    return max(gap(of(one, c), of(other, c)) for of in (on_device, at_server) for c in range(len(one.data)))


def test_i14_splitgp_that_keeps_nothing_is_multiexit():
    work = deep_task()
    multiexit = trained("multiexit", work)
    assert apart(trained("splitgp", work, lambda_pers=0.0), multiexit) < EXACT
    assert apart(trained("splitgp", work, lambda_pers=0.2), multiexit) > 1e-3


def test_what_splitgp_s_clients_would_begin_a_round_with_is_what_they_get_in_the_end():
    seen = []
    method = trained(
        "splitgp",
        deep_task(),
        after_round=lambda now: seen.append([on_device(now, c) for c in range(4)]),
        lambda_pers=0.3,
    )
    assert [gap(on_device(method, c), before) for c, before in enumerate(seen[-1])] == [0.0] * 4


@pytest.mark.parametrize(
    ("name", "options"), [("multiexit", {}), ("splitgp", {"lambda_pers": 0.0}), ("harmony", PLAIN)], ids=str
)
def test_i14_exits_whose_loss_counts_nothing_leave_splitfed_v1(name, options):
    work = deep_task(cuts=[2] * 4)
    model, *_ = simulate(name, work, options=options | {"gamma_loss": 0.0}, clients=[2, 0, 3])
    assert distance(model, simulate("splitfed_v1", work, clients=[2, 0, 3])[0]) < EXACT


def test_exits_whose_loss_is_all_train_the_small_model_by_fedavg():
    """Of equal depths, where the average that heeds depths is the plain one."""
    work = deep_task(cuts=[2] * 4)
    method = trained("multiexit", work, gamma_loss=1.0)
    small = replace(work, network=exit_network(work.network, 2), cuts=[])
    assert gap(on_device(method, 0), numbers(trained("fedavg", small).model())) < EXACT


@pytest.mark.parametrize(("name", "options"), [("multiexit", {}), ("harmony", {"csa_weight": 0.0})], ids=str)
def test_where_the_exits_loss_is_all_the_server_never_learns(name, options):
    work = deep_task(weight_decay=0.0)
    before, after = (at_server(trained(name, work, comings, gamma_loss=1.0, **options), 0) for comings in ([], COMINGS))
    assert all((after[key] - values).abs().max() < EXACT for key, values in before.items() if "running" not in key)


def test_a_client_that_keeps_everything_learns_nothing_from_the_others_front_ends():
    """lambda = 1: whatever happens to what they share, once a client has a model of its own."""

    def disturb(method):
        for piece in [*method.phi, *method.h.values()]:
            piece.weights.flat.add_(1.0)

    def learned(after_round, lambda_pers):
        comings = [[0, 1, 2, 3], *COMINGS[1:]]
        method = trained("splitgp", deep_task(), comings, after_round, lambda_pers=lambda_pers)
        return [on_device(method, c) for c in range(4)]

    def changed(lambda_pers):
        pairs = zip(learned(disturb, lambda_pers), learned(lambda method: None, lambda_pers), strict=True)
        return [gap(one, other) for one, other in pairs]

    assert changed(1.0) == [0] * 4
    assert min(changed(0.9)) > 1e-3


@pytest.mark.parametrize(
    "options",
    [{}, {"head": "logits"}, {"cross_batch": False}, {"stochastic_exit": False}],
    ids=str,
)
def test_i15_harmony_without_adaptation_and_alignment_is_multiexit(options):
    work = deep_task()
    multiexit = trained("multiexit", work)
    assert apart(trained("harmony", work, **PLAIN | options), multiexit) < EXACT
    assert apart(trained("harmony", work, **PLAIN | options | {"inner_steps": 1}), multiexit) > 1e-3


def test_i15_it_does_not_matter_which_side_has_the_classifier():
    work = deep_task()
    options = {"inner_steps": 1, "csa_weight": 2.0, "quantise": False}
    assert apart(*(trained("harmony", work, head=head, **options) for head in ("embedding", "logits"))) < EXACT


def test_the_alignment_moves_the_trunk_and_nothing_else_in_a_mini_batch():
    """Not phi, h and the classifier, until the server's answers have changed."""
    work = deep_task(samples=[6], cuts=[2], batch_size=6, local_epochs=1)
    options = {"inner_steps": 1, "quantise": False, "csa_margin": 5.0}

    def changed(rounds):
        one, other = (trained("harmony", work, [[0]] * rounds, csa_weight=weight, **options) for weight in (1.0, 3.0))
        theta, other_theta = at_server(one, 0), at_server(other, 0)
        differ = {name.split(".")[0] for name, values in theta.items() if not torch.equal(values, other_theta[name])}
        return gap(on_device(one, 0), on_device(other, 0)), differ

    assert changed(rounds=1) == (0, {"2", "3"})
    assert changed(rounds=2)[0] > 1e-6
    assert changed(rounds=2)[1] == {"2", "3", "4"}


@pytest.mark.parametrize(("same", "margin", "expected"), [(True, 1.0, 12.5), (False, 1.0, 0.0), (False, 6.0, 0.5)])
def test_the_golden_values_of_the_alignment(same, margin, expected):
    """docs/methods/README.md#golden-values: two embeddings that are 5 apart."""
    one, other = torch.zeros(1, 2, 2), torch.tensor([[[3.0, 0.0], [0.0, 4.0]]])
    assert contrast(one, other, torch.tensor([same]), margin).item() == pytest.approx(expected, abs=1e-6)


def test_pairs_that_are_identical_need_no_alignment():
    """And where labels differ, a distance of zero, whose root has no derivative, does no harm."""
    one = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = contrast(one, one.detach(), torch.tensor([True] * 4), margin=1.0)
    assert loss.item() == 0
    apart = contrast(one, one.detach(), torch.tensor([False] * 4), margin=1.0)
    assert apart.item() == pytest.approx(0.5, abs=1e-5)
    (loss + apart).backward()
    assert torch.equal(one.grad, torch.zeros(4, 3))


def test_normalised_embeddings_are_compared_by_their_direction():
    one = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    same = torch.tensor([True, True])
    assert contrast(one, 7 * one, same, margin=1.0, l2norm=True).item() == pytest.approx(0, abs=1e-6)
    assert contrast(one, 7 * one.flip(1), same, 1.0, l2norm=True).item() == pytest.approx(((0.08 + 2) / 2) / 2)


def test_adaptation_leaves_no_trace_in_running_statistics():
    """An inner loop whose steps are too small to change a weight: three of them leave what none leaves."""
    work = deep_task()
    still, busy = (tensors(trained("harmony", work, COMINGS[:1], inner_steps=n, inner_lr=1e-30)) for n in (0, 3))
    assert "0.1.running_mean" in still
    assert all(torch.equal(values, busy[name]) for name, values in still.items())


@pytest.mark.parametrize(("name", "options"), [("multiexit", {}), ("harmony", {"stochastic_exit": False})], ids=str)
def test_a_layer_that_a_clients_features_pass_by_counts_as_it_was(name, options):
    """The trunk's first piece, which client 1 passes by, after rounds of both clients and of client 0 alone."""
    work = deep_task(samples=[9, 3], cuts=[1, 3])
    before, of_all, of_one = (
        at_server(trained(name, work, rounds, **options), 0)["1.0.weight"] for rounds in ([], [[0, 1]], [[0]])
    )
    assert (of_one - before).abs().max() > 1e-3
    assert (of_all - (0.75 * of_one + 0.25 * before)).abs().max() < EXACT
