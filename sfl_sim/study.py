"""A study is a scenario x its grid x its seeds: run every cell, join what they give, report, publish."""

from __future__ import annotations

import multiprocessing
import os
import platform
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from sfl_sim.compose import Experiment, Round
from sfl_sim.config.source import Study, Variant, digest, dump_study
from sfl_sim.errors import ScenarioError
from sfl_sim.execute.allocator import keep_freed_memory
from sfl_sim.execute.device import pick_device
from sfl_sim.execute.precision import PRECISIONS
from sfl_sim.execute.threads import threads_for
from sfl_sim.metrics.accuracy import headline
from sfl_sim.records import BREAKDOWN
from sfl_sim.store import Cell, RunFolder, free_folder, read_manifest

MAX_NAME = 100
MAX_NUMBER = 2**31


@dataclass(frozen=True)
class Settings:
    """How a study is run; none of it changes what is simulated, and `jobs` and `resume` not a single bit.

    What a user may trade bits for speed with besides, `train.precision` and `train.compile`, stands in the scenario.

    Attributes:
        timing_only: walk the timeline without training.
        device: `auto`, `cpu`, `cuda`, ...
        jobs: cells run side by side in processes.
        threads: intra-op threads that a cell may use; results differ in the last bits with their number, so it does
            not depend on `jobs`.
        resume: keep the cells that an interrupted run of the same scenario has finished.
    """

    timing_only: bool = False
    device: str = "auto"
    jobs: int = 1
    threads: int = torch.get_num_threads()
    resume: bool = False

    @property
    def meaning(self) -> str:
        """What besides the scenario decides the bits of a result."""
        return "timing" if self.timing_only else f"{pick_device(self.device).type}-{self.threads}-threads"


Notify = Callable[[int, Round], None]
"""Called with the number of a cell and the round that it has just finished."""


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
            if device is not None:
                experiment.check_device(device)
        except ScenarioError as error:
            raise variant.places.located(error) from error


def run_study(study: Study, out: Path | None, settings: Settings, notify: Notify) -> Outcome:
    """Run all cells of `study` into the folder `out` (default: `reports/<name>`, or the next free number).

    An interrupted or failed study keeps the rounds that were finished. Raises ScenarioError for bad input before any
    training, and whatever made a cell fail after what there is has been published.
    """
    device = pick_device(settings.device)
    _check_limits(study)
    check(study, None if settings.timing_only else device)
    identity = f"{digest(study)}-{settings.meaning}"
    place = out or free_folder(Path("reports"), study.name, identity)
    if settings.resume and read_manifest(place).items() >= {"scenario": identity, "status": "complete"}.items():
        return Outcome(place, "complete")
    folder = RunFolder(place, identity, resume=settings.resume)
    began_s, status, failure = time.monotonic(), "complete", None
    try:
        numbers = [n for n, v in enumerate(study.variants) if not folder.finished(n, v.scenario.train.rounds)]
        run = _one_by_one if settings.jobs == 1 else _side_by_side
        run({n: study.variants[n] for n in numbers}, folder, settings, notify)
    except KeyboardInterrupt:
        status = "interrupted"
    except Exception as error:
        status, failure = "failed", error
    if status != "complete" and not any(folder.staging.glob("cells/*/summary.json")):
        folder.discard()
        if failure:
            raise failure
        raise KeyboardInterrupt
    with _uninterrupted():
        staged = folder.join(study.name, dump_study(study), _manifest(study, settings, status, began_s))
        from sfl_sim.report.page import write_report  # plotly is imported when the first round has long begun
        from sfl_sim.report.perfetto import write_trace

        write_trace(staged)
        write_report([staged], staged / "report.html")
        outcome = Outcome(folder.publish(), status)
    if failure:
        raise failure
    return outcome


def _check_limits(study: Study) -> None:
    """The name is that of a folder, and seeds and rounds are whole numbers of 32 bits in the tables."""
    for key, number in [("seed", study.base.seed + study.base.repeats), ("train.rounds", study.base.train.rounds)]:
        if number > MAX_NUMBER:
            raise study.located(ScenarioError("is too large", key=key, allowed=f"less than {MAX_NUMBER}"))
    if Path(study.name).name != study.name or study.name.startswith(".") or len(study.name) > MAX_NAME:
        allowed = f"up to {MAX_NAME} characters without a slash, not starting with a dot"
        error = ScenarioError("cannot name a folder", key="name", found=study.name, allowed=allowed)
        raise study.located(error)


def _one_by_one(variants: Mapping[int, Variant], folder: RunFolder, settings: Settings, notify: Notify) -> None:
    for number, variant in variants.items():
        _run_cell(number, variant, folder.cell_folder(number), settings, notify)


def _run_cell(number: int, variant: Variant, place: Path, settings: Settings, notify: Notify) -> None:
    """Run one variant with one seed into its folder; on the way out, whatever the reason, keep the whole rounds."""
    scenario = variant.scenario
    device = None if settings.timing_only else pick_device(settings.device)
    experiment = Experiment(scenario, device)
    keep_freed_memory()
    torch.set_num_threads(threads_for(experiment.batch_macs, settings.threads))
    PRECISIONS[scenario.train.precision].activate()
    cell = Cell(place, variant.name, scenario.seed)
    cell.add_clients(experiment.clients())
    cell.add_layers(experiment.layers())
    rounds = experiment.rounds()
    try:
        while (round := next(rounds, None)) is not None:
            with _uninterrupted():
                cell.add_round(round.row, round.labels, round.ops)
                notify(number, round)
    finally:
        with _uninterrupted():
            if not cell.rounds.empty:
                if device is not None:
                    cell.add_weights(experiment.weights(), {"variant": variant.name, "seed": scenario.seed,
                                                            "round": len(cell.rounds)})  # fmt: skip
                cell.close(_summary(variant, cell, experiment))


def _summary(variant: Variant, cell: Cell, experiment: Experiment) -> dict[str, Any]:
    scenario, rounds = variant.scenario, cell.rounds
    return {
        "name": variant.name,
        "method": scenario.method.name,
        "seed": scenario.seed,
        "rounds": len(rounds),
        "simulated_s": float(rounds["ended_s"].iloc[-1]),
        **headline(rounds, cell.labels, scenario.report.target_accuracy),
        "bytes_up": int(rounds["bytes_up"].sum()),
        "bytes_down": int(rounds["bytes_down"].sum()),
        "timeline_digest": experiment.timeline_digest,
        "weights_digest": experiment.weights_digest(),
        "breakdown_s": {name: float(rounds[f"{name}_s"].sum()) for name in BREAKDOWN},
        "executor": experiment.executor.name,
        "threads": torch.get_num_threads(),
        "peak_graphs": None if experiment.device is None else experiment.calling.graphs.peak,
    }


def _side_by_side(variants: Mapping[int, Variant], folder: RunFolder, settings: Settings, notify: Notify) -> None:
    """Every cell in a process of its own; a new interpreter each, since torch's threads do not survive a fork."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        news: queue.Queue[tuple[int, Round]] = manager.Queue()
        stop = manager.Event()
        with ProcessPoolExecutor(settings.jobs, context) as pool:
            running = {
                pool.submit(_run_cell_apart, number, variant, folder.cell_folder(number), settings, news, stop)
                for number, variant in variants.items()
            }
            try:
                while running:
                    done, running = wait(running, timeout=0.1, return_when=FIRST_COMPLETED)
                    while not news.empty():
                        notify(*news.get())
                    for future in done:
                        future.result()
            except BaseException:  # of whatever kind: let the cells keep their whole rounds and end
                stop.set()
                pool.shutdown(cancel_futures=True)
                raise


def _run_cell_apart(
    number: int,
    variant: Variant,
    place: Path,
    settings: Settings,
    news: queue.Queue[tuple[int, Round]],
    stop: threading.Event,
) -> None:
    def notify(number: int, round: Round) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        news.put((number, Round(round.row, [], round.ops[:0])))

    _run_cell(number, variant, place, settings, notify)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done, so that what is written is whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _manifest(study: Study, settings: Settings, status: str, began_s: float) -> dict[str, Any]:
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
