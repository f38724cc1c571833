"""The page of the benchmark: written from CSVs, in which rows that are not what they are called have no rank."""

import pytest

from research.benchmark import verdicts
from sfl_sim.report.pages.benchmark import load_compared


def track(name):
    return load_compared(verdicts.RESULTS / "data", f"benchmark_{name}.csv")


def test_the_page_is_written_from_its_tables():
    text = verdicts.PAGE.read_text(encoding="utf-8")
    assert text == verdicts.page(text), "write it anew: python -m research.benchmark.verdicts"


@pytest.mark.parametrize("name", ["images_28_november", "images_unreliable_28_november"])
def test_smofi_without_momentum_has_no_rank(name):
    found = track(name)
    assert "smofi" not in found.variants
    assert "FedAvgM" in found.beside["smofi"]


def test_readme_counts_who_is_ahead_of_clients_at_rest():
    calls = [call for _, _, call in verdicts.against_rest(track("images"))]
    assert (calls.count(1), calls.count(0), calls.count(-1)) == (13, 13, 1)
    readme = (verdicts.RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
    assert "thirteen of 27 are more accurate than clients at rest, thirteen not told apart, one behind" in readme


def test_fedavg_v1_and_the_u_shape_learn_the_same_where_no_phone_goes_away():
    """They do with one rate for both sides, as on 28 November; tuned apart, each has a rate of its own."""
    tracks = ["images", "images_28_november", "images_unreliable", "text", "text_28_november"]
    groups = {name: [own for own in track(name).alike.values() if len(own) > 1] for name in tracks}
    same = ["splitfed_v1", "fedavg", "u_shaped"]
    assert groups == {
        "images": [],
        "images_28_november": [same],
        "images_unreliable": [],
        "text": [["splitfed_v1", "u_shaped"]],
        "text_28_november": [same],
    }


def test_a_trend_that_holds_by_itself_may_be_open_among_ten():
    """(a), (b) and (h) on the superseded table of images; what is refuted stays so."""
    rows = [line.split(" | ") for line in verdicts.trends_of(track("images_28_november"), verdicts.IMAGES)][2:]
    words = {row[0][3]: (row[2].strip("*").partition("*")[0], row[3]) for row in rows}
    assert [letter for letter, (word, alone) in words.items() if word == "undecided" and alone == "reproduced"] == [
        *"abh"
    ]
    assert [letter for letter, (word, _) in words.items() if word == "refuted"] == [*"cdgi"]
