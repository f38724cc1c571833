"""Scenarios that come with sfl-sim, and what is no scenario's name."""

from pathlib import Path

import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.files import read_json, scenario_file


def test_a_key_given_twice_in_json_is_refused(tmp_path):
    path = tmp_path / "net.json"
    path.write_text('{"edges": [{"capacity_bps": 1e5, "latency_s": 0, "capacity_bps": 1e9}]}')
    with pytest.raises(ScenarioError) as refused:
        read_json(path, 1000, "clients.network.shared.file")
    assert (refused.value.key, refused.value.found) == ("clients.network.shared.file", "capacity_bps")


@pytest.mark.parametrize("name", ["", "nowhere/.."])
def test_nothing_is_no_scenario(name):
    with pytest.raises(ScenarioError, match="no such file, nor a scenario that comes with sfl-sim"):
        scenario_file(name)


@pytest.mark.parametrize("name", ["cuts/resnet18.txt", "./cuts/resnet18", "./cuts/resnet18.yaml"])
def test_a_file_of_one_s_own_that_is_not_there_is_not_replaced_by_a_shipped_one(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError, match="no such file"):
        scenario_file(name)


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_a_folder_is_a_path_whose_reader_says_what_it_is(name):
    assert scenario_file(name) == Path(name)


@pytest.mark.parametrize("name", ["cuts/resnet18", "cuts/resnet18.yaml", "scenarios/cuts/resnet18.yaml"])
def test_a_shipped_scenario_is_found_with_its_ending_or_without(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert scenario_file(name).name == "resnet18.yaml"
