"""Launches the studies that write a folder: work, join the tables, describe, write the page, publish."""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from sfl_sim.build.code_version import code_version
from sfl_sim.errors import OutputError
from sfl_sim.runs.cache_key import own_code
from sfl_sim.runs.interrupts import interruptible, uninterrupted
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import Study, dump_study
from sfl_sim.store.files import writing
from sfl_sim.store.folder import RunFolder, free_folder
from sfl_sim.store.trial import Failure
from sfl_sim.training.hardware import keep_freed_memory, pick_device

PACKAGES = ["sfl-sim", "torch", "torchvision", "numpy", "simpy", "pandas", "pyarrow", "plotly"]
"""Packages whose versions a manifest contains."""


@dataclass(frozen=True)
class Outcome:
    """The folder of a study, and whether it is `complete`, `interrupted` or `failed`."""

    folder: Path
    status: str

    def ended(self) -> Path:
        """Give its folder; raises KeyboardInterrupt if it was interrupted: nothing more is made of a part."""
        if self.status == "interrupted":
            raise KeyboardInterrupt(f"{self.folder} holds what was finished by then")
        return self.folder


class TrialsFailed(RuntimeError):
    """Failure of some variants with some seeds; the rest is published all the same.

    The message names the first and its error in one line.

    Attributes:
        failures: what failed.
        outcome: the published folder, once there is one.
        again: what tries again.
    """

    outcome: Outcome | None = None

    def __init__(self, failures: Sequence[Failure], n_trials: int, again: str = "--resume") -> None:
        self.failures, self.again = failures, again
        first, *others = failures
        more = f", and {len(others)} more" if others else ""
        super().__init__(
            f"{len(failures)} of {n_trials} runs failed: {first.variant} (seed {first.seed}): {first}{more}"
        )

    def __str__(self) -> str:
        where = f"; the others are in {self.outcome.folder}, and {self.again} tries again" if self.outcome else ""
        return super().__str__() + where


def folder_of(study: Study, out: Path | None, identity: str, suffix: str = "") -> Path:
    """Return the folder `out`, or else `reports/<name><suffix>` or the next number that is free for this study."""
    return out or free_folder(Path("reports"), f"{study.name}{suffix}", identity)


def launch(
    study: Study,
    settings: Settings,
    folder: RunFolder,
    *,
    work: Callable[[], str | None],
    join: Callable[[], Mapping[str, Any]],
    page: Callable[[Path], object],
) -> Outcome:
    """Fill the folder of a study and publish it.

    Trials that are finished when the work is interrupted or fails are published, too; without any, nothing is kept but
    checkpoints.

    Args:
        work: runs trial by trial; returns a status other than `complete` if it was interrupted and kept a part.
        join: writes the tables, and returns further entries of the manifest.
        page: writes the page about a folder; drawing libraries are imported here at the earliest.

    Raises the exceptions of the work, and OutputError if nothing more can be written; finished trials then stay beside
    the folder's place.
    """
    began_s = time.monotonic()
    failure: BaseException | None = None
    try:
        with interruptible(), writing(folder.staging):
            (folder.staging / "scenario.yaml").write_text(dump_study(study))  # tells what it was, even if it is killed
            status = work() or "complete"
    except (KeyboardInterrupt, Exception) as error:
        status, failure = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed", error
    has_trials = folder.has_trials
    try:
        if failure and (isinstance(failure, OutputError) or not has_trials):
            raise failure
        with uninterrupted(), writing(folder.staging):
            about = join()
            folder.describe(manifest(study, settings, status, began_s) | dict(about))
            page(folder.staging)
            outcome = Outcome(folder.publish(), status)
    except BaseException:
        if not has_trials:  # an empty folder would only block other studies
            folder.discard()
        raise
    finally:
        folder.release()
    if isinstance(failure, TrialsFailed):
        failure.outcome = outcome
    if failure and status == "failed":
        raise failure
    return outcome


def manifest(study: Study, settings: Settings, status: str, began_s: float) -> dict[str, Any]:
    """Return the record of how and where a study was run.

    Args:
        began_s: its beginning, by `time.monotonic`.
    """
    return {
        "status": status,
        "code": code_version(),
        "own_code": {file: digest for v in study.variants for file, digest in own_code(v.scenario).items()},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": round(time.monotonic() - began_s, 3),
        "variants": len(study.variants),
        "computing": {
            key: list(dict.fromkeys(getattr(v.scenario.train, key) for v in study.variants))
            for key in ("precision", "max_graphs")
        },
        "keeps_freed_memory": not settings.timing_only and keep_freed_memory(),
        **asdict(settings),
        "device": "none" if settings.timing_only else str(pick_device(settings.device)),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
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
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "not installed"
