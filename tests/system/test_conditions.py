"""Chance has mean 1 and is every client's own; heat follows its differential equation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import lambertw

from sfl_sim.scenario.sections import Compute
from sfl_sim.system.conditions import Conditions, Throttling, make_conditions

MODEST = settings(max_examples=60)
PHONE = Throttling(floor=0.5, warm_up_s=300.0, cool_down_s=600.0)

throttlings = st.builds(Throttling, st.floats(0.01, 1), st.floats(1, 1e4), st.floats(1, 1e4))
heats = st.floats(0, 1)


def speed(throttling, heat):
    return 1 - (1 - throttling.floor) * heat


def test_without_jitter_and_throttling_there_are_no_conditions():
    assert make_conditions(Compute()) is None
    assert make_conditions(Compute(jitter=0.2)) == Conditions(0.2)
    section = {"floor": 0.5, "warm_up_s": 300.0, "cool_down_s": 600.0}
    assert make_conditions(Compute(throttling=section)) == Conditions(0.0, PHONE)


@pytest.mark.parametrize("jitter", [0.1, 0.5])
def test_jitter_has_mean_one_and_the_variation_that_is_asked_for(jitter):
    devices = Conditions(jitter).begin(1, seed=0)
    factors = np.array([devices.seconds(0, 0.0, 3.0) / 3.0 for _ in range(20_000)])
    assert factors.mean() == pytest.approx(1, abs=4 * jitter / len(factors) ** 0.5)
    assert factors.std() == pytest.approx(jitter, rel=0.05)
    assert factors.min() > 0


def test_jitter_depends_on_seed_and_client():
    alone, among, other = (Conditions(0.3).begin(3, seed) for seed in (1, 1, 2))
    expected = [alone.seconds(1, 0.0, 1.0) for _ in range(5)]
    found = []
    for _ in range(5):
        among.seconds(0, 0.0, 1.0)
        found.append(among.seconds(1, 0.0, 1.0))
        among.seconds(2, 0.0, 1.0)
    assert found == expected
    assert len({expected[0], other.seconds(1, 0.0, 1.0), alone.seconds(0, 0.0, 1.0)}) == 3


@given(throttling=throttlings, heat=heats, cold_s=st.floats(0, 1e5, allow_subnormal=False))
@MODEST
def test_the_duration_of_an_operation_is_that_of_the_closed_form(throttling, heat, cold_s):
    """Solution of y = c + k exp(-y), in units of the time constant, by Lambert's function."""
    busy_s = throttling.seconds(heat, cold_s)
    k = (1 - throttling.floor) * (1 - heat) / throttling.floor
    c = cold_s / throttling.floor / throttling.warm_up_s - k
    closed_form_s = throttling.warm_up_s * (c + lambertw(k * np.exp(-c)).real)
    assert busy_s == pytest.approx(closed_form_s, rel=1e-9, abs=1e-9)
    assert cold_s <= busy_s * (1 + 1e-12)
    assert busy_s * throttling.floor <= cold_s * (1 + 1e-12)


def test_the_duration_of_an_operation_is_that_of_a_numerical_integration():
    heat, done_s, now_s, step_s = 0.2, 0.0, 0.0, 0.01
    while done_s < 400.0:
        done_s += step_s * speed(PHONE, heat)
        heat += step_s * (1 - heat) / PHONE.warm_up_s
        now_s += step_s
    assert PHONE.seconds(0.2, 400.0) == pytest.approx(now_s, abs=0.05)
    assert PHONE.worked(0.2, now_s) == pytest.approx(heat, abs=1e-4)


@given(throttling=throttlings, heat=heats, parts_s=st.lists(st.floats(0, 500), min_size=1, max_size=8))
@MODEST
def test_it_makes_no_difference_into_how_many_operations_work_is_split(throttling, heat, parts_s):
    now_s, warmer = 0.0, heat
    for part_s in parts_s:
        busy_s = throttling.seconds(warmer, part_s)
        warmer = throttling.worked(warmer, busy_s)
        now_s += busy_s
    assert now_s == pytest.approx(throttling.seconds(heat, sum(parts_s)), rel=1e-9, abs=1e-9)


def test_long_steady_work_ends_at_the_floor_and_rest_brings_the_speed_back():
    devices = Conditions(throttling=PHONE).begin(2, seed=0)
    now_s = 0.0
    took_s = [devices.seconds(0, 0.0, 1.0)]
    for _ in range(5000):
        now_s += took_s[-1]
        took_s.append(devices.seconds(0, now_s, 1.0))
    assert took_s[0] == pytest.approx(1, abs=0.01)
    assert np.all(np.diff(took_s) >= -1e-9)
    assert took_s[-1] == pytest.approx(1 / PHONE.floor)
    now_s += took_s[-1]
    half_rested = devices.seconds(0, now_s + PHONE.cool_down_s * np.log(2), 1e-9) / 1e-9
    assert half_rested == pytest.approx(1 / speed(PHONE, 0.5), rel=1e-6)
    assert devices.seconds(0, now_s + 1e6, 1.0) == took_s[0] == devices.seconds(1, 0.0, 1.0)


def test_a_device_that_does_not_get_slower_takes_its_time_to_the_bit():
    steady = Conditions(throttling=Throttling(1.0, 300.0, 300.0)).begin(1, seed=0)
    assert [steady.seconds(0, now_s, 0.1) for now_s in (0.0, 0.1, 5.0)] == [0.1] * 3


def test_nothing_takes_no_time():
    devices = Conditions(0.3, PHONE).begin(1, seed=0)
    assert devices.seconds(0, 5.0, 0.0) == 0.0
