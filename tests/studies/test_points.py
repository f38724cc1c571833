"""Points that are walked side by side, and the privacy study: attacks on what crosses every cut."""

import os
import signal
import time
from multiprocessing.context import SpawnProcess

import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.runs.backends import KILLED
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.optional_sections import Leakage
from sfl_sim.scenario.vary import axis
from sfl_sim.studies.points import Question, attacked, evaluate


def cuts(study):
    return {variant.name: variant.scenario.model.cut for variant in study.variants}


def test_every_cut_is_a_variant_with_the_usual_attacks():
    study = attacked(parse({"name": "mine"}), [axis("model.cut", "all")])
    assert cuts(study) == {"cut=1": 1, "cut=2": 2, "cut=3": 3}
    assert all(variant.scenario.report.leakage == Leakage() for variant in study.variants)
    assert study.name == "mine-privacy"


def test_what_varies_multiplies_each_part_of_the_grid():
    grid = [{}, {"privacy.noise": {"sigma": 0.5}}]
    study = attacked(parse({"grid": grid, "repeats": 2}), [axis("model.cut", [1, 2])])
    assert list(cuts(study)) == ["cut=1", "cut=2", "sigma=0.5, cut=1", "sigma=0.5, cut=2"]
    assert len(study.variants) == 8


def test_attacks_that_the_scenario_names_stay():
    study = attacked(parse({"report": {"leakage": {"samples": 20}}}), [])
    (variant,) = study.variants
    assert variant.scenario.report.leakage == Leakage(samples=20)


def test_what_the_grid_sets_cannot_vary():
    with pytest.raises(ScenarioError, match="the scenario's grid sets it"):
        attacked(parse({"grid": {"model.cut": [1, 2]}}), [axis("model.cut", [1])])


def test_without_a_cut_there_is_nothing_to_attack():
    with pytest.raises(ScenarioError, match=r"method.name: .*found 'fedavg'"):
        attacked(parse({"method": "fedavg"}), [])
    assert len(attacked(parse({"grid": {"method.name": ["fedavg", "splitnn"]}}), []).variants) == 2
    assert len(attacked(parse({"method": "fedavg"}), [axis("method.name", ["fedavg", "splitnn"])]).variants) == 2


def test_asynchronous_clients_of_fedavg_have_no_cut_either():
    with pytest.raises(ScenarioError, match=r"method.name: .*found 'fedbuff'"):
        attacked(parse({"method": "fedbuff"}), [])
    assert attacked(parse({"method": {"name": "fedbuff", "host": "splitfed_v1"}}), []).variants
    with pytest.raises(ScenarioError, match=r"method\.host"):
        attacked(parse({"method": {"name": "fedbuff", "host": "splitnn"}}), [])


POINTS = Question.of(parse({"data": {"name": "digits"}}), [axis("model.cut", [1, 2])]).points


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_processes_that_walk_points_without_a_word_of_theirs(number, monkeypatch, capfd):
    begins, begun, before = SpawnProcess.start, [], signal.getsignal(number)

    def start(new):
        begins(new)
        begun.append(new)
        if len(begun) == 2:
            for pid in [*(process.pid for process in begun), os.getpid()]:  # as a terminal does
                os.kill(pid, number)

    monkeypatch.setattr(SpawnProcess, "start", start)
    signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(evaluate(POINTS, jobs=2))
    finally:
        signal.signal(number, before)
    assert not any(process.is_alive() for process in begun)
    assert capfd.readouterr().err == ""


def test_a_killed_process_that_walks_points_is_told_in_a_sentence(monkeypatch):
    begins = SpawnProcess.start

    def start(new):
        begins(new)
        new.kill()

    monkeypatch.setattr(SpawnProcess, "start", start)
    with pytest.raises(RuntimeError, match=KILLED):
        list(evaluate(POINTS, jobs=2))


def test_a_process_killed_while_others_are_started_is_told_in_the_same_sentence(monkeypatch):
    begins, begun = SpawnProcess.start, []

    def start(new):
        calls = new._args[0]
        while begun and not calls._reader.closed:  # by the pool, which has seen that its first process is gone
            time.sleep(0.01)
        begins(new)
        begun.append(new)
        new.kill()

    monkeypatch.setattr(SpawnProcess, "start", start)
    with pytest.raises(RuntimeError, match=KILLED):
        list(evaluate(POINTS, jobs=2))
