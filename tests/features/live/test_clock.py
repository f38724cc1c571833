"""The wall's clock stands still between rounds, and can be told to go slower than the wall."""

import pytest
from simpy.core import EmptySchedule

from sfl_sim.features.live import clock
from sfl_sim.features.live.clock import Empty, Wall
from sfl_sim.methods import METHODS
from sfl_sim.ops import Value
from sfl_sim.testing import USUAL, cases_of


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


class Reports(Nobody):
    """Machines of which one reports an operation, so long after it was asked."""

    jobs = True

    def __init__(self, time, after_s):
        super().__init__(time)
        self.after_s = after_s

    def step(self, at_most_s):
        self.jobs = self.after_s > at_most_s
        super().step(min(at_most_s, self.after_s) if self.after_s else at_most_s)
        reports = 0 < self.after_s <= at_most_s
        self.after_s = max(0.0, self.after_s - at_most_s)
        return reports


def test_a_report_comes_before_an_event_that_is_not_due(time):
    wall, seen = Wall(Reports(time, 2.5), slowdown=1.0, started_s=0.0), []
    wall.go()
    wall.timeout(4.0).callbacks.append(lambda _: seen.append(wall.now))
    wall.step()
    assert not seen
    assert time.now_s == 102.5
    wall.step()
    assert seen == [4.0]


def test_what_has_ended_late_comes_after_what_was_due(time):
    wall, seen = Wall(Nobody(time), slowdown=1.0, started_s=0.0), []
    wall.go()
    wall.timeout(1.0).callbacks.append(lambda _: seen.append(wall.now))
    wall.reported(3.0)
    time.now_s = 101.0
    wall.step()
    assert seen == [1.0]
    assert wall.now == 3.0


def test_a_wall_that_waits_takes_reports_of_a_machine_that_is_slow(time):
    wall = Wall(Reports(time, 7.0), slowdown=1.0, started_s=0.0)
    wall.go()
    wall.step()  # there is nothing else to wait for
    assert time.now_s == 107.0


def test_standing_still_twice_is_standing_still(time):
    wall = Wall(Nobody(time), slowdown=1.0, started_s=0.0)
    wall.go()
    time.now_s = 101.0
    wall.stand()
    time.now_s = 105.0
    wall.stand()
    assert wall.at_s(105.0) == 1.0
    wall.go()
    wall.go()
    time.now_s = 106.0
    assert wall.at_s(106.0) == 2.0


def test_the_driver_s_copies_are_empty_and_values_are_themselves():
    method = cases_of(METHODS["splitfed_v2"])[0].method(USUAL.work())
    executor, value = Empty(), Value("number", content=5.0)
    assert executor.snapshot(value) is value
    copy = executor.snapshot(method.part1)
    assert copy is not method.part1
    assert copy.content is None
    assert method.part1.content is not None
    assert executor.read(value) is None
