"""Scenarios that come with sfl-sim, and what is no scenario's name."""

from pathlib import Path

import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.files import scenario_file


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
