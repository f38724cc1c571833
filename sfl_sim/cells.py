"""The cells of a study, each one variant with one seed: run one by one, or side by side in processes."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from sfl_sim.compose import Experiment, Round
from sfl_sim.config.data import RhoOod
from sfl_sim.config.source import Variant
from sfl_sim.execute.allocator import keep_freed_memory
from sfl_sim.execute.device import pick_device
from sfl_sim.execute.precision import PRECISIONS
from sfl_sim.execute.threads import threads_for
from sfl_sim.metrics.accuracy import headline
from sfl_sim.metrics.exits import HEADLINE
from sfl_sim.records import BREAKDOWN
from sfl_sim.store import Cell, RunFolder


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


def run_cells(variants: Mapping[int, Variant], folder: RunFolder, settings: Settings, notify: Notify) -> None:
    """Run the numbered cells into their folders; an interrupted one keeps its whole rounds."""
    run = _one_by_one if settings.jobs == 1 else _side_by_side
    run(variants, folder, settings, notify)


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
            with uninterrupted():
                cell.add_round(round.row, round.labels, round.ops, round.confusion)
                cell.add_final(round.final)
                notify(number, round)
    finally:
        with uninterrupted():
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
        "method_options": experiment.method.options.model_dump(mode="json"),
        "seed": scenario.seed,
        "rounds": len(rounds),
        "simulated_s": float(rounds["ended_s"].iloc[-1]),
        **headline(rounds, cell.labels),
        **_last(rounds, HEADLINE),
        "rho": scenario.data.test.rho if isinstance(scenario.data.test, RhoOod) else None,
        "bytes_up": int(rounds["bytes_up"].sum()),
        "bytes_down": int(rounds["bytes_down"].sum()),
        "timeline_digest": experiment.timeline_digest,
        "weights_digest": experiment.weights_digest(),
        "breakdown_s": {name: float(rounds[f"{name}_s"].sum()) for name in BREAKDOWN},
        "server_model_bytes": experiment.server_model_bytes,
        "executor": experiment.executor.name,
        "threads": torch.get_num_threads(),
        "peak_graphs": None if experiment.device is None else experiment.method.task.network.calling.graphs.peak,
    }


def _last(rounds: pd.DataFrame, columns: Sequence[str]) -> dict[str, float | None]:
    """What the last round's row says; None where it says nothing."""
    known = rounds.reindex(columns=list(columns)).astype(float).iloc[-1].dropna()
    return {column: known.get(column) for column in columns}


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
    parent = multiprocessing.parent_process()

    def notify(number: int, round: Round) -> None:
        if (parent and not parent.is_alive()) or stop.is_set():
            raise KeyboardInterrupt
        news.put((number, Round(round.row, [], round.ops[:0])))

    _run_cell(number, variant, place, settings, notify)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and `kill` back until the block is done, so that what is written is whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: pressed.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if pressed:
        raise KeyboardInterrupt
