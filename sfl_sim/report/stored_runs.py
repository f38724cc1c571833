"""Folders of runs, servings and what-ifs side by side: when each was written, whether it is finished, what differs."""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from sfl_sim.errors import ScenarioError
from sfl_sim.report.comparison import differing, short_text
from sfl_sim.report.load import ABOUT, flat
from sfl_sim.scenario import yaml_text
from sfl_sim.store.files import read_json, read_manifest

MAX_NAMED, MAX_LETTERS = 3, 30
"""Number of differences that are named, and of letters of a value."""
COMPUTED = "timing_only", "device", "threads"
"""Keys of the manifest in which runs of a scenario differ that have different folders."""
STATES = {"complete": "finished", "running": "not finished"}
"""What is said of a status of the manifest; of others, the status."""


class StoredRun(NamedTuple):
    """A folder of `stored_runs`.

    Attributes:
        name: its path below the folder of all.
        when: when it was written last, in local time.
        state: finished, interrupted or failed; or not finished: it is under way, or was killed.
        differs: what differs from the folder before it, as `key before → now`; empty if it is the first of its name.
        wall_s: seconds that it took to compute; None if it does not tell.
    """

    name: str
    when: datetime
    state: str
    differs: str
    wall_s: float | None


def stored_runs(reports: Path) -> list[StoredRun]:
    """Return the folders below `reports`, by name, and those of a name (`mine`, `mine-2`, ...) by their time."""
    paths = [path for inside in ("", "[!.]*/") for path in reports.glob(f"[!.]*/{inside}manifest.json")]  # benchmarks'
    manifests = {path.parent.relative_to(reports).as_posix(): read_manifest(path.parent) for path in paths}
    times = {name: _written(reports / name, manifest) for name, manifest in manifests.items()}
    in_turn = sorted(manifests, key=lambda name: (_unnumbered(name), times[name], len(name), name))
    runs = []
    for _, names in groupby(in_turn, _unnumbered):
        before: Mapping[str, Any] = {}
        for name in names:
            now, status = _settings(reports / name, manifests[name]), str(manifests[name].get("status"))
            differs = _in_short(before, now) if before and now else ""
            wall_s = manifests[name].get("wall_s")
            runs.append(StoredRun(name, times[name], STATES.get(status, status), differs, wall_s))
            before = now or before
    return runs


def _unnumbered(name: str) -> str:
    return re.sub(r"(-\d+)?(\.partial)?$", "", name)


def _written(folder: Path, manifest: Mapping[str, Any]) -> datetime:
    with suppress(ValueError, TypeError):
        return datetime.fromisoformat(manifest.get("created")).astimezone()  # type: ignore[arg-type]
    return datetime.fromtimestamp((folder / "manifest.json").stat().st_mtime).astimezone()


def _settings(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked, by dotted key; empty if the folder does not tell."""
    try:
        scenario, _ = yaml_text.read(folder / "scenario.yaml")
    except ScenarioError:
        return {}
    axes = {f"--vary {axis['key']}": axis["values"] for axis in read_json(folder / ABOUT["whatif"]).get("axes", [])}
    return flat(scenario) | axes | {key: manifest[key] for key in COMPUTED if key in manifest}


def _in_short(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    unknown = {key for key in COMPUTED if key not in before or key not in now}  # of a run that is not finished
    changes = differing(sorted({**before, **now}.keys() - unknown), [before, now])
    named = [f"{key} {' → '.join(short_text(text, MAX_LETTERS) for text in texts)}" for key, texts in changes.items()]
    more = [f"{len(named) - MAX_NAMED} more"] if len(named) > MAX_NAMED else []
    return "; ".join(named[:MAX_NAMED] + more) or "nothing"
