"""What of a dear proof runs with a commit: a sample, drawn by the commit. `pytest -m night` runs all of it.

A test marked `night` is dear. Of its cases, a commit runs those that are marked `drawn` too, in every process the same.
"""

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def git(*words: str) -> str | None:
    """Return what a git command prints about this checkout; None if it fails, as outside of a repository."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


COMMIT = git("rev-parse", "HEAD") or "no commit"


def drawn(cases: Sequence[object], n: int, why: str) -> list:
    """Return n of the cases, or all if they are fewer, drawn by the commit and by what they are drawn for."""
    return random.Random(f"{COMMIT} {why}").sample(list(cases), min(n, len(cases)))


def changed_files() -> set[str] | None:
    """Return the files that are not as where this branch has left main (on main: as one commit ago); None: unknown."""
    left = git("merge-base", "HEAD", "main")
    if left in (None, COMMIT):
        left = "HEAD~1"
    names = git("diff", "--name-only", left)
    return None if names is None else set(names.splitlines())


def at_night(config: pytest.Config) -> bool:
    """Return True if dear proofs run in full: `pytest -m night`, or a test is named by itself (FILE::TEST)."""
    return "night" in config.option.markexpr or any("::" in word for word in config.args)
