"""Watching a round: who looks when, and what the model would be if the round ended there."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_world import fleet, simulate, task, usual_options
from torch.nn.functional import one_hot

from sfl_sim.methods import METHODS
from sfl_sim.sim.clock import Simulator
from sfl_sim.sim.orders import ORDERS
from sfl_sim.training.evaluate import evaluate
from sfl_sim.training.watch import Watched

SAMPLES = (12, 8, 4)  # three jobs, two, one
COUNTS = np.diag(SAMPLES)


def labelled_task(**settings):
    return task(SAMPLES, label_counts=COUNTS, label_names=("a", "b", "c"), **settings)


def flat(model):
    """The numbers of all parts."""
    return torch.cat([part.weights.flat for part in model])


def watched(name, every, look, **settings):
    """A round with somebody who looks in."""
    executor = Watched(look)
    executor.watch(every)
    return simulate(name, labelled_task(), rounds=1, order="cyclic", executor=executor, workers=1, **settings)[0]


def test_an_oracle_is_confused_as_it_was_told_to_be():
    truth, answer = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 1, 1, 1, 1, 0])
    oracle = SimpleNamespace(
        weights=lambda x, training: 5.0 * one_hot(x.long(), 3), part=SimpleNamespace(dtype=torch.float32)
    )
    found = evaluate([oracle], answer, truth, 3, lambda x: x)
    assert found.confusion.tolist() == [[1, 2, 0], [0, 2, 0], [1, 0, 0]]
    assert found.correct.tolist() == [1, 2, 0]
    assert found.samples.tolist() == [3, 2, 1]
    assert found.hits.tolist() == [True, False, False, True, True, False]


def test_it_looks_at_the_start_and_after_every_second_job_of_the_server():
    looks = []
    watched("splitfed_v2", 2, lambda number, job: looks.append((number, job and job.args[0].maker)))
    assert looks == [(0, None), (2, 1), (4, 0), (6, 0)]  # served are 0 1 2, 0 1, 0


def test_nobody_looks_unless_asked():
    watched("splitfed_v2", 0, lambda number, job: pytest.fail("looked"))


def looked_into(name, look):
    """A method whose round somebody looked into after every job: (its jobs so far, the method, the job)."""
    executor = Watched(lambda number, job: look(number, method, job))
    kind = METHODS[name]
    method = kind(labelled_task(), kind.Options(**usual_options(name)))
    simulator = Simulator(fleet(len(SAMPLES)), executor, ORDERS["cyclic"], workers=1)
    executor.watch(1)
    simulator.run(method.round(1, range(len(SAMPLES))), 1)
    return method


@pytest.mark.parametrize("name", ["splitfed_v2", "hydra"])
def test_early_in_a_round_whose_part_1_is_asked_makes_no_difference_yet(name):
    """No gradient has come back before the first job's service ends, so all have the part-1 of the round's start."""
    seen = {}

    def look(number, method, job):
        if number == 0:
            seen["start"] = flat(method.model())
        if number == 1:
            seen["first client's"] = flat(method.current(0))
            seen["everybody's"] = flat(method.current())

    n = len(looked_into(name, look).part1.weights.flat)
    torch.testing.assert_close(seen["first client's"], seen["everybody's"])
    torch.testing.assert_close(seen["first client's"][:n], seen["start"][:n])
    assert not torch.equal(seen["first client's"], seen["start"])  # but the server has learned


@pytest.mark.parametrize("name", ["splitfed_v2", "hydra"])
def test_late_in_a_round_the_part_1_of_the_client_that_is_asked_is_its_own(name):
    def look(number, method, job):
        if number == sum(SAMPLES) // 4:
            own, (average, *_) = method.current(job.args[0].maker)[0], method.current()
            assert torch.equal(own.weights.flat, method.replicas[job.args[0].maker].weights.flat)
            assert not torch.allclose(own.weights.flat, average.weights.flat)
            looks.append(number)

    looks = []
    looked_into(name, look)
    assert looks
