"""What a study says of a paper's trend: when a difference counts, and what a missed target means."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.trends import Claim, Table, chain, one_against, paired, spread, verdict
from sfl_sim.scenario.shipped import scenario_file

NEVER = np.inf


def judged(left, sign, right, **tie):
    return Claim(("left", np.array(left, float)), sign, ("right", np.array(right, float)), **tie).verdict


@pytest.mark.parametrize(
    ("left", "sign", "right", "expected"),
    [
        ([52, 50, 51], ">", [48, 49, 47], "holds"),
        ([52, 50, 51], "<", [48, 49, 47], "fails"),
        ([52, 50, 51], ">", [49, 53, 45], "open"),  # two points apart, but the right side's seeds are four
        ([52, 50, 51], ">=", [49, 53, 45], "holds"),
        ([49, 53, 45], ">=", [52, 50, 51], "open"),
        ([48, 49, 47], ">=", [52, 50, 51], "fails"),
        ([50, 50, 50], "~", [52, 52, 52], "holds"),  # a tie of two points, though no seed differs from the others
        ([50, 50, 50], "~", [53, 53, 53], "fails"),
        ([50, 60, 70], "~", [55, 65, 75], "holds"),  # five points, and ten of standard deviation
    ],
)
def test_a_difference_counts_if_it_is_more_than_a_standard_deviation(left, sign, right, expected):
    assert judged(left, sign, right) == expected


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([10, 11, 12], [NEVER, NEVER, NEVER], "holds"),
        ([10, 11, 12], [13, 40, NEVER], "holds"),
        ([10, 11, 12], [11, 40, NEVER], "open"),  # one seed is as early
        ([10, 11, NEVER], [40, 40, NEVER], "open"),  # nobody knows which of the missing seeds comes first
        ([10, NEVER, NEVER], [NEVER, NEVER, NEVER], "open"),
        ([NEVER, NEVER, NEVER], [NEVER, NEVER, NEVER], "open"),
        ([13, NEVER, NEVER], [10, 11, 12], "fails"),
    ],
)
def test_with_a_missed_target_every_seed_has_to_be_ahead(left, right, expected):
    assert judged(left, "<", right) == expected


def test_who_misses_the_target_is_not_alike_one_who_is_ahead_with_every_seed():
    assert judged([1, 2, 3], "~", [5, 6, NEVER]) == judged([5, 6, NEVER], "~", [1, 2, 3]) == "fails"
    assert judged([1, 2, 6], "~", [5, 6, NEVER]) == "open"
    assert judged([1, 2, 3], "~<=", [5, 6, NEVER]) == "holds"


def test_differences_without_spread_are_decided_by_no_number_of_seeds():
    assert paired(np.zeros(3)) == ", paired +0.0 [+0.0, +0.0]"
    assert paired(np.array([0.3 - 0.1, 0.2, 0.2])) == ", paired +0.2 [+0.2, +0.2]"


def test_not_more_allows_a_tie_and_any_amount_less():
    assert judged([107, 107, 107], "~<=", [100, 100, 100], tie=10) == "holds"
    assert judged([111, 111, 111], "~<=", [100, 100, 100], tie=10) == "fails"
    assert judged([50, 50, 50], "~<=", [100, 100, 100], tie=10) == "holds"


SEEDS = st.lists(st.integers(0, 100) | st.just(NEVER), min_size=3, max_size=3)
MIRRORED = {"holds": "fails", "fails": "holds", "open": "open"}


@settings(max_examples=60, deadline=None)
@given(SEEDS, SEEDS)
def test_what_holds_one_way_fails_the_other_way(left, right):
    assert judged(left, "<", right) == judged(right, ">", left)
    assert judged(left, ">", right) == MIRRORED[judged(right, ">", left)]


def test_a_trend_is_as_good_as_its_weakest_comparison():
    figures = {"a": np.array([60.0, 61, 62]), "b": np.array([50.0, 51, 52]), "c": np.array([50.0, 51, 53])}
    assert verdict(one_against("a", ">", figures)) == "reproduced"
    assert verdict(chain(figures, ">", ">")) == "not distinguishable"
    assert verdict(chain(figures, "<", ">")) == "not reproduced"
    assert verdict([]) == "not judged"


def test_a_comparison_tells_its_numbers_and_how_many_seeds_agree():
    claim = Claim(("ours", np.array([10.0, 11, 30])), "<", ("theirs", np.array([20.0, 21, NEVER])))
    assert str(claim) == "ours 11.0 ± 11.3 < theirs 21.0 [2 of 3] (open, 3 of 3 seeds)"
    assert spread(np.array([20, NEVER, NEVER])) == "not reached [1]"


def written(folder, status="complete", **columns):
    folder.mkdir()
    seeds = [{"name": "it", "seed": seed} | {key: column[seed] for key, column in columns.items()} for seed in (1, 0)]
    (folder / "manifest.json").write_text(json.dumps({"status": status}))
    (folder / "summary.json").write_text(json.dumps({"variants": seeds}))
    return Table(folder)


def test_a_run_with_other_settings_than_the_study_s_says_so(tmp_path, capsys):
    table = written(tmp_path / "momentum_table", accuracy=[0.5, 0.6])
    text = scenario_file("momentum/table").read_text()
    for rounds, told in ((40, ""), (2, f"{table.folder} is not the study, .*: train.rounds 2 \\(study: 40\\)\n")):
        (table.folder / "scenario.yaml").write_text(text.replace("rounds: 40", f"rounds: {rounds}"))
        Table(table.folder)("accuracy", {"it": "it"})
        assert re.fullmatch(told, capsys.readouterr().err)
    with pytest.raises(SystemExit, match="has no variant gone: its grid is not the study's"):
        table("accuracy", {"it": "gone"})


def test_small_spreads_are_told_with_as_many_places_as_they_need():
    assert spread(np.array([3.670, 3.673, 3.676])) == "3.673 ± 0.003"
    assert spread(np.array([43.0, 45.0, 44.0])) == "44.0 ± 1.0"
    assert paired(np.array([0.002, 0.003, 0.004])).startswith(", paired +0.003 [")


def test_paired_differences_come_with_their_interval():
    """Of +2, +4 and +6: 4 ± t(0.975, 2) 2 / sqrt(3) = 4 ± 4.97; with four seeds, 4 ± 3.18."""
    claim = Claim(("a", np.array([12.0, 24, 36])), ">", ("b", np.array([10.0, 20, 30])))
    assert str(claim).endswith("3 of 3 seeds, paired +4.0 [-1.0, +9.0], 4 seeds would decide)")
    claim = Claim(("a", np.array([12.0, 23, 32])), ">", ("b", np.array([10.0, 20, 30])))
    assert str(claim).endswith("3 of 3 seeds, paired +2.3 [+0.9, +3.8])")
    assert paired(np.array([1.0, -1.0])) == ", paired +0.0 [-12.7, +12.7], over 1,000 seeds would decide"


def test_a_table_gives_figures_by_seed_and_infinity_for_a_missed_target(tmp_path):
    table = written(tmp_path / "run", accuracy=[0.25, 0.5], rounds_to_accuracy=[7, None])
    assert table("accuracy", {"called": "it"})["called"].tolist() == [25, 50]
    assert table("rounds_to_accuracy", {"called": "it"}, scale=1)["called"].tolist() == [7, NEVER]


def test_a_seed_that_diverged_has_no_figure(tmp_path):
    """Of seeds 0 to 3 the left side lost seed 1 and the right side seed 3: both have 0 and 2."""
    claim = Claim(("a", np.array([12.0, np.nan, 16, 15])), ">", ("b", np.array([10.0, 11, 12, np.nan])))
    assert str(claim) == (
        "a 15.0 ± 2.1 > b 11.0 ± 1.0 (holds, 2 of 2 seeds, paired +3.0 [-9.7, +15.7], 4 seeds would decide)"
    )
    alone, none = np.array([9.0, np.nan, np.nan]), np.full(3, np.nan)
    assert (
        str(Claim(("a", alone), ">", ("b", np.array([1.0, 2, 3]))))
        == "a 9.0 (one seed) > b 2.0 ± 1.0 (open, 1 of 1 seeds)"
    )
    assert str(Claim(("a", none), ">", ("b", alone))) == "a diverged > b 9.0 (one seed) (open, 0 of 0 seeds)"
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
