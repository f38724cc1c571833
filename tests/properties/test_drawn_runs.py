"""Runs of drawn scenarios keep the laws: 500 at night, 40 with a commit. `pytest FILE::TEST[SEED]` repeats one."""

import random
from dataclasses import replace

import pytest
from drawn import COMMIT, drawn
from drawn_scenarios import accepted, draw_scenario
from small_study import TIMING, run

from sfl_sim.studies.laws import Breach, held_against, trials_of

SEEDS = range(500)
TONIGHT = set(drawn(SEEDS, 40, "drawn runs"))


@pytest.mark.night
@pytest.mark.usefixtures("no_reports")
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.drawn] if seed in TONIGHT else []) for seed in SEEDS]
)
def test_a_drawn_run_keeps_the_laws(seed, tmp_path):
    rng = random.Random(seed)
    is_trained = rng.random() < 0.5
    scenario = draw_scenario(rng, is_trained)
    study = accepted(scenario)
    about = f"seed {seed} at commit {COMMIT}, trained: {is_trained}, {scenario}"
    folder, failure = run(study, tmp_path / "run", replace(TIMING, timing_only=not is_trained), lambda news: None)
    assert failure is None, about
    for law, findings in held_against(trials_of(folder), again=True):
        for _, finding in findings:
            assert not isinstance(finding, Breach), (law, finding, about)
