"""Data, clients and system are built once for all that runs of a variant."""

import numpy as np
import pytest
from small_study import TIMING, study

from sfl_sim.build import setup as module
from sfl_sim.build.setup import Setup, fleet_of, forget, setup_of
from sfl_sim.engine.experiment import Experiment
from sfl_sim.runs.trial import Settings
from sfl_sim.studies.train import run_study


@pytest.fixture
def built(monkeypatch):
    """The scenarios of which a setup is built, in order."""
    scenarios = []

    class Noted(Setup):
        def __init__(self, scenario, *, pixels):
            scenarios.append(scenario)
            super().__init__(scenario, pixels=pixels)

    monkeypatch.setattr(module, "Setup", Noted)
    forget()
    yield scenarios
    forget()


@pytest.mark.usefixtures("without_pages")
@pytest.mark.parametrize("settings", [TIMING, Settings(device="cpu", threads=1)])
def test_a_study_of_one_trial_builds_its_setup_once_to_check_it_to_run_it_and_to_time_a_round_again(
    settings, built, tmp_path
):
    folder = run_study(study(), tmp_path / "run", settings, lambda news: None).folder
    assert (folder / "speedups.parquet").exists()
    assert len(built) == 1


def test_a_setup_with_pixels_serves_who_needs_none_but_not_the_other_way(built):
    scenario = study().base
    plain = setup_of(scenario, pixels=False)
    full = setup_of(scenario, pixels=True)
    assert full is not plain
    assert setup_of(scenario, pixels=False) is full
    assert len(built) == 2


def test_another_scenario_has_another_setup_and_a_new_study_looks_at_its_files_again(built):
    scenario = study().base
    setup_of(scenario, pixels=False)
    setup_of(study(seed=1).base, pixels=False)
    setup_of(scenario, pixels=False)
    forget()
    setup_of(scenario, pixels=False)
    assert len(built) == 4


def test_experiments_of_one_setup_do_not_see_each_other():
    scenario = study(method={"name": "mergesfl"}).base
    first, second = Experiment(scenario, None), Experiment(scenario, None)
    assert first.setup is second.setup
    timelines = [[round.ops for round in run.rounds()] for run in (first, second)]
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(*timelines, strict=True))


@pytest.mark.usefixtures("built")
def test_a_small_fleet_is_drawn_once_for_all_cuts_and_anew_for_another_seed_or_rate():
    scenario = study().variants[0].scenario
    fleet = fleet_of(scenario, 4)
    assert fleet_of(scenario.model_copy(update={"model": scenario.model.model_copy(update={"cut": 2})}), 4) is fleet
    others = [{"seed": 9}, {"server": scenario.server.model_copy(update={"speedup": 7.0})}]
    assert all(fleet_of(scenario.model_copy(update=other), 4) is not fleet for other in others)
    assert fleet_of(scenario, 5) is not fleet
    forget()  # since then a profile may have changed
    assert fleet_of(scenario, 4) is not fleet
