"""Runs of drawn scenarios keep the laws: 500 at night. `pytest FILE::TEST[SEED]` repeats one."""

import random

import pytest
from drawn import COMMIT
from drawn_scenarios import draw_scenario
from small_study import TIMING, run

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import parse
from sfl_sim.studies.laws import Breach, held_against, trials_of

SEEDS = range(500)
TRIES = 200
"""Scenarios drawn from a seed until one is valid."""


@pytest.mark.night
@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_run_keeps_the_laws(seed, tmp_path):
    rng = random.Random(seed)
    for _ in range(TRIES):
        scenario = draw_scenario(rng)
        try:
            folder, failure = run(parse(scenario), tmp_path / "run", TIMING, lambda news: None)
        except ScenarioError:
            continue
        if "ScenarioError" not in str(failure):  # such as that a transfer never ends
            break
    about = f"seed {seed} at commit {COMMIT}: {scenario}"
    assert failure is None, about
    for law, findings in held_against(trials_of(folder), again=True):
        for _, finding in findings:
            assert not isinstance(finding, Breach), (law, finding, about)
