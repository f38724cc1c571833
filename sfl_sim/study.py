"""A study is a scenario x its grid x its seeds: run every cell, join what they give, report, publish."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from sfl_sim.cells import Notify, Settings, run_cells, uninterrupted
from sfl_sim.compose import Experiment
from sfl_sim.config.source import Study, digest, dump_study
from sfl_sim.errors import ScenarioError
from sfl_sim.execute.allocator import keep_freed_memory
from sfl_sim.execute.device import pick_device
from sfl_sim.store import RunFolder, free_folder, read_manifest
from sfl_sim.targets import references, ways

MAX_NAME = 100
MAX_NUMBER = 2**31


@dataclass(frozen=True)
class Outcome:
    """Where a run lies, and whether it is `complete`, `interrupted` or `failed`."""

    folder: Path
    status: str


def check(study: Study, device: torch.device | None = None) -> None:
    """Compose every variant without running it, so that a mistake in the last one shows before the first trains.

    With a `device` that is to train, refuse what it cannot compute.
    """
    for variant in study.variants:
        try:
            experiment = Experiment(variant.scenario, device=None)
            if variant.scenario.serving or variant.scenario.report.representations:
                experiment.method.deployed(0)
            if device is not None:
                experiment.check_device(device)
        except ScenarioError as error:
            raise variant.places.located(error) from error
    references(study)


def run_study(study: Study, out: Path | None, settings: Settings, notify: Notify) -> Outcome:
    """Run all cells of `study` into the folder `out` (default: `reports/<name>`, or the next free number).

    An interrupted or failed study keeps the rounds that were finished. Raises ScenarioError for bad input before any
    training, and whatever made a cell fail after what there is has been published.
    """
    device = pick_device(settings.device)
    check_limits(study)
    check(study, None if settings.timing_only else device)
    identity = f"{digest(study)}-{settings.meaning}"
    place = out or free_folder(Path("reports"), study.name, identity)
    if settings.resume and read_manifest(place).items() >= {"scenario": identity, "status": "complete"}.items():
        return Outcome(place, "complete")
    folder = RunFolder(place, identity, resume=settings.resume)
    began_s = time.monotonic()

    def train() -> None:
        numbers = [n for n, v in enumerate(study.variants) if not folder.finished(n, v.scenario.train.rounds)]
        run_cells({n: study.variants[n] for n in numbers}, folder, settings, notify)

    def join(status: str) -> None:
        about = manifest(study, settings, status, began_s)
        staged = folder.join(study.name, dump_study(study), about, ways(study, folder.closed()))
        from sfl_sim.report.page import write_report  # plotly is imported when the first round has long begun
        from sfl_sim.report.perfetto import write_trace

        write_trace(staged)
        write_report([staged], staged / "report.html")

    return fill(folder, train, join)


def fill(folder: RunFolder, work: Callable[[], None], join: Callable[[str], None]) -> Outcome:
    """Do the `work` of all cells, `join` what they left, given the status, and publish the folder.

    If the work is interrupted or fails, what is finished is published nevertheless, and nothing is left if nothing is.
    """
    status, failure = "complete", None
    try:
        work()
    except KeyboardInterrupt:
        status = "interrupted"
    except Exception as error:
        status, failure = "failed", error
    if status != "complete" and not any(folder.staging.glob("cells/*/summary.json")):
        folder.discard()
        if failure:
            raise failure
        raise KeyboardInterrupt
    with uninterrupted():
        join(status)
        outcome = Outcome(folder.publish(), status)
    if failure:
        raise failure
    return outcome


def check_limits(study: Study) -> None:
    """Refuse a name that cannot be a folder's, and seeds and rounds that are no whole numbers of 32 bits."""
    for key, number in [("seed", study.base.seed + study.base.repeats), ("train.rounds", study.base.train.rounds)]:
        if number > MAX_NUMBER:
            raise study.located(ScenarioError("is too large", key=key, allowed=f"less than {MAX_NUMBER}"))
    if Path(study.name).name != study.name or study.name.startswith(".") or len(study.name) > MAX_NAME:
        allowed = f"up to {MAX_NAME} characters without a slash, not starting with a dot"
        error = ScenarioError("cannot name a folder", key="name", found=study.name, allowed=allowed)
        raise study.located(error)


def manifest(study: Study, settings: Settings, status: str, began_s: float) -> dict[str, Any]:
    """How and where it was done, for whoever finds the folder."""
    packages = ["sfl-sim", "torch", "torchvision", "numpy", "simpy", "pandas", "pyarrow", "plotly"]
    return {
        "status": status,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": round(time.monotonic() - began_s, 3),
        "variants": len(study.variants),
        "computing": {
            key: list(dict.fromkeys(getattr(v.scenario.train, key) for v in study.variants))
            for key in ("executor", "precision", "compile", "max_graphs")
        },
        "keeps_freed_memory": keep_freed_memory(),
        **asdict(settings),
        "device": "none" if settings.timing_only else str(pick_device(settings.device)),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "machine": {
            "system": platform.platform(),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except ModuleNotFoundError:  # run from a checkout that is not installed
        return "not installed"
