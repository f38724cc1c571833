"""One value for all clients, or one each."""

from __future__ import annotations

import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.system.per_client import per_client


def test_one_value_stands_for_all_clients_and_a_list_for_each() -> None:
    assert per_client(5, 3, "key").tolist() == [5, 5, 5]
    assert per_client([1, 2, 3], 3, "key").tolist() == [1, 2, 3]
    assert per_client(0, 1, "key", zero_allowed=True).tolist() == [0]


@pytest.mark.parametrize("entries", [[1.0], [1.0, 2.0, 3.0, 4.0]])
def test_a_list_of_another_length_is_refused(entries: list[float]) -> None:
    with pytest.raises(ScenarioError, match=rf"clients.x: .*found {len(entries)}; allowed: 3 entries"):
        per_client(entries, 3, "clients.x")


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), [1, 0], [1, -2]])
def test_only_finite_numbers_above_zero_are_rates(value: float | list[float]) -> None:
    with pytest.raises(ScenarioError, match=r"clients.x: .*allowed: a number above 0"):
        per_client(value, 2, "clients.x")


def test_zero_may_be_allowed_but_nothing_below() -> None:
    with pytest.raises(ScenarioError, match=r"found -1.0; allowed: a number, 0 or above"):
        per_client([0, -1], 2, "key", zero_allowed=True)
