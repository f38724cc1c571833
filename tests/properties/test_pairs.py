"""Measurements that drift cannot fool."""

from itertools import count

import pytest

from benchmarks import pairs as module
from benchmarks.pairs import alternate, quartiles


def test_the_sides_take_turns_in_going_first_after_an_untimed_call_each():
    called = []
    alternate(lambda: called.append("a"), lambda: called.append("b"), pairs=3)
    assert "".join(called) == "ab" + "ab" + "ba" + "ab"


def test_a_machine_that_slows_down_steadily_favours_nobody(monkeypatch):
    clock = count()
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock) ** 2)  # each call takes longer than the last
    a_s, b_s = alternate(lambda: None, lambda: None, pairs=40)
    assert sum(a_s) == sum(b_s)
    assert quartiles(a_s, b_s)[1] == pytest.approx(1, abs=0.1)
