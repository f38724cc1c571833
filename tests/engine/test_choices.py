"""A choice gives as many clients as take part: at random, of one tier, or those that learn much in little time."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sfl_sim
from sfl_sim.engine.choices import CHOICES, Candidates, ClientChoice, find_choice, oort, scaled, tiers
from sfl_sim.errors import ScenarioError
from sfl_sim.knowledge import Known, known_by
from sfl_sim.rng import stream
from sfl_sim.scenario.sections import ChoiceSection as Section

NAN = math.nan


def candidates(n, took_s=(), round=1, gains=(), seed=0, clients=None, slow=(), is_new=None, last_round=None):
    took_s = np.array(took_s, dtype=float)
    is_known = np.isfinite(took_s)
    last_round = np.where(is_known, max(1, round - 1), 0) if last_round is None else np.array(last_round)
    is_new = ~is_known if is_new is None else np.array(is_new)
    clients = list(range(len(took_s))) if clients is None else clients
    expected_s = lambda client: 10.0 if client in slow else 1.0 + client  # noqa: E731
    return Candidates(clients, n, expected_s, round, stream(seed, "choice"), took_s, last_round, gains, is_new)


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(1e-3, 1e6)) | st.none(), min_size=2, max_size=12),
    st.data(),
    st.sampled_from(sorted(CHOICES)),
)
def test_every_choice_gives_as_many_clients_as_take_part_whatever_has_happened(past, data, name):
    n = data.draw(st.integers(1, len(past) - 1))
    took_s = [one[1] if one else NAN for one in past]
    utility = np.array([one[0] if one else NAN for one in past])
    gains = data.draw(st.lists(st.floats(0, 1e6), max_size=90))
    who = candidates(n, took_s, round=data.draw(st.integers(2, 999)), gains=gains)
    chosen = find_choice(Section(kind=name))(who, utility)
    assert len(set(chosen)) == n
    assert chosen == sorted(chosen)


def test_a_tier_holds_clients_that_are_about_equally_fast():
    drawn = {tuple(sorted(tiers(candidates(2, [1.0] * 6, seed=seed), tiers=3))) for seed in range(60)}
    assert drawn == {(0, 1), (2, 3), (4, 5)}


def test_there_are_no_more_tiers_than_have_clients_enough():
    drawn = {tuple(sorted(tiers(candidates(3, [1.0] * 6, seed=seed)))) for seed in range(60)}
    assert drawn == {(0, 1, 2), (3, 4, 5)}


def test_tiers_by_observed_seconds_ask_the_new_clients_first_and_rank_by_what_was_seen():
    took_s = [9.0, 1.0, 8.0, 2.0, NAN, NAN]
    few_new = {
        tuple(sorted(tiers(candidates(2, took_s, seed=s, is_new=[0, 0, 0, 0, 0, 1]), by="observed"))) for s in range(60)
    }
    assert few_new == {(c, 5) for c in range(5)}, "the new client, and any other"
    many_new = {tuple(sorted(tiers(candidates(1, took_s, seed=s), by="observed"))) for s in range(60)}
    assert many_new == {(4,), (5,)}
    lost = [False] * 6  # clients 4 and 5 were asked, and lost: they are the slowest
    seen = {tuple(sorted(tiers(candidates(2, took_s, seed=s, is_new=lost), tiers=3, by="observed"))) for s in range(60)}
    assert seen == {(1, 3), (0, 2), (4, 5)}


def test_of_two_alike_oort_prefers_the_client_that_has_waited():
    utility, options = np.array([100.0, 100.0]), {"exploration": 0.0, "exploration_min": 0.0, "cut_off": 0.01}
    who = [candidates(1, [1.0, 1.0], round=50, seed=seed, last_round=[49, 2]) for seed in range(500)]
    waited = sum(oort(one, utility, **options) == [1] for one in who) / 500
    scaled = (100 - 99.9) / (100 - 99.9)  # the least is taken for 0.999 of itself
    worth = [scaled + math.sqrt(0.1 * math.log(50) / last) for last in (49, 2)]
    assert worth == pytest.approx([1.0894, 1.4423], abs=1e-4)
    assert waited == pytest.approx(worth[1] / sum(worth), abs=0.05)
    only_the_best = options | {"cut_off": 0.95}
    assert {tuple(oort(one, utility, **only_the_best)) for one in who} == {(1,)}


def test_oort_clips_utilities_at_their_quantile_and_scales_them_to_one():
    utility = np.array([1.0, *[2.0] * 18, 5.0, 1e9])  # 21: the 95 % are the 20th, 5
    low = 0.999
    assert scaled(utility) == pytest.approx((np.minimum(utility, 5.0) - low) / (1e9 - low))
    assert scaled(np.array([3.0, 3.0])) == pytest.approx([1.0, 1.0])
    assert scaled(np.array([0.0, 0.0])) == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_depends_on_what_its_trait_says_and_on_nothing_else(name):
    n, knows = 12, known_by(CHOICES[name])
    usual = {"took_s": np.arange(1.0, 1 + n), "utility": np.arange(n, 0.0, -1.0), "speed": 1.0}
    changed = {
        Known.RATES: {"speed": -1.0},
        Known.ROUNDS: {"took_s": usual["took_s"][::-1]},
        Known.LOSSES: {"utility": usual["utility"][::-1]},
    }

    def chosen(took_s, utility, speed):
        utility = np.where(np.arange(n) % 3, utility, NAN)  # every third is new to oort
        drawn = []
        for by in [{}, {"by": "observed"}] if name == "tiers" else [{}]:
            choose = find_choice(Section(kind=name, **by))
            for seed in range(20):
                who = candidates(4, took_s, round=40, seed=seed)
                drawn.append(choose(replace(who, expected_s=lambda c: 100.0 + speed * c), utility))
        return drawn

    depends = {known for known, what in changed.items() if chosen(**usual | what) != chosen(**usual)}
    assert depends == set(knows)


def test_oort_takes_those_of_much_utility_and_of_little_time():
    utility, took_s = np.array([9.0, 8.0, 7.0, 1.0, 1.0]), [1.0, 1.0, 9.0, 1.0, 1.0]
    chosen = oort(candidates(2, took_s, round=2), utility, exploration=0.0, exploration_min=0.0, cut_off=1.0)
    assert set(chosen) == {0, 1}
    slow_as_well = oort(
        candidates(3, took_s, round=2), utility, exploration=0.0, exploration_min=0.0, cut_off=1.0, penalty=0.0
    )
    assert set(slow_as_well) == {0, 1, 2}
    bonus = math.sqrt(0.1 * math.log(2))
    worth = [(u - 0.999) / (9.0 - 0.999) + bonus for u in (7.0, 1.0)]
    assert worth[0] / 81 < worth[1], "so that client 2, nine times too slow, does not come before clients 3 and 4"
    others = oort(candidates(4, took_s, round=2), utility, exploration=0.0, exploration_min=0.0, cut_off=1.0)
    assert set(others) == {0, 1, 3, 4}


def test_oort_tries_new_clients_and_the_fast_ones_first():
    utility, took_s = np.array([9.0, 9.0, NAN, NAN, NAN]), [1.0, 1.0, NAN, NAN, NAN]
    drawn = [oort(candidates(2, took_s, round=2, seed=seed, slow=[4]), utility, exploration=0.5) for seed in range(300)]
    assert all(len(set(chosen) & {0, 1}) == 1 for chosen in drawn), "half of them are new"
    new = [next(iter(set(chosen) - {0, 1})) for chosen in drawn]
    likely = np.array([1 / 3, 1 / 4, 1 / 10]) / (1 / 3 + 1 / 4 + 1 / 10)
    assert np.array([new.count(c) for c in (2, 3, 4)]) / 300 == pytest.approx(likely, abs=0.08)


def test_oort_takes_slower_clients_once_there_is_little_to_gain():
    utility, took_s = np.array([5.0, 5.0, 20.0]), [1.0, 1.0, 3.0]
    options = {"exploration": 0.0, "exploration_min": 0.0, "cut_off": 1.0, "pace_rounds": 1, "pace": 0.7}
    hurried = oort(candidates(1, took_s, round=3, gains=[1.0, 2.0]), utility, **options)
    patient = oort(candidates(1, took_s, round=3, gains=[2.0, 1.0]), utility, **options)
    assert hurried in ([0], [1])
    assert patient == [2]


def mine(candidates, *, least_s: float = 0.0):
    return [c for c in candidates.clients if candidates.expected_s(c) >= least_s][: candidates.n]


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"kind": "orot"}, "is no choice of clients"),
        ({"kind": "tiers", "tires": 3}, "unknown key of tiers"),
        ({"kind": "tiers", "tiers": 0}, "1"),
        ({"kind": "oort", "penalty": "much"}, "number"),
    ],
)
def test_a_wrong_choice_or_option_is_told_with_its_key(section, problem):
    with pytest.raises(ScenarioError, match=problem) as found:
        find_choice(Section.model_validate(section))
    assert str(found.value.key).startswith("clients.choice")


def test_a_choice_of_one_s_own_must_give_clients(monkeypatch):
    def with_choice(choose: ClientChoice):
        monkeypatch.setitem(CHOICES, "mine", choose)
        return find_choice(Section(kind="mine"))

    who = candidates(2, [1.0] * 4)
    assert with_choice(mine)(who, np.empty(0)) == [0, 1]
    for wrong in (lambda candidates: [0, 0], lambda candidates: [0, 9], lambda candidates: None):
        with pytest.raises(ScenarioError, match=r"must give 2 of 4 clients|fails with"):
            with_choice(wrong)(who, np.empty(0))


@pytest.mark.usefixtures("without_pages")
def test_oort_takes_losses_with_class_weights_and_label_smoothing(tmp_path):
    train = {"rounds": 2, "batch_size": 5, "class_weights": "balanced", "label_smoothing": 0.1}
    clients = {"count": 4, "participation": 0.5, "choice": "oort"}
    scenario = {"data": {"train_samples": 60, "test_samples": 20}, "clients": clients, "train": train}
    assert len(sfl_sim.run(scenario, out=tmp_path / "run", progress=False).rounds) == 2
