"""Schedules of the learning rate: what torch's schedulers give after so many steps, by round."""

import pytest
import torch
from torch.optim import lr_scheduler

from sfl_sim.training.schedules import SCHEDULES, Schedule, own_rates, torch_rates

OPTIONS = {
    "step": {"step_size": 3}, "multi_step": {"milestones": [2, 4], "gamma": 0.3}, "constant": {"factor": 0.25},
    "linear": {"start_factor": 0.2}, "exponential": {"gamma": 0.9}, "polynomial": {"power": 2.0},
    "cosine": {"eta_min": 0.001}, "cosine_restarts": {"T_0": 3},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_rates_are_those_of_torch(name):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    lengths = {"cosine": {"T_max": 8}, "constant": {"total_iters": 8}, "linear": {"total_iters": 8}}
    lengths["polynomial"] = {"total_iters": 8}
    theirs = SCHEDULES[name](optimiser, **OPTIONS[name], **lengths.get(name, {}))
    ours = Schedule(torch_rates(name, OPTIONS[name]), rounds=8)
    for number in range(1, 9):
        assert ours(0.1, number) == theirs.get_last_lr()[0]
        optimiser.step()
        theirs.step()
    assert ours(0.1, 100) == ours(0.1, 8)


def test_a_cosine_falls_from_the_full_rate_to_its_least():
    cosine = Schedule(torch_rates("cosine", {}), rounds=10)
    assert cosine(0.3, 1) == 0.3
    assert cosine(0.3, 6) == pytest.approx(0.15)
    assert 0 < cosine(0.3, 10) < 0.01


def test_a_constant_rate_is_the_rate_itself_where_torch_s_is_a_third_of_it():
    assert Schedule(torch_rates("constant", {}), rounds=3, warmup_rounds=1)(0.3, 3) == 0.3
    assert Schedule(torch_rates("constant", {"factor": 0.5}), rounds=3)(0.3, 3) == 0.15


def test_a_warm_up_grows_in_equal_steps_and_the_schedule_begins_after_it():
    warmed = Schedule(torch_rates("exponential", {"gamma": 0.5}), rounds=6, warmup_rounds=3)
    assert [warmed(0.8, number) for number in range(1, 7)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.4, 0.2])


def test_a_function_of_one_s_own_gives_the_factor_and_is_asked_once_for_each_rate_and_round():
    asked = []

    def factor(number):
        asked.append(number)
        return 1 / number

    rates = Schedule(own_rates(factor), rounds=4)
    assert [rates(0.4, number) for number in (4, 2, 4)] == pytest.approx([0.1, 0.2, 0.1])
    assert asked == [1, 2, 3, 4]


def test_many_clients_with_a_rate_each_make_no_scheduler_anew(monkeypatch):
    made = []
    monkeypatch.setitem(
        SCHEDULES, "cosine", lambda *given, **more: made.append(1) or lr_scheduler.CosineAnnealingLR(*given, **more)
    )
    rates = Schedule(torch_rates("cosine", {"T_max": 3}), rounds=3)
    for number in (1, 2, 3):
        for client in range(300):
            rates(0.1 + client, number)
    assert len(made) == 300


def test_all_schedulers_of_torch_that_need_no_metric_or_momentum_are_there():
    have = {kind.__name__ for kind in SCHEDULES.values()}
    others = {"LRScheduler", "LambdaLR", "MultiplicativeLR", "ChainedScheduler", "SequentialLR", "ReduceLROnPlateau"}
    others |= {"OneCycleLR", "CyclicLR"}  # which move momentum, too
    found = {name for name in lr_scheduler.__all__ if name.endswith("LR") or "Restarts" in name}
    assert found - others == have
