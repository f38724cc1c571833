"""FSL-SAGE: heads that learn the server's gradients, when they do, and what is kept for it."""

import pytest
import torch
from small_world import attention_net, distance, fleet, task
from torch import nn
from torch.nn.functional import cross_entropy

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.fsl_sage import FslSage, SageAlign, SageOptions, TrainAndStore
from sfl_sim.ops import SERVER, State, Value, on
from sfl_sim.store import places
from sfl_sim.testing import simulate
from sfl_sim.training.optimisers import Adam, Sgd
from sfl_sim.training.steps import InputGradient


def run(options, rounds=2, samples=(9, 6), kind=FslSage, **settings):
    work = task(samples, batch_size=3, **settings)
    return simulate(kind(work, options), rounds, "cyclic", fleet(len(samples)))


class Copying(FslSage):
    """Its heads become part-2 itself before every step of a client."""

    neutral = None

    def learn(self, c, model, outbox, batches, round):
        self.received[c] = self.part2
        return super().learn(c, model, outbox, batches, round)

    def aligns(self, round):
        return False


def test_a_head_that_is_part_2_gives_the_gradients_of_split_learning():
    """One client with one mini-batch a round, whose step comes before the slow server's, is centralised SGD."""
    options = SageOptions(aux="twin", upload_every=1)
    ours = simulate(Copying(task([9], batch_size=9), options), 3, "cyclic", fleet(1, speedup=1e-6)).method
    plain = simulate(METHODS["splitnn"](task([9], batch_size=9)), 3, "cyclic", fleet(1)).method
    assert distance(ours, plain) < 1e-12


def test_the_golden_alignment():
    """x = (1, 2), labels (0, 1), a = (1, 0) against w2 = (0, 1): G, the head's gradients, and their distance."""
    z, labels = torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([0, 1])

    def gradient(weights):
        x = z.clone().requires_grad_()
        (found,) = torch.autograd.grad(cross_entropy(x @ weights, labels), x, create_graph=True)
        return found

    goal = gradient(torch.tensor([[0.0, 1.0]], dtype=torch.float64)).detach()
    assert goal.flatten().tolist() == pytest.approx([0.3655293, -0.0596015], abs=1e-7)

    def scalar(shape, n_labels):
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 1), nn.Linear(1, 2, bias=False))

    work = task([2], build=scalar, cut=2)
    head = work.network.split(2, seed=0, device=torch.device("cpu"))[1]
    (weights,) = head.part.views(head.weights.flat)
    weights.copy_(torch.tensor([[1.0], [0.0]]))
    stored, target = Value("smashed", samples=2, content=(z, labels)), Value("gradients", samples=2, content=goal)
    SageAlign(Sgd(1.0), epochs=1).run(head, stored, target)
    moved = torch.tensor([[1.0], [0.0]], dtype=torch.float64) - weights
    assert moved.flatten().tolist() == pytest.approx([0.5815569, -0.5815569], abs=1e-7)


def test_more_epochs_bring_the_heads_gradients_nearer():
    torch.manual_seed(0)
    work = task([4])
    head = work.network.split(1, seed=0, device=torch.device("cpu"))[1]
    stored = Value("smashed", samples=5, content=(torch.randn(5, 8, dtype=torch.float64), torch.randint(3, (5,))))
    goal = Value("gradients", samples=5, content=0.1 * torch.randn(5, 8, dtype=torch.float64))

    def apart():
        x = stored.content[0].clone().requires_grad_()
        cross_entropy(head.weights(x, training=False), stored.content[1]).backward()
        return float((x.grad - goal.content).square().sum())

    before = apart()
    SageAlign(Adam(1e-2), epochs=50).run(head, stored, goal)
    assert apart() < 0.8 * before


def test_clients_wait_for_their_head_in_aligning_rounds_alone():
    """It comes down once in l rounds, between the first upload and the first backward pass."""
    found = run(SageOptions(align_every=2, align_epochs=1, upload_every=2), rounds=3, device=None)
    rows = found.rows
    heads = rows[places.at(rows["node"], "downlink") & (rows["bytes"] == found.method.head.size_bytes)]
    assert sorted(heads[["round", "client"]].tolist()) == [(1, 0), (1, 1), (3, 0), (3, 1)]
    for round, client in ((1, 0), (3, 1)):
        own = rows[(rows["round"] == round) & (rows["client"] == client)]
        head = heads[(heads["round"] == round) & (heads["client"] == client)]
        first = own[(own["kind"] == b"backward") & (own["step"] == 0)]
        assert first["started_s"][0] >= head["ended_s"][0]


def test_the_store_keeps_the_newest_samples():
    found = run(SageOptions(store=5, upload_every=1, align_epochs=1), rounds=1)
    stores = found.method.stores
    assert [len(stores[c].content[1]) for c in (0, 1)] == [5, 5]
    assert found.method.n_stored == {0: 5, 1: 5}
    part2 = task([4]).network.split(1, seed=0, device=torch.device("cpu"))[1]
    store, step = State("store"), TrainAndStore(Sgd(0.1), rows=3)
    for labels in ([0, 1], [2, 0]):
        content = torch.randn(2, 8, dtype=torch.float64), torch.tensor(labels)
        step.run(part2, Value("smashed", samples=2, content=content), store)
    assert store.content[1].tolist() == [1, 2, 0]


def test_work_counts_two_passes_for_the_goal_and_six_of_the_head_in_every_epoch():
    found = run(SageOptions(align_epochs=7, upload_every=5), rounds=1, samples=[9], device=None)
    jobs = found.rows[found.rows["node"] == b"server"]
    part2, head = found.method.part2.part, found.method.head.part
    goal, align = (jobs[jobs["kind"] == kind]["macs"].item() for kind in (b"differentiate", b"align"))
    assert goal == 2 * 3 * part2.macs
    assert align == 6 * 7 * 3 * head.macs
    own = found.rows[found.rows["node"] == b"client"]
    assert own["macs"].sum() == 9 * (2 * found.method.part1.part.macs + 2 * head.macs)


def test_heads_stay_with_their_clients_and_keep_their_optimiser():
    found = run(SageOptions(align_every=1, align_epochs=3), rounds=2)
    heads = found.method.heads
    assert [int(heads[c].weights.n_steps) for c in (0, 1)] == [6, 6]
    assert not torch.equal(heads[0].weights.flat, heads[1].weights.flat)


def test_gradients_of_the_goal_change_nothing():
    work = task([4])
    part2 = work.network.split(1, seed=0, device=torch.device("cpu"))[1]
    before = part2.weights.flat.clone()
    data = Value("smashed", samples=2, content=(torch.randn(2, 8, dtype=torch.float64), torch.tensor([0, 1])))
    assert on(SERVER, InputGradient(), part2, data).step.run(part2, data).shape == (2, 8)
    assert torch.equal(part2.weights.flat, before)
    assert not part2.weights.grad.any()


def all_but_the_head_frozen(shape, n_labels):
    body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8)).requires_grad_(requires_grad=False)
    return nn.Sequential(*body, nn.Linear(8, n_labels))


@pytest.mark.parametrize(
    ("build", "options", "key"),
    [
        (all_but_the_head_frozen, SageOptions(), "method.name"),
        (attention_net, SageOptions(aux="twin"), "method.aux"),
    ],
)
def test_heads_need_a_gradient_at_the_cut_and_a_second_derivative_of_theirs(build, options, key):
    with pytest.raises(ScenarioError) as refused:
        FslSage(task((9, 6), build=build, cut=2), options)
    assert refused.value.key == key
