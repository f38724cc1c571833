"""What a study says of a paper's trend: when a difference counts, and what a missed target means."""

import json
import re
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.trends import (
    Comparison,
    Table,
    chain,
    decide,
    decided,
    holm,
    one_against,
    outlook,
    p_values,
    paired,
    spread,
    told,
    verdict,
)
from sfl_sim.scenario.files import scenario_file

NEVER = np.inf


def call(left, sign, right, margin=None):
    claim = [Comparison(("left", np.array(left, float)), sign, ("right", np.array(right, float)), margin)]
    return {1: "holds", 0: "open", -1: "fails"}[decided(claim)[0][0]]


@pytest.mark.parametrize(
    ("left", "sign", "right", "expected"),
    [
        ([52, 53, 54], ">", [48, 49, 51], "holds"),  # 4, 4, 3: 3.7 ± t(0.975, 2) 0.33 = [2.2, 5.1]
        ([52, 53, 54], "<", [48, 49, 51], "fails"),
        ([52, 53, 54], ">", [48, 53, 47], "open"),  # 4, 0, 7: [-5.1, 12.4]
        ([52, 53, 54], ">=", [48, 49, 51], "holds"),
        ([48, 49, 51], ">=", [52, 53, 54], "fails"),
        ([48, 53, 47], ">=", [52, 53, 54], "open"),
        ([10, 60, 110], ">", [8, 57, 107], "holds"),  # seeds differ by 50, and pairs by 2, 3, 3
    ],
)
def test_a_comparison_is_decided_by_its_pairs(left, sign, right, expected):
    assert call(left, sign, right) == expected


@pytest.mark.parametrize(
    ("left", "sign", "right", "margin", "expected"),
    [
        ([50, 51, 52], "~", [50, 51, 51.5], 2, "holds"),  # 0, 0, 0.5: 0.2 ± 0.7
        ([50, 51, 52], "~", [50, 51, 51.5], None, "open"),  # never a default
        ([50, 51, 52], "~", [50, 55, 48], 2, "open"),  # that no difference is seen is no tie
        ([50, 51, 52], "~", [40, 41, 42.5], 2, "fails"),
        ([50, 51, 52], "~>=", [50, 51, 51.5], 2, "holds"),
        ([60, 61, 62], "~>=", [50, 51, 51.5], 2, "holds"),  # more by any amount
        ([60, 61, 62], "~<=", [50, 51, 51.5], 2, "fails"),
        ([60, 61, 62], "~>=", [50, 51, 51.5], None, "open"),
    ],
)
def test_a_tie_has_to_be_shown_within_a_margin(left, sign, right, margin, expected):
    assert call(left, sign, right, margin) == expected


def test_a_missed_target_counts_by_its_sign_which_needs_six_seeds():
    for seeds, expected in ((5, "open"), (6, "holds")):
        assert call([10] * seeds, "<", [NEVER] * seeds) == expected
    assert call([10, 11, 12, 13, 14, NEVER], "<", [NEVER] * 6) == "open"  # which of the last two comes first?
    assert call([NEVER] * 9, "<", [NEVER] * 9) == call([NEVER] * 9, "~", [NEVER] * 9) == "open"


def test_equal_differences_have_no_spread_and_count_by_their_sign():
    assert call([1, 2, 3], ">", [0, 1, 2]) == "open"
    assert call(np.arange(6) + 1.1, ">", np.arange(6) + 1.0) == "holds"
    assert call([1, 2, 3], "~", [1, 2, 3], 2) == "open"


SEEDS_OF = st.lists(st.integers(0, 100) | st.just(NEVER), min_size=6, max_size=6)
MIRRORED = {"holds": "fails", "fails": "holds", "open": "open"}


@settings(max_examples=60, deadline=None)
@given(SEEDS_OF, SEEDS_OF)
def test_what_holds_one_way_fails_the_other_way(left, right):
    assert call(left, "<", right) == call(right, ">", left)
    assert call(left, ">", right) == MIRRORED[call(right, ">", left)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_passes_what_his_steps_pass(p):
    """One after another from the smallest on, at 5 % over the number that are left, until one does not pass."""
    passed = set()
    for left, place in zip(range(len(p), 0, -1), np.argsort(p, kind="stable"), strict=True):
        if p[place] * left > 0.05:
            break
        passed.add(int(place))
    assert set(np.flatnonzero(holm(np.array(p)) <= 0.05).tolist()) == passed


def test_a_claim_is_as_good_as_its_weakest_comparison():
    figures = {"a": np.array([60.0, 61, 62]), "b": np.array([50.0, 51.5, 52]), "c": np.array([50.0, 51, 53])}
    assert verdict(one_against("a", ">", figures)) == "reproduced"
    assert verdict(chain(figures, ">", ">")) == "undecided"
    assert verdict(chain(figures, "<", ">")) == "refuted"
    assert verdict([]) == "not judged"


def test_one_that_holds_by_itself_may_be_open_among_others():
    """Of 4, 4, 3 the one-sided p is 0.4 %: enough for one of five comparisons, and not for one of seven."""
    left, right = np.array([52.0, 53, 54]), np.array([48.0, 49, 51])
    alone, level = Comparison(("a", left), ">", ("b", right)), Comparison(("a", left), ">", ("c", left[::-1]))
    assert decided([alone] + 4 * [level])[0] == [1, 0, 0, 0, 0]
    assert decided([alone] + 6 * [level])[0] == [0] * 7


def test_what_would_decide_is_told():
    """Of 2, 4, 6 the mean is 4 ± 4.97, and of four such seeds 4 ± 3.18."""
    ahead = Comparison(("a", np.array([12.0, 24, 36])), ">", ("b", np.array([10.0, 20, 30])))
    assert outlook([ahead]) == "4 seeds would decide"
    behind = Comparison(("a", np.array([12.0, 24, 36])), "<", ("b", np.array([9.0, 24, 30])))
    assert outlook([ahead, behind]) == "9 seeds would decide"  # to refute: 3 ± 3 / 9^0.5 t(0.9875, 8) = 3 ± 2.8
    level = Comparison(("a", np.array([1.0, 2])), ">", ("b", np.array([2.0, 1])))
    assert outlook([ahead, level]) == "over 1,000 seeds would decide"
    never = Comparison(("a", np.array([10.0] * 3)), "<", ("b", np.full(3, NEVER)))
    assert outlook([never]) == "6 seeds would decide"
    once = Comparison(("a", np.array([10.0] + [NEVER] * 5)), "<", ("b", np.full(6, NEVER)))
    assert outlook([once]) == "over 1,000 seeds would decide"  # five of six, which both miss, count for neither
    assert outlook([ahead, Comparison(ahead.left, "~", ahead.right)]) == "no margin was fixed"


def test_comparisons_tell_their_numbers_and_how_many_seeds_agree():
    claim = [Comparison(("ours", np.array([10.0, 11, 30])), "<", ("theirs", np.array([20.0, 21, NEVER])))]
    assert told(claim) == "ours 11.0 ± 11.3 < theirs 21.0 [2 of 3] (open, 3 of 3 seeds)"
    claim = [Comparison(("a", np.array([12.0, 24, 36])), ">", ("b", np.array([10.0, 20, 30])))]
    assert told(claim).endswith("(open, 3 of 3 seeds, paired +4.0 [-1.0, +9.0])")
    claim = [Comparison(("a", np.array([1.0, 2, 3])), "~", ("b", np.array([1.0, 2, 2.5])), 2)]
    assert told(claim).endswith("(holds, margin 2, paired +0.2 [-0.6, +0.9])")
    assert spread(np.array([20, NEVER, NEVER])) == "not reached [1]"


N_STUDIES = 2000
VARIANTS = 6
RIVALS = [(0, other) for other in range(1, VARIANTS)]
STEPS = [(place, place + 1) for place in range(VARIANTS - 1)]
PAIRS = list(combinations(range(VARIANTS), 2))
NOISE = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "heavy tails": lambda rng, shape: rng.standard_t(2, size=shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape),
    "whole numbers": lambda rng, shape: rng.normal(scale=0.7, size=shape).round(),
}
"""Of independent figures with a standard deviation of about 1; heavy tails have none."""
WORLDS = {  # what is true of six variants, what is claimed of which pairs, and which verdicts are wrong
    "equal, one against five": ([0] * 6, RIVALS, ">", None, {1, -1}),
    "equal, a chain of five": ([0] * 6, STEPS, ">", None, {1, -1}),
    "the last two are equal, a chain": ([12, 9, 6, 3, 0, 0], STEPS, ">", None, {1, -1}),
    "the last two change places, a chain": ([12, 9, 6, 3, 0, 0.5], STEPS, ">", None, {1}),
    "steps of 0.5": ([2.5, 2, 1.5, 1, 0.5, 0], STEPS, ">", None, {-1}),
    "steps of 3": ([15, 12, 9, 6, 3, 0], STEPS, ">", None, {-1}),
    "equal, all tie": ([0] * 6, PAIRS, "~", 2, {-1}),
    "one is at the margin's edge, all tie": ([2, 0, 0, 0, 0, 0], PAIRS, "~", 2, {1, -1}),
    "one is 8/6 apart, margin 1": ([8 / 6, 0, 0, 0, 0, 0], PAIRS, "~", 1, {1}),
    "five are worse by the margin": ([0, 2, 2, 2, 2, 2], RIVALS, "~>=", 2, {1, -1}),
}  # fmt: skip


def rates(truth, pairs, sign, margin, figures):
    """Shares of studies, figures (N, variants, seeds), whose claim is reproduced, and refuted."""
    figures = figures + np.array(truth, float)[:, None]
    left, right = np.array(pairs).T
    with np.errstate(invalid="ignore"):
        apart = np.where(figures[:, left] == figures[:, right], 0, figures[:, left] - figures[:, right])
    verdicts = decide(*p_values(apart, sign, margin))[1]
    return {side: float((verdicts == side).mean()) for side in (1, -1)}


def test_a_verdict_is_wrong_in_five_of_a_hundred_claims_at_most():
    """pytest -s prints the rates: of six variants, figures with a standard deviation of 1, pairs with one of 1.4."""
    rng = np.random.default_rng(0)
    by_chance = 3 * np.sqrt(0.05 * 0.95 / N_STUDIES)
    print(f"\n{'reproduced, refuted in % of claims':>50} {' '.join(f'{n:>11} seeds' for n in (3, 5, 10))}")
    for world, (truth, pairs, sign, margin, wrong) in WORLDS.items():
        for kind, noise in NOISE.items():
            cells = []
            for seeds in (3, 5, 10):
                found = rates(truth, pairs, sign, margin, noise(rng, (N_STUDIES, VARIANTS, seeds)))
                cells.append(f"{100 * found[1]:9.1f} {100 * found[-1]:7.1f}")
                assert sum(found[side] for side in wrong) <= 0.05 + by_chance, (world, kind, seeds, found)
            print(f"{world + ', ' + kind:>50} {' '.join(cells)}")


def test_missed_targets_decide_by_chance_as_rarely():
    """Three of ten seeds miss the target, whatever the variant."""
    rng = np.random.default_rng(0)
    for seeds in (3, 5, 6, 10):
        times = rng.normal(size=(N_STUDIES, VARIANTS, seeds))
        times[times > np.quantile(times, 0.7)] = NEVER
        found = rates([0] * 6, RIVALS, ">", None, times)
        print(f"missed targets, {seeds} seeds: reproduced {found[1]:.3f}, refuted {found[-1]:.3f}")
        assert sum(found.values()) <= 0.06
    assert rates([0, 5, 5, 5, 5, 5], RIVALS, ">", None, -np.where(times == NEVER, 5, times))[-1] > 0.9


def written(folder, status="complete", **columns):
    folder.mkdir()
    seeds = [{"name": "it", "seed": seed} | {key: column[seed] for key, column in columns.items()} for seed in (1, 0)]
    (folder / "manifest.json").write_text(json.dumps({"status": status}))
    (folder / "summary.json").write_text(json.dumps({"variants": seeds}))
    return Table(folder)


def test_a_run_with_other_settings_than_the_study_s_says_so(tmp_path, capsys):
    table = written(tmp_path / "momentum_table", accuracy=[0.5, 0.6])
    text = scenario_file("momentum/table").read_text()
    for rounds, said in ((40, ""), (2, f"{table.folder} is not the study, .*: train.rounds 2 \\(study: 40\\)\n")):
        (table.folder / "scenario.yaml").write_text(text.replace("rounds: 40", f"rounds: {rounds}"))
        Table(table.folder)("accuracy", {"it": "it"})
        assert re.fullmatch(said, capsys.readouterr().err)
    with pytest.raises(SystemExit, match="has no variant gone: its grid is not the study's"):
        table("accuracy", {"it": "gone"})


def test_small_spreads_are_told_with_as_many_places_as_they_need():
    assert spread(np.array([3.670, 3.673, 3.676])) == "3.673 ± 0.003"
    assert spread(np.array([43.0, 45.0, 44.0])) == "44.0 ± 1.0"
    assert paired(np.array([0.002, 0.003, 0.004])).startswith(", paired +0.003 [")


def test_a_table_gives_figures_by_seed_and_infinity_for_a_missed_target(tmp_path):
    table = written(tmp_path / "run", accuracy=[0.25, 0.5], rounds_to_accuracy=[7, None])
    assert table("accuracy", {"called": "it"})["called"].tolist() == [25, 50]
    assert table("rounds_to_accuracy", {"called": "it"}, scale=1)["called"].tolist() == [7, NEVER]


def test_a_seed_that_diverged_has_no_figure(tmp_path):
    """Of seeds 0 to 3 the left side lost seed 1 and the right side seed 3: both have 0 and 2."""
    claim = [Comparison(("a", np.array([12.0, np.nan, 16, 15])), ">", ("b", np.array([10.0, 11, 12, np.nan])))]
    assert told(claim) == "a 15.0 ± 2.1 > b 11.0 ± 1.0 (open, 2 of 2 seeds, paired +3.0 [-9.7, +15.7])"
    alone, none = np.array([9.0, np.nan, np.nan]), np.full(3, np.nan)
    claim = [Comparison(("a", alone), ">", ("b", np.array([1.0, 2, 3]))), Comparison(("a", none), ">", ("b", alone))]
    assert told(claim) == (
        "a 9.0 (one seed) > b 2.0 ± 1.0 (open, 1 of 1 seeds); a diverged > b 9.0 (one seed) (open, 0 of 0 seeds)"
    )
    assert outlook(claim) == "over 1,000 seeds would decide"
    failure = {"variant": "it", "seed": 1, "round": 9, "error": "NonFiniteError: the loss is nan"}
    for error, seen in ((failure["error"], True), ("OSError: no space", False)):
        table = written(tmp_path / str(seen), accuracy=[0.25, 0.5], rounds_to_accuracy=[None, 7])
        about = {"status": "failed", "failed": [failure | {"error": error}]}
        (table.folder / "manifest.json").write_text(json.dumps(about))
        if seen:
            assert table("accuracy", {"it": "it"})["it"].tolist() == pytest.approx([25, np.nan], nan_ok=True)
            found = table("rounds_to_accuracy", {"it": "it"}, scale=1)["it"].tolist()
            assert found == pytest.approx([NEVER, np.nan], nan_ok=True)
        else:
            with pytest.raises(SystemExit, match="is failed"):
                table("accuracy", {"it": "it"})


def test_runs_that_cannot_be_judged_say_why(tmp_path):
    with pytest.raises(SystemExit, match="run the scenario momentum/hours_tiny first"):
        _ = Table(tmp_path / "momentum_hours_tiny").variants
    with pytest.raises(SystemExit, match="is stopped"):
        _ = written(tmp_path / "early", status="stopped", accuracy=[0.1, 0.2]).variants
    with pytest.raises(SystemExit, match="by the clock alone"):
        written(tmp_path / "untrained", accuracy=[None, None])("accuracy", {"it": "it"})
