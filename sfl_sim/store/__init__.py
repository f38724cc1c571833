"""Run folders and their columns.

While a run is under way its files lie in `<out>.partial`, one trial for every variant and seed; `join` makes of the
trials the tables that docs/output.md describes, and `publish` moves them. So a folder at `<out>` is always readable.
"""

from sfl_sim.store.checkpoints import Checkpoint, Checkpoints
from sfl_sim.store.earlier import Wanted, no_run, runs_beside, take
from sfl_sim.store.files import damaged, models_of, read_manifest, write_file, writing
from sfl_sim.store.folder import RunFolder, changed_files, check_unchanged, free_folder, is_begun, keys_of
from sfl_sim.store.trial import (
    SUMMARY,
    Failure,
    TrialWriter,
    clear,
    is_whole,
    read_failure,
    rounds_of,
    write_failure,
    write_served,
)

__all__ = [
    "SUMMARY",
    "Checkpoint",
    "Checkpoints",
    "Failure",
    "RunFolder",
    "TrialWriter",
    "Wanted",
    "changed_files",
    "check_unchanged",
    "clear",
    "damaged",
    "free_folder",
    "is_begun",
    "is_whole",
    "keys_of",
    "models_of",
    "no_run",
    "read_failure",
    "read_manifest",
    "rounds_of",
    "runs_beside",
    "take",
    "write_failure",
    "write_file",
    "write_served",
    "writing",
]
