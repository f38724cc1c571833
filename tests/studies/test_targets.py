"""Relative targets: whose best accuracy counts, that it is known before anyone trains, and when it is not."""

import pandas as pd
import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import parse
from sfl_sim.studies.targets import references, target_figures
from sfl_sim.studies.train import check

METHODS = [
    {"method.name": "fedavg"},
    {"method.name": "splitfed_v1", "method.server_agg_every": ["step", "round"]},
    {"method.name": "splitfed_v2", "server.order": ["fcfs", "cyclic"]},
]


def study(of, grid=None, **others):
    target = {"share": 0.5, "of": of}
    return parse({"grid": grid or METHODS, "report": {"target_accuracy": target}, **others})


def test_the_reference_differs_in_method_and_order_alone():
    found = references(study("fedavg", {"method.name": ["fedavg", "splitfed_v2"], "train.lr": [0.1, 0.2]}))
    assert found == {
        "fedavg, lr=0.1": "fedavg, lr=0.1",
        "splitfed_v2, lr=0.1": "fedavg, lr=0.1",
        "fedavg, lr=0.2": "fedavg, lr=0.2",
        "splitfed_v2, lr=0.2": "fedavg, lr=0.2",
    }


@pytest.mark.parametrize(
    ("of", "name"),
    [
        ("fedavg", "fedavg"),
        ("splitfed_v1", "splitfed_v1, round"),  # its default
        ({"name": "splitfed_v1", "server_agg_every": "step"}, "splitfed_v1, step"),
        ({"name": "splitfed_v1", "server_agg_every": "round"}, "splitfed_v1, round"),
        ("splitfed_v2", "splitfed_v2, fcfs"),  # the default order
    ],
)
def test_of_several_the_one_with_the_options_given_or_else_the_usual_ones_is_meant(of, name):
    assert set(references(study(of)).values()) == {name}


def test_an_option_at_its_default_may_be_asked_for_where_no_variant_spells_it_out():
    of = {"name": "splitfed_v1", "server_agg_every": "round"}
    assert references(study(of, {"method.name": ["splitfed_v1"]})) == {"splitfed_v1": "splitfed_v1"}


@pytest.mark.parametrize(
    ("of", "grid", "line"),
    [
        (
            "hydra",
            METHODS,
            "no variant in the same setting as 'fedavg' has this method (found 'hydra'; allowed: fedavg",
        ),
        (
            "fedavg",
            [{"method.name": "fedavg", "train.lr": 0.1}, {"method.name": "splitfed_v2", "train.lr": 0.2}],
            "no variant in the same setting as 'splitfed_v2, lr=0.2' has this method",
        ),
        ({"name": "splitfed_v1", "server_agg_every": "epoch"}, METHODS, "has this method with these options"),
        (
            "splitfed_v1",
            {"method.name": "splitfed_v1", "method.server_agg_every": ["step", "epoch"]},
            "means several variants, splitfed_v1, step; splitfed_v1, epoch; say which by options",
        ),
    ],
)
def test_no_reference_or_several_are_one_line_before_anything_is_trained(of, grid, line):
    with pytest.raises(ScenarioError) as raised:
        check(study(of, grid, data={"name": "digits"}, clients={"count": 2}))
    assert str(raised.value).startswith("report.target_accuracy.of: ")
    assert line in str(raised.value)


def trial(name, accuracy):
    rounds = pd.DataFrame(
        {"round": [1, 2], "ended_s": [10.0, 20.0], "accuracy": accuracy, "bytes_up": 1, "bytes_down": 1}
    )
    return {"name": name, "best_accuracy": None if None in accuracy else max(accuracy)}, rounds


THREE_SEEDS = {"grid": {"method.name": ["splitfed_v2", "fedavg"]}, "repeats": 3}  # trials 0, 1, 2 and 3, 4, 5


def test_all_seeds_aim_at_a_share_of_the_mean_of_the_reference_s_best():
    best = {3: [0.4, 0.3], 4: [0.8, 0.9], 5: [0.5, 0.5]}
    closed = {n: trial("splitfed_v2", [0.2, 0.3]) for n in range(3)} | {n: trial("fedavg", a) for n, a in best.items()}
    found = target_figures(study("fedavg", **THREE_SEEDS), closed)
    assert {way["target_accuracy"] for way in found.values()} == {0.3}
    assert {way["reference"] for way in found.values()} == {"fedavg"}
    assert [found[n]["time_to_accuracy_s"] for n in (0, 3)] == [20.0, 10.0]


def test_of_an_interrupted_study_those_seeds_count_that_have_run():
    closed = {0: trial("splitfed_v2", [0.2, 0.3]), 4: trial("fedavg", [0.2, 0.4])}
    assert target_figures(study("fedavg", **THREE_SEEDS), closed)[0]["target_accuracy"] == pytest.approx(0.2)


@pytest.mark.parametrize("closed", [{}, {3: trial("fedavg", [None, None])}])
def test_there_is_no_target_before_the_reference_has_run_nor_without_training(closed):
    way = target_figures(study("fedavg", **THREE_SEEDS), {0: trial("splitfed_v2", [0.2, 0.3]), **closed})[0]
    assert way.pop("reference") == "fedavg"
    assert set(way.values()) == {None}


def test_a_target_that_is_a_number_needs_nobody():
    alone = parse({"report": {"target_accuracy": 0.25}})
    assert references(alone) == {}
    assert target_figures(alone, {0: trial("splitfed_v2", [0.2, 0.3])})[0] == {
        "reference": None,
        "target_accuracy": 0.25,
        "rounds_to_accuracy": 2,
        "time_to_accuracy_s": 20.0,
        "bytes_to_accuracy": 4,
    }
