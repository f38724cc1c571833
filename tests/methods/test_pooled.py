"""Pooled server steps: EPSL, CycleSL, S2FL, LocFedMix-SL against MergeSFL, SplitFedV1, golden values, loops by hand."""

from dataclasses import replace

import lossy_world
import numpy as np
import pytest
import torch
from small_world import batch_norm_net, distance, fleet, mlp, task
from torch import nn

from sfl_sim.data.batches import ClientData
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS, Task
from sfl_sim.methods.cyclesl import CycleOptions, CycleSL, TrainPool, pool_sizes
from sfl_sim.methods.epsl import EpslOptions, TrainAggregated
from sfl_sim.methods.locfedmix import MixedPair, MixOptions, TrainMixed, mixtures
from sfl_sim.methods.mergesfl import MergeSFL
from sfl_sim.methods.pooled import TrainMerged, dispatched
from sfl_sim.methods.s2fl import S2FL, S2Options, balanced, imbalance
from sfl_sim.methods.splitfed_v1 import SplitFedV1, V1Options
from sfl_sim.models.zoo import network
from sfl_sim.ops import SERVER, Value, on
from sfl_sim.rng import stream
from sfl_sim.testing import simulate
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import InputGradient

EQUAL = [6, 6, 6]


def run(kind, options=None, rounds=2, samples=EQUAL, speed=1e6, **settings):
    method = METHODS.get(kind, kind)(task(samples, batch_size=3, **settings), options)
    return simulate(method, rounds, "cyclic", fleet(len(samples), macs_per_s=speed))


def scalar_part2(weights):
    """Logits z w2 of one number z, and smashed data of clients."""

    def build(shape, n_labels):
        return nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(16, 1)), nn.Linear(1, 2, bias=False))

    part2 = task([2], build=build).network.split(1, seed=0, device=torch.device("cpu"))[1]
    (view,) = part2.part.views(part2.weights.flat)
    view.copy_(torch.tensor(weights, dtype=torch.float64).view(2, 1))
    return part2, view


def norm_of_rows(shape, n_labels):
    first = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    return nn.Sequential(first, nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, n_labels)))


def smashed(z, labels):
    content = torch.tensor(z, dtype=torch.float64).view(-1, 1), torch.tensor(labels)
    return Value("smashed", 8 * len(labels), len(labels), 0, content)


class Before(CycleSL):
    """Gradients are those of part-2 as it was before the pool's step."""

    def train(self, smashed, round):
        self.before = {}
        for c, value in smashed.items():
            self.before[c] = yield on(SERVER, InputGradient(), self.part2, value)
        yield from super().train(smashed, round)
        return self.before

    def gradient(self, smashed, part):
        yield from ()
        return part


def test_cyclesl_with_gradients_of_before_and_one_batch_is_mergesfl():
    ours = run(Before, CycleOptions(server_batch=100))
    assert distance(ours.method, run(MergeSFL).method) < 1e-12


def test_cyclesl_with_a_server_that_stands_still_is_mergesfl_with_one():
    """Then before and after are the same."""
    rates = {"server": {"lr": 0.0}}
    assert distance(run(CycleSL, **rates).method, run(MergeSFL, **rates).method) < 1e-12


@pytest.mark.parametrize(("sizes", "weights"), [((1, 1), (0.25, 0.75)), ((2,), (0.25, 0.75))])
def test_the_golden_pool(sizes, weights):
    """z = 1 (label 0) and 2 (label 1), sets of 1 and 3 samples, w2 = (0, 1), learning rate 0.5."""
    part2, w2 = scalar_part2([0.0, 1.0])
    values = [smashed([1.0], [0]), smashed([2.0], [1])]
    number = next(n for n in range(100) if torch.equal(order_of(n), torch.tensor([1, 0])))
    TrainPool(Sgd(0.5), sizes, 1, weights, (0, "pool", number)).run(part2, values)
    if sizes == (2,):
        assert w2.flatten().tolist() == pytest.approx([0.0019801, 0.9980199], abs=1e-7)
        return
    assert w2.flatten().tolist() == pytest.approx([0.2684403, 0.7315597], abs=1e-7)
    gradients = [InputGradient().run(part2, value).item() for value in values]
    assert gradients == pytest.approx([0.2842414, -0.1313816], abs=1e-7)


def order_of(number):
    return torch.from_numpy(stream(0, "pool", number, 0).permutation(2))


def test_the_servers_passes_are_counted():
    """Of a step three, but for the gradient at the cut; of that gradient, once part-2 has learnt, two."""
    found = run(CycleSL, CycleOptions(server_epochs=2), rounds=1, device=None)
    jobs, part2 = found.rows[found.rows["node"] == b"server"], found.method.part2.part
    first = found.method.task.network.layers[1]
    assert jobs["macs"].sum() == sum(EQUAL) * ((3 * 2 + 2) * part2.macs - 2 * first.macs)


def test_a_single_row_is_no_mini_batch_of_batch_norm():
    assert pool_sizes(7, 3, least=2) == [3, 4]
    run(CycleSL, CycleOptions(server_batch=4), samples=[3, 3, 3], build=batch_norm_net)


def test_s2fl_with_one_group_is_mergesfl():
    ours = run(S2FL, S2Options(groups=1))
    assert distance(ours.method, run(MergeSFL).method) < 1e-12


def test_s2fl_with_a_group_for_each_client_is_splitfed_v1_averaged_every_step():
    ours = run(S2FL, S2Options(groups=3))
    assert distance(ours.method, run(SplitFedV1, V1Options(server_agg_every="step")).method) < 1e-12


def test_larger_sets_have_larger_mini_batches():
    sizes = METHODS["s2fl"](task([12, 4, 2], batch_size=3, device=None)).batch_sizes([0, 1, 2])
    assert sizes == {0: 6, 1: 2, 2: 1}


def test_a_sample_that_is_left_over_is_refused_where_batch_norm_needs_two():
    with pytest.raises(ScenarioError) as refused:
        METHODS["s2fl"](task([6, 6], build=norm_of_rows, device=None))
    assert "drop_last" in refused.value.problem
    work = task([6, 6], build=norm_of_rows, device=None)
    dropping = replace(work, data=replace(work.data, rest="drop"))
    assert METHODS["s2fl"](dropping).batch_sizes([0, 1]) == {0: 4, 1: 4}


def test_groups_balance_labels():
    counts = np.array([[10, 0], [8, 2], [0, 10], [2, 8]])
    assert imbalance(np.array([counts[:2].sum(0), counts[2:].sum(0)])) == pytest.approx([0.5657] * 2, abs=1e-4)
    assert imbalance(np.array([counts[group].sum(0) for group in balanced(counts, 2)])).tolist() == [0, 0]
    assert [len(group) for group in balanced(counts, 3)] == [2, 1, 1]


def test_locfedmix_without_mixtures_and_decoder_is_mergesfl():
    ours, merge = run("locfedmix", MixOptions(partners=0, recon_weight=0.0)), run(MergeSFL)
    assert distance(ours.method, merge.method) < 1e-12
    assert ours.rows.tolist() == merge.rows.tolist(), "in time and work, too: what is switched off is not built"


def test_the_golden_mixture():
    """s = 1 (label 0) and 3 (label 1), shares 0.25, w2 = (0, 1), k = (0.5, 0.5), learning rate 0.5."""
    part2, w2 = scalar_part2([0.0, 1.0])
    values = {0: smashed([1.0], [0]), 1: smashed([3.0], [1])}
    step = TrainMixed(Sgd(0.5), (0.5, 0.5), (MixedPair(0, 1, 0.25), MixedPair(1, 0, 0.25)))
    whole = step.out(part2, list(values.values()))
    whole.content = step.run(part2, list(values.values()))
    assert w2.flatten().tolist() == pytest.approx([0.4688743, 0.5311257], abs=1e-7)
    plain, _ = scalar_part2([0.0, 1.0])
    for c, part in dispatched(whole, values).items():
        assert part.load().item() == pytest.approx(InputGradient().run(plain, values[c]).item())


def test_mixtures_reach_no_client():
    """Part-1's first step is the same with and without them."""
    one, other = (run("locfedmix", MixOptions(partners=n, recon_weight=0.0), 1, [3, 3, 3]) for n in (0, 2))
    assert torch.equal(one.method.part1.weights.flat, other.method.part1.weights.flat)
    assert not torch.equal(one.method.part2.weights.flat, other.method.part2.weights.flat)


def test_a_share_of_one_trains_the_server_twice_as_much():
    values = [smashed([1.0], [0]), smashed([3.0], [1])]
    moved = []
    for pairs in ((), (MixedPair(0, 1, 1.0), MixedPair(1, 0, 1.0))):
        part2, w2 = scalar_part2([0.0, 1.0])
        TrainMixed(Sgd(0.5), (0.5, 0.5), pairs).run(part2, values)
        moved.append(w2 - torch.tensor([[0.0], [1.0]]))
    assert torch.allclose(moved[1], 2 * moved[0])


def test_partners_are_others_and_differ():
    pairs = mixtures(4, 2, 1.0, (0, "mix", 1))
    assert all(pair.one != pair.other and 0 <= pair.share <= 1 for pair in pairs)
    assert len({(pair.one, pair.other) for pair in pairs}) == 8
    assert mixtures(1, 3, 1.0, (0, "mix", 1)) == []


def test_a_client_draws_its_samples_again_while_activations_are_on_their_way():
    found = run("locfedmix", None, 1, device=None)
    own = found.rows[found.rows["client"] == 0]
    drawn, sent = (own[own["kind"] == kind][0] for kind in (b"reconstruct", b"smashed"))
    assert drawn["started_s"] == sent["started_s"]
    assert drawn["macs"] == 3 * 3 * found.method.client_model.members[1].part.macs


def test_who_goes_away_while_it_draws_them_has_no_part_in_the_round_any_more():
    """Even if it is back before its gradient comes: the decoder's is missing."""
    _, _, (rows,) = lossy_world.run("locfedmix", [range(4)], device=None)
    own = rows[(rows["client"] == 1) & (rows["step"] == 0)]
    sent, drawn, back = (own[own["kind"] == kind][0] for kind in (b"smashed", b"reconstruct", b"gradients"))
    away_s = (sent["ended_s"] + back["started_s"]) / 2
    assert drawn["started_s"] < away_s < drawn["ended_s"]
    presence = lossy_world.gone_at({1: away_s}, for_s=(back["started_s"] - away_s) / 2)
    _, clock, (rows,) = lossy_world.run("locfedmix", [range(4)], presence=presence)
    assert {loss.client for loss in clock.records.take_dropouts()} == {1}
    assert rows["started_s"][rows["client"] == 1].max() <= away_s


def test_texts_are_refused():
    data = ClientData([np.arange(4)], batch_size=2)
    with pytest.raises(ScenarioError, match="has none"):
        METHODS["locfedmix"](Task(network("gpt_small", (16,), 30), cuts=[2], data=data))


@pytest.mark.parametrize("build", [mlp, batch_norm_net])
@pytest.mark.parametrize("name", ["cyclesl", "s2fl", "locfedmix"])
def test_decoders_and_pools_fit_every_cut(name, build):
    for cut in (1, 2):
        run(name, rounds=1, build=build, cut=cut)


def test_i33_epsl_without_aggregation_is_mergesfl():
    ours, merged = run("epsl", EpslOptions(phi=0.0)), run(MergeSFL)
    assert distance(ours.method, merged.method) == 0
    assert ours.rows.tobytes() == merged.rows.tobytes()


@pytest.mark.parametrize("phi", [0.3, 1.0])
def test_i33_epsl_of_one_client_is_mergesfl(phi):
    """Its mean activations are its own."""
    assert distance(run("epsl", EpslOptions(phi=phi), samples=[8]).method, run(MergeSFL, samples=[8]).method) < 1e-12


def test_epsl_propagates_fewer_rows_back():
    """5 clients with 64 samples and phi 1/2: 192 of 320 samples go back, and 32 more go forward."""
    part2, _ = scalar_part2([0.0, 1.0])
    values = [Value("smashed", samples=64) for _ in range(5)]
    work = TrainAggregated(Sgd(0.1), 32, (0.2,) * 5).work(part2, values)
    assert work.macs == (320 + 32 + 2 * 192) * part2.part.macs


def test_a_share_of_a_mini_batch_that_is_whole_is_not_rounded_up():
    """0.14 * 50 is above 7 in binary."""
    work = task([50], batch_size=50, device=None)
    step = METHODS["epsl"](work, EpslOptions(phi=0.14)).step_of({0: Value("smashed", samples=50)}, 1)
    assert step.slots == 7


@pytest.mark.parametrize("name", ["cyclesl", "ho_sfl"])
def test_jobs_at_the_server_belong_to_the_client_whose_data_they_take(name):
    jobs = run(name, device=None).rows
    jobs = jobs[jobs["kind"] == b"differentiate"]
    assert set(jobs["client"]) == {0, 1, 2}


@pytest.mark.parametrize("sizes", [[2, 2], [3, 1]])
def test_an_aggregated_row_of_a_linear_part_gets_what_clients_get_on_average(sizes):
    """By hand: one aggregated row, with weights 1/4 and 3/4; the others as with MergeSFL."""
    part2, w2 = scalar_part2([0.3, 1.0])
    start = w2.clone()
    z = torch.linspace(-1.0, 2.0, sum(sizes), dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 0])
    parts = torch.split(z, sizes), torch.split(labels, sizes)
    values = [smashed(one.tolist(), y.tolist()) for one, y in zip(*parts, strict=True)]
    given = TrainAggregated(Sgd(0.5), 1, (0.25, 0.75)).run(part2, values)

    probabilities = torch.softmax(z[:, None] * start[:, 0], dim=1)
    g = (probabilities - nn.functional.one_hot(labels, 2)) / len(z)
    first = [0, sizes[0]]
    others = [row for row in range(len(z)) if row not in first]
    mean = 0.25 * z[first[0]] + 0.75 * z[first[1]]
    step = (g[others] * z[others, None]).sum(0) + mean * g[first].sum(0)
    assert torch.allclose(w2[:, 0], start[:, 0] - 0.5 * step)
    back = g @ start[:, 0]
    back[first] = back[first].sum() / 2
    assert torch.allclose(given[:, 0], back)


def test_whoever_has_fewer_rows_has_no_part_in_the_others():
    """A client with one row beside one with three, all aggregated: the second and third virtual rows are its alone."""
    part2, _ = scalar_part2([0.3, 1.0])
    values = [smashed([1.0, 2.0, 3.0], [0, 1, 0]), smashed([-1.0], [1])]
    given = TrainAggregated(Sgd(0.0), 3, (0.5, 0.5)).run(part2, values)
    alone = TrainMerged(Sgd(0.0)).run(part2, values)
    assert torch.allclose(given[1:3], alone[1:3])
    assert torch.allclose(given[[0, 3]], alone[[0, 3]].mean() * torch.ones(2, 1, dtype=torch.float64))


def test_batch_norm_sees_two_aggregated_rows_at_least():
    """One alone has no variance."""

    found = run("epsl", EpslOptions(phi=0.1), build=norm_of_rows, samples=[6, 6])
    aggregated = TrainAggregated(Sgd(0.1), 2, (0.5, 0.5)).work(found.method.part2, [Value("smashed", samples=3)] * 2)
    served = found.rows[(found.rows["kind"] == b"train") & (found.rows["node"] == b"server")]
    assert served["macs"][0] == aggregated.macs
