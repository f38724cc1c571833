"""Errors that a user reads in one line."""

import difflib
import errno
import heapq
import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

USUAL_NAMES: Mapping[str, Sequence[str]] = {
    "alg": ["method"], "algorithm": ["method"], "bandwidth": ["capacity_bps", "uplink_bps"], "batch": ["batch_size"],
    "bs": ["batch_size"], "capacity": ["capacity_bps"], "client_fraction": ["participation"],
    "communication_rounds": ["rounds"], "criterion": ["loss"], "cut_layer": ["cut"], "dataset": ["data", "data.name"],
    "decay": ["weight_decay", "lr_decay"], "delay": ["latency_s"], "distance": ["latency_s"], "dp": ["noise"],
    "downlink": ["downlink_bps"], "download_rate": ["downlink_bps"], "epochs": ["local_epochs"], "eta": ["lr"],
    "flops": ["macs_per_s"], "frac": ["participation"], "fraction": ["participation"],
    "fraction_fit": ["participation"], "iterations": ["rounds"], "l2": ["weight_decay"], "latency": ["latency_s"],
    "learning_rate": ["lr"], "linkspeedraw": ["capacity_bps"], "lr_scheduler": ["schedule"],
    "max_grad_norm": ["clip_norm"], "minibatch_size": ["batch_size"], "n_clients": ["count"], "n_rounds": ["rounds"],
    "num_clients": ["count"], "num_epochs": ["local_epochs"], "num_rounds": ["rounds"], "optim": ["optimizer"],
    "ping": ["latency_s"], "policy": ["order"], "random_seed": ["seed"], "rtt": ["latency_s"],
    "sample_fraction": ["participation"], "scheduler": ["schedule", "order"], "split_layer": ["cut"],
    "strategy": ["method"], "throughput": ["capacity_bps", "uplink_bps"], "trials": ["repeats"],
    "uplink": ["uplink_bps"], "upload_rate": ["uplink_bps"], "wd": ["weight_decay"],
}  # fmt: skip
"""Names that others use, in small letters, and what the same is called here: edit distance does not know them."""
INTERRUPTED = 130
"""The exit code after Ctrl-C or `kill`."""
POINTER = b"version https://git-lfs"
"""How a file of Git LFS begins that stands for another one."""
IS_POINTER = "is a pointer of Git LFS and not the file itself, which `git lfs pull` fetches"
MAX_FOUND = 200
"""Number of characters of a value, or of a name, that an error shows."""
MAX_PROBLEM = 800
"""Number of characters of what is wrong, which may hold what a library says."""
MAX_ALLOWED = 30
"""Number of allowed words that an error shows; of more, it shows those that are nearest."""


class ScenarioError(ValueError):
    """Error in the input (exit code 2).

    Packages raise it with what they know (`problem`, `key`, `found`, `allowed`); `sfl_sim.scenario` adds `file` and
    `line`. `str(error)` is the one line that a user reads.
    """

    def __init__(
        self,
        problem: str,
        *,
        key: str | None = None,
        found: object = None,
        allowed: Iterable[object] | str | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.key = key
        self.found = found
        self.allowed = allowed if allowed is None or isinstance(allowed, str) else [str(a) for a in allowed]
        self.file = file
        self.line = line

    @property
    def nearest(self) -> str | None:
        """Allowed word that means `found`, or else is most similar to it; None if there is no similar one."""
        if self.found is None or self.allowed is None or isinstance(self.allowed, str):
            return None
        meant = USUAL_NAMES.get(str(self.found).casefold(), [])
        if known := [word for name in meant for word in self.allowed if name in (word, word.rpartition(".")[2])]:
            return known[0]
        return next(iter(self._similar), None)

    @property
    def _similar(self) -> list[str]:
        """Up to three allowed words that are similar to `found`, or have such a part, as `b` of `a/b`."""
        matcher = difflib.SequenceMatcher(b=str(self.found)[:MAX_FOUND].casefold())

        def similarity(word: str) -> float:
            ratios = []
            for text in (word.casefold(), *word.casefold().split("/")):
                matcher.set_seq1(text)
                ratios.append(matcher.ratio())
            return max(ratios)

        near = {word: ratio for word in self.allowed or () if (ratio := similarity(word)) >= 0.5}
        return heapq.nlargest(3, near, key=near.__getitem__)

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        problem = _shortened(in_one_line(self.problem), MAX_PROBLEM)
        text = ": ".join(part for part in (where, self.key and _shortened(self.key), problem) if part)
        notes = []
        if self.found is not None:
            notes.append(f"found {_shortened(repr(self.found))}")
        if self.allowed is not None:
            words = [self.allowed] if isinstance(self.allowed, str) else self.allowed
            shown = words if len(words) <= MAX_ALLOWED else [*self._similar, f"… ({len(words)} in all)"]
            notes.append(f"allowed: {', '.join(shown)}")
        if self.nearest:
            notes.append(f"did you mean {self.nearest!r}?")
        return in_one_line(text + (f" ({'; '.join(notes)})" if notes else ""))


def in_one_line(text: str) -> str:
    """Escape all characters of `text` that are not printable, such as line ends and changes of direction."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shortened(text: str, most: int = MAX_FOUND) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def in_short(error: BaseException) -> str:
    """Return the type and the message of an error that is no user's mistake, in one short line."""
    return f"{type(error).__name__}: {_shortened(in_one_line(' '.join(str(error).split())))}"


def unreadable(file: str | Path, error: BaseException) -> str:
    """Return why a file cannot be read, of which reading has ended in `error`."""
    path = Path(file)
    with suppress(OSError, RuntimeError):  # the latter for a home that nobody has
        path = path.expanduser()
        if path.is_file():  # to open a pipe would wait for somebody who writes
            with path.open("rb") as content:
                if content.read(len(POINTER)) == POINTER:
                    return IS_POINTER
    return f"cannot be read: {in_short(error)}"


def own_place(error: BaseException) -> str:
    """Return the place in a user's own code where an error was raised, as `, at FILE:LINE`; else an empty text."""
    folders = (str(Path(__file__).parent), *sysconfig.get_paths().values())
    theirs = ("<frozen", "<eval_with_key>", *(f"{folder}{os.sep}" for folder in folders))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(theirs) and not frame.filename.endswith((".pyx", ".pxd", ".pxi")):
            file, here = Path(frame.filename), Path.cwd()  # compiled code has relative names
            return f", at {file.relative_to(here) if file.is_relative_to(here) else file}:{frame.lineno}"
    return ""


@contextmanager
def calling_theirs(key: str, found: object = None, more: str = "") -> Iterator[None]:
    """Raise ScenarioError with `key` for whatever a user's own code raises, also where that ends the program."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ScenarioError(f"fails with {in_short(error)}{own_place(error)}{more}", key=key, found=found) from error


class OutputError(RuntimeError):
    """Error in writing a run, with place and reason (exit code 1). Files written before are kept as they are."""


@contextmanager
def blamed_on(*folders: object) -> Iterator[None]:
    """Raise ScenarioError for stored runs that cannot be read, or hold contents that no run would have stored."""
    try:
        yield
    except ScenarioError:
        raise
    except (OSError, LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):  # a disk, not a file
            raise
        raise ScenarioError(f"is damaged: {in_short(error)}", key="run", found=", ".join(map(str, folders))) from error


class NonFiniteError(RuntimeError):
    """Error for a number that is not finite, such as a loss that is NaN: names the first operation (exit code 1)."""


class DeadlockError(RuntimeError):
    """Error where no event is left, and flows still wait or announced jobs are missing: names them (exit code 1)."""
