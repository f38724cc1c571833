from __future__ import annotations

import re
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.report.results import medians, paper_table, results_table

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames


def rows(table: str) -> dict[str, list[str]]:
    """The cells' HTML by variant."""
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", table.partition("<tbody>")[2]):
        name = re.search(r"<b>(.*?)</b>", row)[1]
        found[name] = re.findall(r"<td.*?</td>", row)
    return found


def test_the_best_median_of_a_column_is_marked(frames: Frames) -> None:
    best = frames.summary.groupby("variant")["accuracy"].median().idxmax()

    accuracy = {name: cells[0] for name, cells in rows(results_table(frames)).items()}

    assert [name for name, cell in accuracy.items() if "best" in cell] == [best]


def test_a_median_comes_with_the_standard_deviation_over_seeds(frames: Frames) -> None:
    summary = frames.summary.copy()
    summary.loc[summary["variant"] == "hydra, cyclic", "accuracy"] = [0.80, 0.84]

    cell = rows(results_table(replace(frames, summary=summary)))["hydra, cyclic"][0].replace("\u00a0", " ")

    assert "82.0 %<small>± 2.8 %</small>" in cell  # 4 points apart: ± 4 / sqrt(2)


def test_the_paper_counts_over_seeds_first_and_over_rounds_then(frames: Frames) -> None:
    hydra = frames.rounds[frames.rounds["variant"] == "hydra, cyclic"]
    last = [statistics.median(hydra.loc[hydra["round"] == number, "accuracy"]) for number in range(26, 31)]

    cell = rows(paper_table(frames))["hydra, cyclic"][0].replace("\u00a0", " ")

    assert f"{100 * statistics.median(last):.1f} %<small>± {100 * statistics.stdev(last):.1f} %</small>" in cell


def test_one_seed_is_not_counted_as_the_paper_counts(frames: Frames) -> None:
    assert paper_table(replace(frames, summary=frames.summary.query("seed == 0"))) == ""


def test_the_memory_of_the_server_is_shown_where_it_differs(frames: Frames) -> None:
    heads = frames.summary["variant"].map({"hydra, cyclic": 5e6}).fillna(2e6)
    unlike, alike = (replace(frames, summary=frames.summary.assign(server_model_bytes=b)) for b in (heads, 2e6))

    assert "5\u00a0MB" in rows(results_table(unlike))["hydra, cyclic"][-1]
    assert "Server memory" in results_table(unlike)
    assert "Server memory" not in results_table(alike)


def test_numbers_that_read_alike_are_marked_alike(frames: Frames) -> None:
    sent_down = [cells[-1] for cells in rows(results_table(frames)).values()]

    assert len(set(sent_down)) == 1
    assert "best" not in sent_down[0]


def test_a_seed_that_misses_the_target_counts_as_infinitely_late(frames: Frames) -> None:
    late = frames.summary.copy()
    late.loc[(late["variant"] == "hydra, cyclic") & (late["seed"] == 1), "time_to_accuracy_s"] = np.nan

    assert np.isinf(medians(replace(frames, summary=late)).at["hydra, cyclic", "time_to_accuracy_s"])


def test_what_leads_to_the_target_has_a_table_of_its_own(frames: Frames) -> None:
    assert "target" not in results_table(frames)


def test_how_steady_a_run_was_is_shown_where_it_is_known(frames: Frames) -> None:
    known = replace(frames, summary=frames.summary.assign(accuracy_spread=0.0123))

    assert "1.2" in rows(results_table(known))["hydra, cyclic"][1]
    assert "Spread of last rounds" in results_table(known)
    assert "Spread of last rounds" not in results_table(frames)


def test_energy_is_shown_where_it_is_known(frames: Frames) -> None:
    known = replace(frames, summary=frames.summary.assign(joule=np.where(frames.summary["seed"] == 0, 4000, 4400.0)))
    unknown = replace(frames, summary=frames.summary.assign(joule=np.nan))

    assert "4.2\u00a0kJ" in rows(results_table(known))["hydra, cyclic"][-1]
    assert "Energy" not in results_table(unknown)
