"""What varies: from texts to points."""

import numpy as np
import pytest
from refusals import refused

from sfl_sim.scenario.load import parse
from sfl_sim.scenario.vary import ALL, Axis, axis, read_axes, spread


def study(**values):
    return parse({"name": "mine", **values})


def test_values_are_listed_after_the_key():
    assert read_axes(["clients.network.scale=0.25,1,4", "model.cut=block1, 2"]) == [
        Axis("clients.network.scale", (0.25, 1, 4)),
        Axis("model.cut", ("block1", 2)),
    ]


def test_a_value_may_be_a_section():
    (axis,) = read_axes(["model.cut={by: device_speed, values: [1, 2]}, 1"])
    assert axis.values == ({"by": "device_speed", "values": [1, 2]}, 1)
    assert read_axes(["model.cut=[1, 2]"])[0].values == (1, 2)


def test_values_from_python_may_be_arrays_and_numbers_of_numpy():
    assert axis("server.workers", np.arange(1, 3)) == Axis("server.workers", (1, 2))
    assert axis("clients.network.scale", np.linspace(0.5, 2, 4)).values == (0.5, 1.0, 1.5, 2.0)
    (section,) = axis("clients.compute", [{"macs_per_s": np.array([1e6, 2e6])}]).values
    assert section == {"macs_per_s": [1e6, 2e6]}


def test_all_cuts_are_found_out_later():
    (axis,) = read_axes(["model.cut=all"])
    assert axis.is_open
    assert axis.values == (ALL,)


@pytest.mark.parametrize(
    ("texts", "key", "found"),
    [
        (["model.cut"], None, "model.cut"),
        (["model.cut="], None, "model.cut="),
        (["model.cut=1", "model.cut=2"], "model.cut", None),
        (["model.cut=1,1"], "model.cut", 1),
        (["clients.power=null,null"], "clients.power", None),
        (["model.cut=1,all"], "model.cut", "all"),
        (["server.order=all"], "server.order", "all"),
        (["seed=1,2"], "seed", None),
        (["serving.rho=0,1"], "serving.rho", None),
        (["name=a,b"], "name", None),
    ],
)
def test_what_cannot_vary_is_one_line(texts, key, found):
    with refused(key, file="--vary", found=found):
        read_axes(texts)


@pytest.mark.parametrize("values", [1, None, {"by": "round"}])
def test_from_python_values_come_in_a_list(values):
    with refused("model.cut", file="--vary"):
        axis("model.cut", values)


def test_points_are_all_combinations_for_every_variant_and_seed():
    found = list(
        spread(
            study(repeats=2, grid={"method.name": ["splitfed_v1", "splitfed_v2"]}),
            read_axes(["model.cut=1,2,3", "clients.network.scale=1,4"]),
        )
    )
    assert len(found) == 2 * 2 * 3 * 2
    assert len({point.key for point in found}) == len(found)
    last = found[-1]
    assert (last.series, last.indices) == ("splitfed_v2", (2, 1))
    scenario = last.variant.scenario
    assert (scenario.seed, scenario.model.cut, scenario.clients.network.scale) == (1, 3, 4.0)


@pytest.mark.parametrize("key", ["model.cut", "clients.network.scale", "clients.network"])
def test_what_the_grid_sets_is_not_varied_besides(key):
    with refused(key):
        list(spread(study(grid={"model.cut": [1], "clients.network.scale": [1, 2]}), [Axis(key, (1,))]))


@pytest.mark.parametrize("text", ["clients.network.scal=1", "clients.network.scale=fast"])
def test_a_value_that_cannot_be_used_is_one_line(text):
    with refused(text.partition("=")[0], file="--vary"):
        list(spread(study(), read_axes([text])))
