"""The wall's clock stands still between rounds, and can be told to go slower than the wall."""

import pytest
from simpy.core import EmptySchedule

from sfl_sim.features.live import clock
from sfl_sim.features.live.clock import Wall


class Nobody:
    """No machines, and no reports."""

    jobs = False

    def __init__(self, time):
        self.time = time

    def step(self, at_most_s):
        self.time.now_s += at_most_s
        return False


class Time:
    now_s = 100.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def time(monkeypatch):
    told = Time()
    monkeypatch.setattr(clock, "time", told)
    return told


def test_it_stands_still_until_it_goes(time):
    wall = Wall(Nobody(time), slowdown=1.0, started_s=5.0)
    time.now_s = 110.0  # an evaluation
    wall.go()
    assert wall.now == 5.0
    time.now_s = 112.0
    assert wall.at_s(112.0) == 7.0
    wall.stand()
    time.now_s = 120.0
    assert [wall.at_s(instant_s) for instant_s in (111.0, 112.0, 115.0, 120.0)] == [6.0, 7.0, 7.0, 7.0]
    wall.go()
    assert [wall.at_s(instant_s) for instant_s in (111.0, 115.0, 121.0)] == [6.0, 7.0, 8.0]


def test_slowed_down_a_second_takes_several(time):
    wall = Wall(Nobody(time), slowdown=4.0, started_s=5.0)
    wall.go()
    time.now_s = 108.0
    assert wall.at_s(108.0) == 7.0


def test_an_event_comes_when_its_time_has_come(time):
    wall, seen = Wall(Nobody(time), slowdown=2.0, started_s=0.0), []
    wall.go()
    wall.timeout(3.0).callbacks.append(lambda _: seen.append(wall.now))
    wall.step()
    assert seen == [3.0]
    assert time.now_s == 106.0
    with pytest.raises(EmptySchedule):
        wall.step()


def test_time_does_not_go_back(time):
    wall = Wall(Nobody(time), slowdown=1.0, started_s=0.0)
    wall.go()
    wall.reported(4.0)
    wall.reported(3.0)
    assert wall.now == 4.0
