"""What commands print: a page in short, results, a repriced run, and advice on where to cut."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.text import Text

from sfl_sim.metrics.scores import LAST_ROUNDS
from sfl_sim.report.display import duration, percent, plural
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.lead import Sentence
from sfl_sim.report.load import load
from sfl_sim.report.panel import Cell, Table, plain
from sfl_sim.report.results import TIME, accuracy, aims, columns_for, of_each
from sfl_sim.store.files import contents

if TYPE_CHECKING:
    from rich.table import Table as TerminalTable


SHOWN = {
    "perplexity": "Perplexity",
    "accuracy": "Accuracy",
    "r2": "R²",
    "mae": "MAE",
    "rmse": "RMSE",
    "mean_average_precision": "mAP",
    "f1_macro": "F1 (macro)",
    "mean_iou": "Mean IoU",
    "pixel_accuracy": "Pixel accuracy",
    "performance_gap": "PG (points)",
    TIME.key: TIME.title,
    "simulated_s": "Time",
}
"""Columns that fit into 80 letters, with short titles; the report shows all."""
WIDE_COLUMNS = 200
PG = "PG (performance gap): best label's accuracy minus the mean over labels."
TOKENS = "Perplexity (exp of the mean loss) and accuracy are of tokens; a sample's label is its owner."
BOUND = "Lower bound: for any cuts per client and any scheduling policy, with links at their best rate."


def results_in_terminal(folder: Path) -> TerminalTable:
    """One row per variant of the stored run in `folder`: medians over seeds, and below them their spread."""
    frames = merge([load(folder)])
    known = [*columns_for(frames), *([TIME] if any(aim.target for aim in aims(frames)) else [])]
    by_key = {column.key: column for column in known}
    columns = [by_key[key] for key in SHOWN if key in by_key]
    n_rounds = int(frames.summary["rounds"].max())
    which = f"the last {LAST_ROUNDS} rounds" if n_rounds > LAST_ROUNDS else plural(n_rounds, "round")
    of_labels = "performance_gap" in by_key
    about = [] if frames.timing_only else [f"{'Accuracy and PG' if of_labels else 'Scores'}: medians of {which}."]
    about += [PG] if of_labels else []
    if frames.has_perplexity:
        about.append(TOKENS)
    if frames.summary["stopped"].notna().any():
        about.append("Where training stopped early, of the last round.")
    if TIME in columns:
        about.append(_targets(frames))
    if frames.summary["seed"].nunique() > 1:
        about.append("Over seeds: median ± standard deviation.")
    unequal = _ended_differently(folder)
    rows = []
    for variant, seeds in of_each(frames.summary, frames.variants):
        if variant.name in unequal:
            rows.append([Cell(variant.name, unequal[variant.name]), *(Cell("–") for _ in columns)])
            continue
        number = plural(len(seeds), "seed") if len(seeds) > 1 else ""
        rows.append([Cell(variant.name, number), *(column.cell(seeds) for column in columns)])
    if unequal:
        about.append("–: seeds with unequal numbers of rounds have no median.")
    shown = SHOWN | {"simulated_s": frames.clock.capitalize()}
    return Table(["Variant", *(shown[column.key] for column in columns)], rows, note="\n".join(about)).in_terminal()


def _targets(frames: Frames) -> str:
    """Name the targets, and what they are shares of."""
    told = []
    for aim in aims(frames):
        of = f", {accuracy(aim.share)} of the best of {aim.reference.name}" if aim.reference else ""
        told += [f"{aim.name}{of}"] if aim.target is not None else []
    return f"Target: {'; '.join(told)}."


def _ended_differently(folder: Path) -> dict[str, str]:
    """Find the variants whose seeds have unequal numbers of rounds, not by `train.stop`; says how many each has."""
    found: dict[str, list[int]] = {}
    for summary in contents(folder / "summary.json")["variants"]:
        if not summary.get("stopped"):
            found.setdefault(summary["name"], []).append(summary["rounds"])
    return {name: f"{', '.join(map(str, rounds))} rounds" for name, rounds in found.items() if len(set(rounds)) > 1}


def in_terminal(headlines: Iterable[Sentence], table: Table) -> Group:
    """What a terminal shows of a page: its headlines and a table."""
    return Group(*(Text(plain(sentence.text)) for sentence in headlines), "", table.in_terminal())


def in_plain_text(shown: RenderableType) -> str:
    """What a wide terminal would show, without colours."""
    console = Console(file=io.StringIO(), width=WIDE_COLUMNS, color_system=None, force_jupyter=False)
    with console.capture() as drawn:
        console.print(shown)
    return "\n".join(line.rstrip() for line in drawn.get().rstrip().splitlines())


def repriced_in_terminal(folder: Path) -> TerminalTable:
    """One row per variant and seed of the repriced run in `folder`: times there and here, and what holds."""
    stored = contents(folder / "summary.json")["variants"]
    summaries = {(summary["name"], summary["seed"]): summary for summary in stored}
    verdicts = contents(folder / "manifest.json")["repriced"]
    several = len({verdict["seed"] for verdict in verdicts}) > 1
    rows = []
    for verdict in verdicts:
        variant, seed = verdict["variant"], verdict["seed"]
        to_target_s = summaries.get((variant, seed), {}).get("time_to_accuracy_s")
        doubt = f"{'must be trained' if verdict['rounds'] else 'left out'}: {verdict['reason']}"
        texts = [
            f"{variant} (seed {seed})" if several else variant,
            f"{_known(verdict['before_s'])} → {_known(verdict['after_s'])}",
            f"{_known(verdict['to_accuracy_before_s'])} → {_known(to_target_s)}",
            "valid" if verdict["reason"] is None else doubt,
        ]
        rows.append(list(map(Cell, texts)))
    titles = ["Variant", "Simulated time", "Time to target", "What it learned"]
    return Table(titles, rows, words=["Variant", "What it learned"]).in_terminal()


def _known(seconds: float | None) -> str:
    return "–" if seconds is None else duration(seconds)


def advice_in_terminal(choices: pd.DataFrame, cuts: pd.DataFrame, clients: pd.DataFrame) -> Group:
    """One row per variant, and what there is to say of it; the tables are those of an `Advice`."""
    several = len(choices) > 1
    about = "" if choices["bound_s"].isna().all() else BOUND
    titles = [*(["Variant"] if several else []), "Best cut", "Round", "As it is now", "Next best", "Lower bound"]
    rows, notes = [], []
    for row in choices.to_dict("records"):
        series = row["series"]
        names = cuts[cuts["series"] == series].set_index("cut")["name"]
        chosen = clients.loc[clients["series"] == series, "cut"].value_counts().sort_index()
        # The cut, or each cut and how many clients have it.
        cuts_used = [f"{cut} {names[cut]}" if len(chosen) == 1 else f"{cut} × {n}" for cut, n in chosen.items()]
        cut = row["next_cut"]
        cells = [
            ", ".join(cuts_used),
            duration(row["round_s"]),
            f"{duration(row['own_round_s'])} ({row['own_round_s'] / row['round_s']:.2f} ×)",
            "–" if pd.isna(cut) else f"{cut} {names[cut]}: {duration(row['next_round_s'])}",
            "–" if pd.isna(row["bound_s"]) else f"{duration(row['bound_s'])} (gap {percent(row['gap'])})",
        ]
        rows.append(list(map(Cell, [series, *cells] if several else cells)))
        said = " ".join([f"Searched: {row['how']}.", *row["notes"]])
        notes.append(Text(f"{series}: {said}" if several else said))
    return Group(Table(titles, rows, note=about, words=titles).in_terminal(), *notes)


def advised_settings(choices: pd.DataFrame) -> list[str]:
    """An option for each variant that puts the advice into its scenario, to be pasted behind `sfl-sim SCENARIO`."""
    lines = [f"--set {shlex.quote(setting)}" for setting in choices["setting"]]
    return [f"{line}  # {name}" for line, name in zip(lines, choices["series"], strict=True)] if lines[1:] else lines
