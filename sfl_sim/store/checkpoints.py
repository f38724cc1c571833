"""Checkpoints of a running trial: each is complete or absent, and verified by checksums.

`rounds.jsonl` has a line with the results of every whole round, and only grows. A folder `round-000012` contains the
memory at the end of that round, in `memory.pt`, and a `checkpoint.json` with the checksums of that file, of the lines
of `rounds.jsonl` until then, and of itself. The two newest are kept, in case the newest cannot be read.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfl_sim.store.files import contents, read_regular, remove, settle, write_file

CHECKPOINTS = "checkpoints"
"""Name of the folder of checkpoints within a trial's folder."""
ABOUT, MEMORY, ROUNDS, UNFINISHED = "checkpoint.json", "memory.pt", "rounds.jsonl", "unfinished"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read.

    Attributes:
        folder: its folder.
        about: its description, a JSON mapping.
        memory: contents of memory, as bytes that are not interpreted here.
        rounds: results of the whole rounds before it, a JSON value each.
    """

    folder: Path
    about: Mapping[str, Any]
    memory: bytes
    rounds: list[Any]


class Checkpoints:
    """Checkpoints in the folder of a trial, which must exist when one is saved."""

    def __init__(self, trial: Path) -> None:
        self.folder = trial / CHECKPOINTS
        self._last: str | None = None
        self._waiting: list[bytes] = []
        self._rounds = hashlib.sha256()
        self._rounds_bytes = 0

    def __iter__(self) -> Iterator[Path]:
        """Iterate over the folders of possible checkpoints, the newest first."""
        return iter(sorted((path.parent for path in self.folder.glob(f"round-*/{ABOUT}")), reverse=True))

    def readable(self, refuse: Callable[[str], object]) -> Iterator[Checkpoint]:
        """Generate the complete checkpoints, the newest first; `refuse` is called with the problem of any other."""
        for folder in self:
            try:
                yield self._read(folder)
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                refuse(f"{folder} is damaged ({error})")

    def go_on_after(self, checkpoint: Checkpoint | None) -> None:
        """Continue after a checkpoint, or begin anew."""
        self._last = checkpoint.folder.name if checkpoint else None
        n_bytes = checkpoint.about["rounds"]["bytes"] if checkpoint else 0
        if not checkpoint:
            remove(self.folder)
        self.folder.mkdir(exist_ok=True)
        with open(self.folder / ROUNDS, "a+b") as file:
            file.truncate(n_bytes)
            file.seek(0)
            self._rounds, self._rounds_bytes = hashlib.sha256(file.read()), n_bytes

    def add_round(self, learned: Any) -> None:
        """Keep the results of a whole round, to be written with the next checkpoint."""
        self._waiting.append(json.dumps(learned).encode() + b"\n")

    def save(self, name: str, about: Mapping[str, Any], memory: bytes) -> None:
        """Write a checkpoint, then remove all but the two newest."""
        self._write_rounds()
        part, place = self.folder / UNFINISHED, self.folder / name
        for path in (part, place):
            remove(path)
        part.mkdir()
        rounds = {"bytes": self._rounds_bytes, "sha256": self._rounds.hexdigest()}
        described = {**about, "rounds": rounds, "memory": {"sha256": hashlib.sha256(memory).hexdigest()}}
        write_file(part / MEMORY, memory)
        write_file(part / ABOUT, json.dumps({"sha256": _sum(described), "checkpoint": described}).encode())
        settle(part)
        os.replace(part, place)
        settle(self.folder)
        for folder in self.folder.glob("round-*"):
            if folder.name not in (name, self._last):
                remove(folder)
        self._last = name

    def remove(self) -> None:
        """Remove all checkpoints."""
        remove(self.folder)

    def _write_rounds(self) -> None:
        with open(self.folder / ROUNDS, "r+b") as file:
            file.truncate(self._rounds_bytes)  # what a write that failed has left
            file.seek(self._rounds_bytes)
            file.writelines(self._waiting)
            file.flush()
            os.fsync(file.fileno())
        for line in self._waiting:
            self._rounds.update(line)
            self._rounds_bytes += len(line)
        self._waiting.clear()

    def _read(self, folder: Path) -> Checkpoint:
        stored = contents(folder / ABOUT)
        described = stored["checkpoint"]
        memory = read_regular(folder / MEMORY)
        lines = read_regular(self.folder / ROUNDS)[: described["rounds"]["bytes"]]
        sums = {
            ABOUT: (stored["sha256"], _sum(described)),
            MEMORY: (described["memory"]["sha256"], hashlib.sha256(memory).hexdigest()),
            ROUNDS: (described["rounds"]["sha256"], hashlib.sha256(lines).hexdigest()),
        }
        if wrong := [name for name, (expected, is_now) in sums.items() if expected != is_now]:
            raise ValueError(f"{', '.join(wrong)} is not what was written")
        return Checkpoint(folder, described, memory, [json.loads(line) for line in lines.splitlines()])


def _sum(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
