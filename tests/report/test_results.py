from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from read_table import best, in_words, read

from sfl_sim.report.pages.run import results_figure
from sfl_sim.report.results import medians, paper_table, results_table
from sfl_sim.report.table import Column

if TYPE_CHECKING:
    from pathlib import Path

    from sfl_sim.report.frames import Frames


def test_the_best_median_of_a_column_is_marked(frames: Frames) -> None:
    leader = frames.summary.groupby("variant")["accuracy"].median().idxmax()

    assert best(results_table(frames), "Accuracy") == [leader]


def test_a_median_comes_with_the_standard_deviation_over_seeds(frames: Frames) -> None:
    summary = frames.summary.copy()
    summary.loc[summary["variant"] == "hydra, cyclic", "accuracy"] = [0.80, 0.84]

    row = read(results_table(replace(frames, summary=summary)))["hydra, cyclic"]

    assert row["Accuracy"] == ("82.0 %", "± 2.8 %")  # 4 points apart: ± 4 / sqrt(2)


def test_a_spread_that_is_no_number_is_not_told() -> None:
    perplexity = Column("Perplexity", "perplexity", "{:.2f}".format)
    assert perplexity.spread(pd.Series([3.0, 5.0])) == "± 1.41"
    assert perplexity.spread(pd.Series([3.0, math.inf])) == ""


def test_a_repriced_run_that_must_be_trained_anew_is_drawn_by_its_time(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    variants = json.loads((folder / "summary.json").read_text())["variants"]
    manifest["repriced"] = [{"variant": one["name"], "seed": one["seed"], "reason": "order"} for one in variants]
    assert results_figure(folder, "time").layout.yaxis.title.text == "accuracy (%)"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "accuracy" not in str(results_figure(folder, "time").layout.yaxis.title.text)


def test_the_paper_counts_over_seeds_first_and_over_rounds_then(frames: Frames) -> None:
    hydra = frames.rounds[frames.rounds["variant"] == "hydra, cyclic"]
    last = [statistics.median(hydra.loc[hydra["round"] == number, "accuracy"]) for number in range(26, 31)]

    table = paper_table(frames)
    assert table
    middle, spread = f"{100 * statistics.median(last):.1f} %", f"± {100 * statistics.stdev(last):.1f} %"
    assert read(table)["hydra, cyclic"]["Accuracy"] == (middle, spread)


def test_one_seed_is_not_counted_as_the_paper_counts(frames: Frames) -> None:
    assert paper_table(replace(frames, summary=frames.summary.query("seed == 0"))) is None


def test_the_memory_of_the_server_is_shown_where_it_differs(frames: Frames) -> None:
    heads = frames.summary["variant"].map({"hydra, cyclic": 5e6}).fillna(2e6)
    unlike, alike = (replace(frames, summary=frames.summary.assign(server_model_bytes=b)) for b in (heads, 2e6))

    assert read(results_table(unlike))["hydra, cyclic"]["Server memory"][0] == "5 MB"
    assert "Server memory" not in results_table(alike).titles


def test_numbers_that_read_alike_are_marked_alike(frames: Frames) -> None:
    table = results_table(frames)

    assert len({row["Sent down"] for row in read(table).values()}) == 1
    assert best(table, "Sent down") == []


def test_a_seed_that_misses_the_target_counts_as_infinitely_late(frames: Frames) -> None:
    late = frames.summary.copy()
    late.loc[(late["variant"] == "hydra, cyclic") & (late["seed"] == 1), "time_to_accuracy_s"] = np.nan

    assert np.isinf(medians(replace(frames, summary=late)).at["hydra, cyclic", "time_to_accuracy_s"])


def test_what_leads_to_the_target_has_a_table_of_its_own(frames: Frames) -> None:
    assert "target" not in in_words(results_table(frames))


def test_how_steady_a_run_was_is_shown_where_it_is_known(frames: Frames) -> None:
    known = replace(frames, summary=frames.summary.assign(accuracy_spread=0.0123))

    title = "Spread of last rounds (points)"
    assert read(results_table(known))["hydra, cyclic"][title][0] == "1.2"
    assert title not in results_table(frames).titles


def test_energy_is_shown_where_it_is_known(frames: Frames) -> None:
    known = replace(frames, summary=frames.summary.assign(joule=np.where(frames.summary["seed"] == 0, 4000, 4400.0)))
    unknown = replace(frames, summary=frames.summary.assign(joule=np.nan))

    assert read(results_table(known))["hydra, cyclic"]["Energy of the clients"][0] == "4.2 kJ"
    assert "Energy of the clients" not in results_table(unknown).titles
