"""What the command line prints at the end of a run."""

import io
import json
from pathlib import Path

from rich.console import Console

from sfl_sim.api import Results
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages.learning import accuracy_panels
from sfl_sim.report.terminal import results_in_terminal


def printed(folder: Path) -> list[str]:
    page = io.StringIO()
    Console(file=page, width=80).print(results_in_terminal(folder))
    return page.getvalue().replace("\u00a0", " ").splitlines()


def test_a_variant_has_its_medians_and_below_them_the_spread_over_seeds(run_folder: Path, frames: Frames) -> None:
    accuracy = 100 * frames.summary.loc[frames.summary["variant"] == "hydra, cyclic", "accuracy"]
    lines = printed(run_folder)

    row = next(number for number, line in enumerate(lines) if line.startswith("hydra, cyclic"))

    assert f" {accuracy.median():.1f} % " in lines[row]
    assert lines[row + 1].startswith("2 seeds")
    assert f" ± {accuracy.std():.1f} % " in lines[row + 1]
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)


def test_results_print_the_table_and_are_one_in_a_notebook(run_folder: Path, frames: Frames) -> None:
    results = Results(run_folder)
    lines = str(results).replace("\u00a0", " ").splitlines()
    for line in printed(run_folder):
        assert " ".join(line.split()) in [" ".join(each.split()) for each in lines]
    page = results._repr_html_()
    assert page.count('<th scope="row">') == len(frames.variants)
    assert "<script" not in page


def test_the_summary_calls_a_variant_what_all_tables_call_it(run_folder: Path) -> None:
    results = Results(run_folder)
    assert set(results.summary["variant"]) == set(results.rounds["variant"])
    assert "name" not in results.summary


def test_medians_are_of_the_last_five_rounds_or_of_all_that_there_are(run_folder: Path, small_folder: Path) -> None:
    assert "Accuracy and PG: medians of the last 5 rounds." in " ".join(printed(run_folder))
    assert "Accuracy and PG: medians of 4 rounds." in " ".join(printed(small_folder))


def test_one_seed_has_no_spread(small_folder: Path) -> None:
    assert "±" not in "".join(printed(small_folder))


def test_the_target_and_the_performance_gap_are_explained_once(run_folder: Path) -> None:
    text = " ".join(" ".join(printed(run_folder)).split())

    assert text.count("Target: 70 % accuracy.") == 1
    assert text.count("PG (performance gap): best label's accuracy minus the mean over labels.") == 1


def test_a_share_of_the_target_is_not_rounded_up(folder: Path) -> None:
    stored = json.loads((folder / "summary.json").read_text())
    first, *_ = stored["variants"]
    change = {"target_accuracy": 0.7, "reference": first["name"], "best_accuracy": 0.7 / 0.995}
    (folder / "summary.json").write_text(json.dumps(stored | {"variants": [v | change for v in stored["variants"]]}))
    text = " ".join(" ".join(printed(folder)).split())
    assert f"Target: 70 % accuracy, 99.5 % of the best of {first['name']}." in text
    panel, *_ = accuracy_panels(merge([load(folder)]))
    assert panel.caption.startswith("The target is 99.5\u00a0% of the best accuracy of ")


def test_seeds_that_have_ended_differently_have_no_median(folder: Path) -> None:
    """One of them was interrupted; where `train.stop` has ended them, they are as long as they should be."""
    stored = json.loads((folder / "summary.json").read_text())
    first = stored["variants"][0]
    stored["variants"] += [first | {"seed": 1, "rounds": 3}]
    (folder / "summary.json").write_text(json.dumps(stored))
    lines = printed(folder)

    row = next(number for number, line in enumerate(lines) if line.startswith(first["name"]))
    assert "%" not in lines[row]
    assert lines[row + 1].startswith("4, 3 rounds")
    assert "have no median" in " ".join(lines)

    for seed in stored["variants"]:
        seed["stopped"] = "an accuracy of 0.7 is reached"
    (folder / "summary.json").write_text(json.dumps(stored))
    lines = printed(folder)
    assert "%" in lines[row]
    assert "Where training stopped early, of the last round." in " ".join(lines)
