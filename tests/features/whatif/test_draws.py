"""What-if with uncertainty: what is drawn from stated errors, for whom, and what it does to a round."""

import json

import numpy as np
import pandas as pd
import pytest

from sfl_sim.cli import main
from sfl_sim.engine.experiment import Experiment
from sfl_sim.features.whatif.draws import FASTER_SOMEWHERE, _Errors, draws_table
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.vary import read_axes
from sfl_sim.studies.points import Question, evaluate

SCENARIO = {
    "name": "small",
    "data": {"name": "digits", "train_samples": 96},
    "model": {"name": "cnn_small", "cut": 1},
    "clients": {"count": 4},
    "method": {"name": "splitfed_v1"},
    "train": {"rounds": 2, "batch_size": 8},
}
GIVEN = {"count": 4, "compute": 1e6, "network": {"uplink_bps": 1e6, "downlink_bps": 1e6}}
FACTORS = ["speed", "network_error", "training_factor", "server_error", "links"]


def drawn(*vary, draws=4, **changes):
    question = Question.of(parse({**SCENARIO, **changes}), read_axes(vary))
    return draws_table(list(evaluate(question.points)), question.axes, draws, 1, lambda done, total: None)


def test_all_points_are_timed_in_the_same_systems_each_of_which_is_another():
    table = drawn("model.cut=1,2", clients={"count": 4, "network": {"trace": "hsdpa_bus"}})
    assert len(table) == 2 * 4
    assert (table.groupby("draw")[[*FACTORS, "trace"]].nunique() == 1).all(axis=None)
    assert table["speed"].nunique() == table["links"].nunique() == 4
    assert table["speed"].between(*FASTER_SOMEWHERE).all()
    assert table["trace"].str.startswith("hsdpa_").all()
    again = drawn("model.cut=1,2", clients={"count": 4, "network": {"trace": "hsdpa_bus"}})
    assert again.equals(table)


def test_a_drawn_point_takes_what_a_run_in_this_system_takes():
    """Of given devices and links only the errors of prices are drawn, and they can be written as a scenario."""
    table = drawn("model.cut=2", clients=GIVEN)
    assert (table[["speed", "links"]] == 1).all(axis=None)
    base = parse(SCENARIO | {"clients": GIVEN}).variants[0].scenario
    for row in table.to_dict("records"):
        own = _Errors(scaled=False, traced=False).of_devices(base, row["draw"], False, 4)
        factors = own * row["network_error"] * row["training_factor"]
        compute = {"macs_per_s": 1e6, "training_factor": factors.tolist()}
        (variant,) = parse(
            SCENARIO
            | {
                "model": {"name": "cnn_small", "cut": 2},
                "clients": GIVEN | {"compute": compute},
                "server": {"speedup": 100 / row["server_error"]},
            }
        ).variants
        *_, last = Experiment(variant.scenario, device=None).rounds()
        assert row["round_s"] == pytest.approx(last.row["ended_s"] / 2, rel=1e-9)


def test_what_the_user_has_set_is_not_drawn():
    compute = {"scale": 3.0, "training_factor": 2.0}
    table = drawn("model.cut=1", clients={"count": 4, "compute": compute}, server={"macs_per_s": 1e10})
    assert (table[["speed", "training_factor"]] == 1).all(axis=None)
    assert table["trace"].isna().all()
    assert (table[["network_error", "server_error", "links"]].nunique() > 1).all()


def test_traces_that_are_compared_are_not_drawn():
    table = drawn("clients.network.trace=hsdpa_bus,hsdpa_metro", clients={"count": 4})
    assert table["clients.network.trace"].equals(table["trace"])
    assert (table.groupby("draw")["round_s"].nunique() == 2).all()


def test_networks_differ_in_their_errors_and_seeds_take_turns():
    table = drawn("model.name=cnn_small,resnet8", repeats=2, draws=6)
    by_network = table.groupby("model.name")["network_error"].apply(list)
    assert by_network["cnn_small"] != by_network["resnet8"]
    assert table.groupby("draw")["seed"].first().tolist() == [0, 1] * 3
    assert table.groupby("draw")["speed"].nunique().eq(1).all()


@pytest.mark.parametrize(
    ("vary", "contests"),
    [
        (["model.cut=1,2", "clients.network.scale=1,2"], 2),  # cuts compete at each bandwidth
        (["server.workers=1,2"], 1),  # a user decides both
        (["server.speedup=10,100", "clients.network.scale=1,2"], 2),
        (["clients.network.scale=1,2"], 2),  # worlds do not compete
        (["server.order=fcfs,cyclic", "model.cut=1,2"], 1),
    ],
)
def test_points_of_one_world_compete(vary, contests):
    table = drawn(*vary, draws=2, clients=GIVEN, method={"name": "splitfed_v2"})
    assert table["contest"].nunique() == contests


def test_the_errors_of_phones_are_as_wide_as_stated():
    """The middle half of 200 phones lies within their quartiles on one thread, over the median: 1.4, 2.1 over 1.9."""
    scenario = parse(SCENARIO).variants[0].scenario
    own = _Errors(scaled=False, traced=False).of_devices(scenario, 0, True, 2000)
    low, high = np.quantile(own, [0.25, 0.75])
    assert high / low == pytest.approx(2.1 / 1.4, rel=0.1)


@pytest.mark.parametrize("cost", ["phones", "tflite"])
def test_eighty_percent_of_draws_hold_eighty_percent_of_networks(cost):
    """A band that holds them of a dozen networks must be wider than their own quantiles are: k of n is (k - .5) / n."""
    errors = _Errors(scaled=False, traced=False)
    scenario = parse(SCENARIO | {"clients": {"count": 4, "compute": {"profile": "ai_benchmark", "cost": cost}}})
    drawn = [errors.draw(scenario.variants[0].scenario, number, True).network_error for number in range(1000)]
    measured = np.exp(errors._networks[cost, "clients"])
    low, high = np.quantile(drawn, [0.1, 0.9])
    assert low <= np.quantile(measured, 0.1)
    assert high >= np.quantile(measured, 0.9)
    assert high / low > np.quantile(measured, 0.9) / np.quantile(measured, 0.1)


def test_the_command_line_draws_and_says_what_survives(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(json.dumps(SCENARIO))
    main(["whatif", "small.yaml", "--vary", "model.cut=1,2", "--uncertainty", "3", "--out", "asked"])
    assert "3 drawn systems" in capsys.readouterr().out
    assert len(pd.read_parquet("asked/draws.parquet")) == 2 * 3
