from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sfl_sim.report.results import medians, results_table, target

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


def test_numbers_that_read_alike_are_marked_alike(frames: Frames) -> None:
    sent_down = [cells[-1] for cells in rows(results_table(frames)).values()]

    assert len(set(sent_down)) == 1
    assert "best" not in sent_down[0]


def test_a_seed_that_misses_the_target_counts_as_infinitely_late(frames: Frames) -> None:
    late = frames.summary.copy()
    late.loc[(late["variant"] == "hydra, cyclic") & (late["seed"] == 1), "time_to_accuracy_s"] = np.nan
    missed = replace(frames, summary=late)

    assert np.isinf(medians(missed).at["hydra, cyclic", "time_to_accuracy_s"])
    assert "1 of 2 seeds" in rows(results_table(missed))["hydra, cyclic"][3]


def test_different_targets_are_not_compared(frames: Frames) -> None:
    summary = frames.summary.copy()
    summary.loc[0, "target_accuracy"] = 0.5

    assert target(frames) == 0.7
    assert target(replace(frames, summary=summary)) is None
    assert "Time to target" in results_table(replace(frames, summary=summary))
