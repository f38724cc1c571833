"""Hydra: who shares a head, what it is identical to, and what it costs (docs/methods/hydra.md)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import batch_norm_net, deep_net, distance, fleet, simulate, task

from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.hydra import balanced_groups, superclasses
from sfl_sim.ops import SERVER
from sfl_sim.sim.orders import ORDERS
from sfl_sim.testing import Watching
from sfl_sim.training.steps import Average

EXACT = 1e-10
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def test_the_golden_grouping():
    """The golden values of docs/methods/README.md."""
    counts = np.array([(9, 1, 0), (8, 2, 0), (1, 7, 2), (0, 6, 4), (2, 2, 6), (5, 1, 4)])
    assert balanced_groups(counts) == [0, 0, 1, 1, 2, 2]
    method = METHODS["hydra"](task([10] * 6, device=None, label_counts=counts))
    assert method.groups == [0, 0, 1, 1, 2, 2]


@given(st.data())
def test_groups_are_balanced_and_taken_one_by_one_by_who_scores_highest(data):
    """Against Algorithm 2 as it is printed."""
    n_groups = data.draw(st.integers(1, 4))
    scores = data.draw(
        st.lists(st.lists(st.integers(0, 3), min_size=n_groups, max_size=n_groups), min_size=1, max_size=9)
    )
    left, expected = set(range(len(scores))), {}
    while left:
        for group in range(n_groups):
            if left:
                best = max(left, key=lambda c: (scores[c][group], -c))
                expected[best] = group
                left -= {best}
    assert dict(enumerate(balanced_groups(np.array(scores)))) == expected


def test_the_paper_s_superclasses_of_cifar10():
    assert superclasses(5, CIFAR10, None).sum(axis=0).tolist() == [2, 2, 1, 2, 3]
    assert superclasses(2, CIFAR10, None).sum(axis=0).tolist() == [6, 4]
    ship = superclasses(5, CIFAR10, None)[CIFAR10.index("ship")]
    assert ship.tolist() == [0, 0, 1, 0, 0]
    assert superclasses(10, CIFAR10, None).tolist() == np.eye(10).tolist()
    assert superclasses(2, list("abcd"), None).tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
    assert superclasses(2, list("abcd"), [["c", 0], ["b", 3]]).tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]


def test_a_client_may_belong_to_the_superclass_of_its_dominant_label():
    counts = np.eye(10, dtype=np.int64)[[8, 0, 9, 5, 4]] * 6
    work = task([6] * 5, device=None, label_counts=counts, label_names=CIFAR10)
    method = METHODS["hydra"](work, METHODS["hydra"].Options(num_heads=5, grouping="superclass"))
    assert method.groups == [2, 1, 0, 3, 4]


@pytest.mark.parametrize(
    ("options", "key", "found"),
    [
        ({"num_heads": 4}, "num_heads", 4),
        ({"superclasses": [["a", "b"], ["b", "c"]]}, "superclasses", [["a", "b"], ["b", "c"]]),
        ({"superclasses": [["a", "b"]]}, "superclasses", [["a", "b"]]),
        ({"num_heads": 3, "superclasses": [["a", "b", "c"]]}, "num_heads", 3),
        ({"superclasses": [[], ["a", "b", "c"]]}, "superclasses", [[], ["a", "b", "c"]]),
        ({"superclasses": [["a", "z"], ["b", "c"]]}, "superclasses", "z"),
        ({"cut2": 7}, "cut2", 7),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(options, key, found):
    with pytest.raises(ScenarioError) as caught:
        METHODS["hydra"](task(device=None), METHODS["hydra"].Options(**options))
    assert (caught.value.key, caught.value.found) == (f"method.{key}", found)


identities = settings(max_examples=12)
worlds = {
    "order": st.sampled_from(["fcfs", "cyclic", "random_job", "random_client"]),
    "samples": st.lists(st.integers(2, 12), min_size=1, max_size=4),
    "momentum": st.sampled_from([0.0, 0.9]),
}
SLOW_TO_FAST = [1e5, 3e5, 5e5, 9e5]


@identities
@given(**worlds, cuts=st.sampled_from([(1, 2), (1, 3), (2, 2), (2, 4), (1, None), (1, 5), (3, 5)]), n=st.integers(1, 3))
def test_i5_one_head_or_none_is_v2(order, samples, momentum, cuts, n):
    """One head whatever the second cut and the order; or no layer left for heads, however many of them."""
    cut, cut2 = cuts
    work = task(samples, build=deep_net, cut=cut, momentum=momentum)
    world = {"order": order, "world": fleet(len(samples), SLOW_TO_FAST[: len(samples)]), "workers": 1}
    heads = n if cut2 == 5 else 1
    hydra, *_ = simulate("hydra", work, options={"cut2": cut2, "num_heads": heads}, **world)
    assert distance(hydra, simulate("splitfed_v2", work, **world)[0]) < EXACT


@identities
@given(**worlds, cut=st.sampled_from([1, 2]))
def test_i5_heads_for_all_and_no_trunk_is_v1(order, samples, momentum, cut):
    samples = samples[:3]  # as many as there are labels, so that each has a head
    work = task(samples, build=batch_norm_net, cut=cut, momentum=momentum, uniform_weights=True)
    options = {"cut2": cut, "head_weights": "uniform"}
    hydra, *_ = simulate("hydra", work, options=options, order=order)
    assert distance(hydra, simulate("splitfed_v1", work)[0]) < EXACT


def test_several_heads_on_a_trunk_are_not_v2():
    work = task([8, 8, 8], build=deep_net)
    hydra, *_ = simulate("hydra", work, options={"cut2": 3})
    assert distance(hydra, simulate("splitfed_v2", work)[0]) > 1e-4


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_heads_add_no_parallelism(order):
    """The timeline is V2's after the clients have told what they hold, but for who averages the heads."""
    work = task([12, 8, 6], build=deep_net, device=None)
    world = {"order": order, "world": fleet(3, SLOW_TO_FAST[:3], speedup=0.5), "workers": float("inf"), "max_wait_s": 1}
    *_, v2 = simulate("splitfed_v2", work, 1, **world)
    *_, hydra = simulate("hydra", work, 1, **world)
    told = hydra["kind"] == b"label counts"
    assert hydra[told]["bytes"].tolist() == [4 * 3] * 3
    heads = (hydra["kind"] == b"average") & (hydra["node"] == b"server")
    assert heads.sum() == 1
    rest, after_s = hydra[~told & ~heads], hydra[told]["ended_s"].max()
    for column in ("node", "kind", "client", "step", "macs", "bytes"):
        assert rest[column].tolist() == v2[column].tolist()
    assert rest["ended_s"] - after_s == pytest.approx(v2["ended_s"], rel=1e-9)


def test_the_average_of_the_heads_by_hand():
    """Groups 0: client 0 and 3; 1: client 1; 2: client 2. A head that no client of the round has is left out."""
    counts = np.array([(12, 0, 0), (0, 8, 0), (0, 0, 6), (4, 0, 0)])

    def shares(clients, weights="samples"):
        averaged = []

        def keep(op, content):
            if isinstance(op.step, Average) and op.node == SERVER:
                averaged.append(op.args[1])

        work, options = task([12, 8, 6, 4], label_counts=counts), {"head_weights": weights}
        method, *_ = simulate("hydra", work, 1, clients=clients, executor=Watching(done=keep), options=options)
        assert method.groups == [0, 1, 2, 0]
        return averaged[0]

    assert shares([0, 1, 2, 3]) == pytest.approx([16 / 30, 8 / 30, 6 / 30])
    assert shares([0, 1, 2, 3], "uniform") == pytest.approx([1 / 3] * 3)
    assert shares([3, 2]) == pytest.approx([4 / 10, 6 / 10])
    assert shares([2, 0], "uniform") == pytest.approx([1 / 2] * 2)


def test_what_the_server_holds():
    method = METHODS["hydra"](task([8, 8, 8, 8], build=deep_net, device=None), METHODS["hydra"].Options(cut2=3))
    head, trunk = method.head.size_bytes, method.trunk.size_bytes
    groups = method.groups
    same = next([a, b] for a in range(4) for b in range(a) if groups[a] == groups[b])
    assert method.server_bytes(range(4)) == trunk + 3 * head
    assert method.server_bytes(same) == trunk + head
