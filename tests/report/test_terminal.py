"""What the command line prints at the end of a run."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from sfl_sim.report.terminal import results_in_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from sfl_sim.report.frames import Frames


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


def test_one_seed_has_no_spread(small_folder: Path) -> None:
    assert "±" not in "".join(printed(small_folder))
