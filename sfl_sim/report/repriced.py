"""What repricing a run gave: what its report says at the top, and a table for the terminal."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from rich.table import Table

from sfl_sim.report.display import duration, plural

if TYPE_CHECKING:
    from pathlib import Path

    from sfl_sim.report.load import Run


def repriced(run: Run) -> list[str]:
    """HTML sentences on a run whose times are not of the world where it was trained; none on any other."""
    source = run.manifest.get("repriced_from")
    if source is None:
        return []
    texts = [
        html.escape(f"{run.name}: repriced from {source['folder']}. ")
        + "Times are those of the world below, in which nothing was trained; what was learned was learned there."
    ]
    doubtful: dict[str, list[dict[str, Any]]] = {}
    for verdict in run.manifest["repriced"]:
        if verdict["reason"] is not None:
            doubtful.setdefault(verdict["variant"], []).append(verdict)
    for variant, (first, *others) in doubtful.items():
        more = f", and {plural(len(others), 'more seed')}" if others else ""
        texts.append(html.escape(f"{run.name}: {variant} (seed {first['seed']}{more}) {_sentence(first)}"))
    return texts


def _sentence(verdict: dict[str, Any]) -> str:
    if not verdict["rounds"]:
        return f"is left out: {verdict['reason']}."
    held = f" What it learned holds for {plural(verdict['valid_rounds'], 'round')}." if verdict["valid_rounds"] else ""
    return f"must be trained in this world to know what it learns: {verdict['reason']}.{held}"


def repriced_in_terminal(folder: Path) -> Table:
    """One row per variant and seed of the repriced run in `folder`: times there and here, and what holds."""
    stored = json.loads((folder / "summary.json").read_text())["variants"]
    summaries = {(summary["name"], summary["seed"]): summary for summary in stored}
    verdicts = json.loads((folder / "manifest.json").read_text())["repriced"]
    several = len({verdict["seed"] for verdict in verdicts}) > 1
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("Variant")
    for title in ("Simulated time", "Time to target"):
        table.add_column(title, no_wrap=True)
    table.add_column("What it learned")
    for verdict in verdicts:
        key = verdict["variant"], verdict["seed"]
        to_target_s = summaries.get(key, {}).get("time_to_accuracy_s")
        table.add_row(
            f"{key[0]} (seed {key[1]})" if several else key[0],
            f"{_known(verdict['before_s'])} → {_known(verdict['after_s'])}",
            f"{_known(verdict['to_accuracy_before_s'])} → {_known(to_target_s)}",
            _holds(verdict),
        )
    return table


def _known(seconds: float | None) -> str:
    return "–" if seconds is None else duration(seconds)


def _holds(verdict: dict[str, Any]) -> str:
    if verdict["reason"] is None:
        return "valid"
    return f"{'must be trained' if verdict['rounds'] else 'left out'}: {verdict['reason']}"
