"""Cuts in every notation, for all clients, for each, and for some round."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.errors import ScenarioError
from sfl_sim.models.network import client_cuts, cuts_at
from sfl_sim.models.zoo import network

MOBILENET = network("mobilenet_v1", (3, 32, 32), 10)
RESNET = network("resnet18", (3, 32, 32), 10)
SMALL = network("cnn_small", (1, 8, 8), 10)
RNG = np.random.default_rng(0)


def test_relative_depths_are_the_cuts_that_hydra_calls_shallow_middle_and_deep():
    """Cuts after 4, 15 and 23 of MobileNet's 26 layers (docs/methods/hydra.md#choices)."""
    assert [MOBILENET.cut_at(depth) for depth in (0.15, 0.58, 0.88)] == [4, 15, 23]


def test_a_name_is_the_layer_before_the_cut():
    assert [RESNET.cut_at(layer.name) for layer in RESNET.layers[:-1]] == list(range(1, len(RESNET)))


@settings(deadline=None)
@given(st.floats(0, 1, exclude_min=True, exclude_max=True), st.integers(0, 10))
def test_every_relative_depth_leaves_layers_on_both_sides_and_is_the_nearest_that_does(depth, above):
    cut = RESNET.cut_at(depth, above=above)
    assert above < cut < len(RESNET)
    nearest = min(abs(other - depth * len(RESNET)) for other in range(above + 1, len(RESNET)))
    assert abs(cut - depth * len(RESNET)) == pytest.approx(nearest)


def test_random_cuts_are_drawn_for_each_client_from_all_values_alike():
    cuts = client_cuts(SMALL, "random", ["conv1", 2, 3], [1.0] * 3000, RNG)
    assert sorted(set(cuts)) == [1, 2, 3]
    assert np.bincount(cuts)[1:] == pytest.approx(1000, abs=130)  # five standard deviations
    few = [client_cuts(SMALL, "random", [1, 2, 3], [1.0] * 2, np.random.default_rng(seed)) for seed in (1, 1)]
    assert few[0] == few[1]


AFTER = "a cut of cnn_small comes after one of its layers 1 to 3"
LAYERS = "allowed: 1 conv1, 2 conv2, 3 conv3"


@pytest.mark.parametrize(
    ("cut", "line"),
    [
        (4, f"model.cut: {AFTER} (found 4; {LAYERS})"),
        (0, f"model.cut: {AFTER} (found 0; {LAYERS})"),
        ("fc", f"model.cut: {AFTER} (found 'fc'; {LAYERS})"),
        ("covn2", f"model.cut: {AFTER}, did you mean 'conv2'? (found 'covn2'; {LAYERS})"),
    ],
)
def test_a_wrong_cut_is_one_line_that_lists_the_layers(cut, line):
    with pytest.raises(ScenarioError) as caught:
        SMALL.cut_at(cut)
    assert str(caught.value) == line


def test_a_second_cut_comes_after_the_first_and_its_errors_name_its_key():
    assert SMALL.cut_at("conv3", key="method.head", above=2) == 3
    with pytest.raises(ScenarioError, match=r"^method\.head: .* layers 2 to 3 \(found 1; allowed: 2 conv2, 3 conv3\)"):
        SMALL.cut_at(1, key="method.head", above=1)
    with pytest.raises(ScenarioError, match="cnn_small has 4 layers and cannot be cut after layer 3"):
        SMALL.cut_at(0.9, above=3)


def test_cuts_by_client_are_those_of_the_clients_in_any_notation():
    assert client_cuts(SMALL, "client", [3, "conv1", 0.5], [1.0, 2.0, 3.0], RNG) == [3, 1, 2]


def test_the_slowest_group_takes_the_first_value():
    rates = [5e9, 1e9, 4e9, 2e9, 3e9, 6e9]
    assert client_cuts(SMALL, "device_speed", [1, 2, 3], rates, RNG) == [3, 1, 2, 1, 2, 3]


@given(rates=st.lists(st.sampled_from([1e9, 2e9, 3e9, 4e9]), min_size=3, max_size=20), groups=st.integers(1, 3))
def test_groups_by_speed_are_of_equal_size_and_no_client_is_in_a_faster_group_than_a_faster_one(rates, groups):
    cuts = client_cuts(SMALL, "device_speed", [1, 2, 3][:groups], rates, RNG)
    sizes = [cuts.count(cut) for cut in range(1, groups + 1)]
    assert max(sizes) - min(sizes) <= 1
    assert all(cuts[a] <= cuts[b] for a in range(len(rates)) for b in range(len(rates)) if rates[a] < rates[b])


def test_the_cuts_of_rounds_are_taken_in_any_notation_and_a_wrong_one_is_named():
    assert cuts_at(RESNET, [3, "block5", 0.5, 3]) == [3, 7, 6, 3]
    with pytest.raises(ScenarioError, match=r"^model\.cut\.values\.1: .*did you mean 'conv2'"):
        cuts_at(SMALL, [1, "covn2"])


@pytest.mark.parametrize(
    ("by", "values", "line"),
    [
        ("client", [1, 2], "model.cut.values: needs one cut for each client (found 2; allowed: 3)"),
        (
            "device_speed",
            [1] * 4,
            "model.cut.values: has more values than there are clients (found 4; allowed: 1 to 3)",
        ),
        ("client", [1, 4, 3], f"model.cut.values.1: {AFTER} (found 4; {LAYERS})"),
    ],
)
def test_wrong_values_are_one_line(by, values, line):
    with pytest.raises(ScenarioError) as caught:
        client_cuts(SMALL, by, values, [1.0, 2.0, 3.0], RNG)
    assert str(caught.value) == line
