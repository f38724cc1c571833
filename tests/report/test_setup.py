from __future__ import annotations

from sfl_sim.report.about import setup_in_words
from sfl_sim.report.load import settings_by_variant


def test_the_line_of_setup_says_what_was_simulated_and_what_varied() -> None:
    scenario = {
        "name": "run",
        "data": {"name": "digits", "partition": {"kind": "dominant_label", "p": 0.95}},
        "model": {"name": "cnn_small", "cut": 1},
        "clients": {"compute": 1e9, "network": "mobiperf"},
        "train": {"rounds": 15, "lr": 0.05},
        "grid": {"server.workers": [1, 2], "train.batch_size": [1, 2, 4, 8]},
    }

    line = setup_in_words(list(settings_by_variant(scenario).values()), [10, 10])

    assert line.startswith("Data: digits, dominant_label p=0.95")
    assert "model: cnn_small, cut 1; clients: 10, devices 1e+09 MAC/s, links mobiperf;" in line
    assert "server: workers 1/2" in line
    assert "training: 15 rounds, mini-batches of several values, learning rate 0.05" in line


def test_of_a_scenario_that_is_not_understood_nothing_is_said() -> None:
    assert setup_in_words(list(settings_by_variant({"forgotten": 1}).values())) == ""
