"""Fleets whose clients come and go as the figures behind the profiles say, or as a user's own file does."""

from math import inf

import numpy as np
import pytest
from refusals import refused

from sfl_sim.errors import ScenarioError
from sfl_sim.rng import stream
from sfl_sim.scenario.optional_sections import Availability
from sfl_sim.system.availability import DAY_S, HOUR_S, draw_presence
from sfl_sim.system.profiles import find, read_table

FLASH_HOURLY = [  # of all clients' time, hour by hour of the day, counted by others from the traces before any clipping
    0.1055, 0.1171, 0.1288, 0.1347, 0.1367, 0.1340, 0.1221, 0.1110, 0.1005, 0.0891, 0.0774, 0.0696,
    0.0687, 0.0643, 0.0669, 0.0698, 0.0762, 0.0802, 0.0889, 0.0767, 0.0688, 0.0732, 0.0870, 0.0984,
]  # fmt: skip


def draw(n, profile, begins_at_h=0.0):
    drawn = draw_presence(n, stream(0, "presence"), Availability(profile=str(profile), begins_at_h=begins_at_h))
    assert drawn is not None
    return drawn


def ten_days(client):
    return client.intervals(0, 10 * DAY_S)


def test_without_a_profile_nothing_is_drawn():
    assert draw_presence(3, stream(0, "presence"), None) is None


def test_the_phones_of_flash_are_present_at_the_published_hours():
    fleet = draw(704, "flash")
    there_s = np.zeros(24)
    for client in fleet:
        for hour in range(int(client.period_s // HOUR_S)):
            there_s[hour % 24] += sum(e - b for b, e in client.intervals(hour * HOUR_S, (hour + 1) * HOUR_S))
    clients_s = sum(client.period_s for client in fleet) / 24
    assert (there_s / clients_s).tolist() == pytest.approx(FLASH_HOURLY, abs=0.002)  # 6 clients never came
    assert all(client.period_s % DAY_S == 0 for client in fleet)


def test_a_run_may_begin_at_any_hour_of_the_day():
    begin_s = 20.5 * HOUR_S
    for midnight, evening in zip(draw(50, "flash"), draw(50, "flash", begins_at_h=20.5), strict=True):
        assert evening.intervals(0, DAY_S) == [
            (begin - begin_s, end - begin_s) for begin, end in midnight.intervals(begin_s, begin_s + DAY_S)
        ]


def test_traces_are_drawn_without_replacement_and_then_again_a_day_ahead():
    fleet = draw(2 * 704, "flash")
    first, again = fleet[:704], fleet[704:]
    traces = {tuple(ten_days(client)) for client in first}
    assert len(traces) == 704
    assert {tuple(client.intervals(DAY_S, DAY_S + client.period_s)) for client in first} == {
        tuple((begin + DAY_S, end + DAY_S) for begin, end in client.intervals(0, client.period_s)) for client in again
    }


@pytest.mark.parametrize("profile", ["flash", "fedscale"])
def test_a_client_does_not_depend_on_the_number_of_clients(profile):
    few, many = draw(5, profile), draw(800, profile)
    assert list(map(ten_days, few)) == list(map(ten_days, many[:5]))


def test_fedscale_clients_have_the_shares_of_the_figure_and_change_seldom():
    shares = read_table(find("availability", "fedscale", ""), ["hour", "share"], "").numbers("share")
    fleet = draw(4000, "fedscale")
    there = np.array([[client.is_present(hour * HOUR_S) for client in fleet] for hour in range(shares.size + 1)])
    assert there.mean(axis=1) == pytest.approx(np.r_[shares, shares[0]], abs=5 * 0.5 / 4000**0.5)
    between = np.mean([client.is_present(3.5 * HOUR_S) for client in fleet])
    assert between == pytest.approx((shares[3] + shares[4]) / 2, abs=5 * 0.5 / 4000**0.5)
    changes = (there[1:-1] != there[:-2]).mean(axis=1)
    assert changes == pytest.approx(np.abs(np.diff(shares)), abs=0.03)


def test_shares_of_0_and_1(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("hour,share\n0,0\n1,1\n2,1\n3,0\n")
    for client in draw(20, own):
        ((comes_s, goes_s),) = client.intervals(0, 4 * HOUR_S)
        assert 0 < comes_s <= HOUR_S < 2 * HOUR_S < goes_s <= 3 * HOUR_S
    own.write_text("hour,share\n0,1\n")
    assert draw(1, own)[0].until_s(0) == inf


def test_a_users_own_intervals_repeat_after_the_last_end_if_no_period_is_given(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("client,start_s,end_s\nb,5,9.5\na,0,2\na,2,4\nb,1,3\n")
    assert sorted(client.intervals(0, 11) for client in draw(2, own)) == [
        [(0, 4), (9.5, 11)],
        [(1, 3), (5, 9.5), (10.5, 11)],
    ]


INTERVALS = "client,start_s,end_s,period_s\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (INTERVALS, "no row follows"),
        ("client,start_s\na,1\n", "column 'end_s' is missing"),
        (INTERVALS + "a,-1,2,9\n", r"csv:2: .*'start_s' .*found '-1'; allowed: a number, 0 or above"),
        (INTERVALS + "a,0,nan,9\n", r"csv:2: .*'end_s' .*found 'nan'; allowed: a number"),
        (INTERVALS + "a,0,1,9\na,3,3,9\n", r"csv:3: .*'end_s' .*found '3'; allowed: at least 0.001 s after start_s"),
        (INTERVALS + "a,0,10,9\n", r"csv:2: .*'period_s' .*found '9'; allowed: at least end_s"),
        (INTERVALS + "a,0,1,1e12\n", r"csv:2: .*'period_s' .*found '1e12'; allowed: at most 1000000000 s"),
        ("client,start_s,end_s\na,0,1e12\n", r"csv:2: .*'end_s' .*found '1e12'; allowed: at most"),
        (
            INTERVALS + "a,4,8,9\nb,5,6,9\na,1,5,9\n",
            r"csv:2: .*'start_s' .*found '4'; allowed: no start before the end",
        ),
        (INTERVALS + "a,0,1,9\na,2,3,8\n", r"csv:3: .*'period_s' .*found '8'; allowed: the same in all rows"),
        ("hour,share\n0,0.5\n2,0.5\n", r"csv:3: .*'hour' .*found '2'; allowed: 0, 1, 2"),
        ("hour,share\n0,1.5\n", r"csv:2: .*'share' .*found '1.5'; allowed: 0 to 1"),
        ("hour,share\n0,0\n1,0\n", r"csv:2: .*'share' .*allowed: a share above 0 in some row"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, text, problem):
    own = tmp_path / "own.csv"
    own.write_text(text)
    with pytest.raises(ScenarioError, match=problem):
        draw(2, own)
    with refused("clients.availability.profile", says="did you mean .flash"):
        draw(2, "flahs")
