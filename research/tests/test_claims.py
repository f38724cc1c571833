"""The claims of the results: decided by the rule, written to the pages, each with a study that is there."""

import json
import math
import re
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from research import claims

ROOT = Path(__file__).parents[2]
FOUND = claims.read()
ALL = list(chain.from_iterable(FOUND["papers"].values()))


@pytest.mark.parametrize("file", claims.PAGES, ids=lambda file: file.name)
def test_the_pages_are_written_from_the_claims(file):
    text = file.read_text(encoding="utf-8")
    assert text == claims.page(text), "write them anew: python -m research.claims"


def test_every_claim_names_a_study_that_is_there_and_its_regime():
    for name, about in FOUND["studies"].items():
        assert (ROOT / "scenarios" / f"{name}.yaml").exists(), name
        assert about["regime"] in ("before", "after")
        assert (about["regime"] == "after") == ("seen" in about)
        assert about["settings"] <= about["runs"]
    for claim in ALL:
        assert claim["old"] in claims.WORDS
        assert "not_run" in claim or claim["study"] in FOUND["studies"], claim["claim"]


def test_every_outcome_is_one_of_four_words():
    assert {claims.outcome(claim).partition(":")[0] for claim in ALL} == set(claims.WORDS)


def test_every_claim_says_where_the_paper_has_it_or_is_a_question_of_ours():
    for claim in ALL:
        assert "at" in claim or "theirs" not in claim, claim["claim"]
        assert not (claim["claim"].startswith("not in") and "at" in claim), claim["claim"]


def test_every_claim_has_a_name_of_its_own_that_can_be_read_alone():
    for paper, rows in FOUND["papers"].items():
        names = [row["claim"] for row in rows]
        assert len(set(names)) == len(names), paper
        assert not [name for name in names if name.startswith("the same") or "..." in name], paper


def test_claims_that_no_feasible_number_of_seeds_decides_are_folded_away():
    """0.1 ± 1 would take 388 seeds, 1 ± 1 some; a lost figure says nothing."""
    told = [("a", "+0.1 [-0.6, +0.8]"), ("b", "+1.0 [-0.1, +2.1]"), ("c", "lost")]
    rows = [{"claim": name, "seeds": 10, "pairs": [pair]} for name, pair in told]
    assert [bool(claims.folded(row)) for row in rows] == [True, False, False]
    assert claims.shown(rows, is_folded=False) == rows[1:]
    replaced = rows[1] | {"superseded": "said otherwise"}
    assert claims.folded(replaced) == "superseded: said otherwise"


def test_a_trial_that_diverged_is_not_shipped(tmp_path, monkeypatch):
    folder = tmp_path / "a_run"
    folder.mkdir()
    rows = [
        {"name": "it", "seed": seed, "reference": None, **dict.fromkeys(claims.SHIPPED[2:], 0.5)} for seed in (1, 2, 3)
    ]
    failed = [{"variant": "it", "seed": 2, "error": "NonFiniteError: the loss is not finite"}]
    (folder / "manifest.json").write_text(json.dumps({"status": "failed", "failed": failed}))
    (folder / "summary.json").write_text(json.dumps({"variants": rows}))
    (folder / "scenario.yaml").write_text("data: {name: digits}")
    pd.DataFrame({"round": [1], "position": [-1]}).to_parquet(folder / "labels.parquet")
    monkeypatch.setattr(claims, "DATA", tmp_path / "data")
    assert pd.read_csv(claims.ship(folder))["seed"].tolist() == [1, 3]


def test_accuracy_at_equal_bytes_is_that_of_the_last_five_rounds_within_the_bytes_of_the_reference(tmp_path):
    """The reference moves 10 x 6 bytes: 7 rounds of 8 bytes fit in. It diverged with seed 2, which has no figure."""
    folder = tmp_path / "a_run"
    folder.mkdir()
    rows = [("base", 1, 10, 6), ("dear", 1, 10, 8), ("dear", 2, 10, 8)]
    rounds = [
        {
            "variant": name,
            "seed": seed,
            "round": each,
            "bytes_up": bytes // 2,
            "bytes_down": bytes // 2,
            "accuracy": each / 100,
        }
        for name, seed, n, bytes in rows
        for each in range(1, n + 1)
    ]
    pd.DataFrame(rounds[::-1]).to_parquet(folder / "rounds.parquet")
    found = [
        {"name": name, "seed": seed, "reference": "base", "bytes_up": n * bytes // 2, "bytes_down": n * bytes // 2}
        for name, seed, n, bytes in rows
    ]
    told = claims.at_equal_bytes(folder, pd.DataFrame(found))
    assert told.to_dict() == pytest.approx({("base", 1): 0.08, ("dear", 1): 0.05})


def test_a_seed_that_misses_a_target_is_infinitely_late(tmp_path, monkeypatch):
    late = {"slow": [9.0, None, None], "quick": [7.0, 8.0, None]}
    rows = [(name, seed, rounds) for name, own in late.items() for seed, rounds in enumerate(own)]
    table = pd.DataFrame(rows, columns=["name", "seed", "rounds_to_accuracy"])
    table.to_csv(tmp_path / "a_b.csv", index=False)
    monkeypatch.setattr(claims, "DATA", tmp_path)
    pair = {"of": "rounds_to_accuracy", "more": "slow", "than": "quick"}
    (told,) = claims.comparisons({"study": "a/b", "seeds": 3, "pairs": [pair]})
    assert told.differences.tolist() == [2.0, math.inf, 0.0]


@pytest.mark.parametrize(
    ("first", "why"), [("+18.5 [+6.5, +30.6]", "figures by seed are lost"), ("+18.5 [-1.0, +38.0]", "not all hold")]
)
def test_an_open_claim_says_whether_figures_are_lost_or_a_comparison_does_not_hold(first, why):
    """The first one holds by itself, and not among three of which two are lost."""
    claim = {"claim": "it", "seeds": 3, "pairs": [first, "excludes 0 x2"]}
    assert claims.outcome(claim) == f"undecided: {why}"


def test_a_tie_without_a_margin_is_never_decided():
    claim = {"claim": "equal", "seeds": 5, "pairs": ["+0.0 [-0.1, +0.1]"], "tie": True, "margin": None}
    assert claims.outcome(claim) == "undecided: no margin was fixed"
    assert claims.outcome({**claim, "margin": 1.0}) == "reproduced"


@pytest.mark.parametrize(
    ("pairs", "word"),
    [
        (["+2.0 [+1.0, +3.0]"], "reproduced"),
        (["-2.0 [-3.0, -1.0]"], "refuted"),
        (["+2.0 [-1.0, +5.0]"], "undecided"),
        (["+2.0 [+1.0, +3.0]", "-2.0 [-3.0, -1.0]"], "refuted"),
        (["+2.0 [+1.0, +3.0]", "lost"], "undecided"),
        ([[1.0, 1.1, 0.9, 1.0, 1.0]], "reproduced"),
        (["9.0 ± 0.1 : 5.0 ± 0.1"], "reproduced"),
        (["9.0 ± 3.0 : 8.0 ± 3.0"], "undecided"),
    ],
)
def test_published_figures_decide_no_more_than_they_can_show(pairs, word):
    assert claims.outcome({"claim": "it", "seeds": 5, "pairs": pairs}).partition(":")[0] == word


def test_a_figure_is_compared_with_a_number_on_either_side():
    share, phone = {"of": "rho_0.0_offload_probability"}, "splitgp, lambda_pers=0.9"
    for sides, word in (({"more": 0.3333, "than": phone}, "reproduced"), ({"more": phone, "than": 1}, "refuted")):
        assert claims.outcome({"seeds": 12, "study": "harmony/table", "pairs": [share | sides]}) == word


def test_a_figure_has_zero_and_each_known_difference_on_one_axis():
    drawn = claims.figure({"claim": "it", "seeds": 5, "pairs": ["+2.0 [+1.0, +3.0]", "-2.0 [-3.0, -1.0]", "lost"]})
    assert re.findall(r'circle cx="([\d.]+)"', drawn) == ["97.3", "22.7"]
    assert 'class="zero" d="M60.0 ' in drawn
    tie = claims.figure({"claim": "it", "seeds": 5, "pairs": ["+0.0 [-1.0, +1.0]"], "tie": True, "margin": 2.0})
    assert tie.count('class="zero"') == 2
    assert claims.figure({"claim": "it", "seeds": 5, "pairs": ["lost"]}) == "–"


def test_a_mean_and_its_interval_are_five_differences_with_that_interval():
    differences = claims._spread_out(2.0, 0.5, 5)
    assert differences.mean() == pytest.approx(2.0)
    assert np.std(differences, ddof=1) == pytest.approx(0.5)
