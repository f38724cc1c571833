"""Runs the trials of a study one by one, side by side in processes, or on a Ray cluster, with equal results.

Processes end with their parent, even if it is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import islice
from multiprocessing.managers import SyncManager
from pathlib import Path

import psutil
import torch
from joblib import cpu_count  # type: ignore[import-untyped]

from sfl_sim.errors import ScenarioError
from sfl_sim.runs.news import Failed, News, Notify, brief
from sfl_sim.runs.ray_backend import find_ray, on_ray
from sfl_sim.runs.trial import Settings, attempt
from sfl_sim.scenario.load import Variant
from sfl_sim.scenario.own_code import Permission, permission, permitted
from sfl_sim.scenario.sections import Scenario
from sfl_sim.store import Failure, RunFolder, read_failure, write_failure
from sfl_sim.training.hardware import pick_device, threads_for

BACKENDS = ("local", "ray")
WORTH_S = 10.0
"""Seconds of work from which on other processes pay: each imports torch and reads the data for itself."""
KILLED = "its process was killed, perhaps because memory ran out"


def check_backend(settings: Settings) -> None:
    """Check that the backend exists and is installed; otherwise raises ScenarioError."""
    if settings.backend not in BACKENDS:
        raise ScenarioError("no such backend", key="backend", found=settings.backend, allowed=BACKENDS)
    if settings.backend == "ray":
        find_ray()
    elif settings.address is not None:
        raise ScenarioError("is of use to the backend ray alone", key="address", found=settings.address)


def run_trials(variants: Mapping[int, Variant], folder: RunFolder, settings: Settings, notify: Notify) -> None:
    """Run the numbered trials into their folders; a trial that fails leaves a message there, and the others go on.

    If they are interrupted, trials on this machine keep their whole rounds.
    """
    if not variants:
        return
    if settings.backend == "ray":
        on_ray(variants, folder, settings, notify)
    elif settings.jobs is None:
        first, others = dict(islice(variants.items(), 1)), dict(islice(variants.items(), 1, None))
        began_s = time.monotonic()
        _one_by_one(first, folder, settings, notify)
        jobs = usual_jobs(len(others), time.monotonic() - began_s, settings)
        run_trials(others, folder, replace(settings, jobs=jobs), notify)
    elif settings.jobs == 1:
        _one_by_one(variants, folder, settings, notify)
    else:
        _side_by_side(variants, folder, settings, settings.jobs, notify)


def usual_jobs(n_trials: int, trial_s: float, settings: Settings) -> int:
    """Return how many of `n_trials` to run side by side, after one that took `trial_s` in this process.

    It is the number of physical cores, as far as each trial finds as much free memory as this process takes. It is 1
    for less than `WORTH_S` of work, on a GPU, and where a step uses several threads: they share the cores already.
    """
    if not _is_importable():
        return 1
    shares_cores = pick_device(settings.device).type != "cpu" or torch.get_num_threads() > 1
    if n_trials * trial_s < WORTH_S or (shares_cores and not settings.timing_only):
        return 1
    in_memory = psutil.virtual_memory().available // psutil.Process().memory_info().rss
    cores: int = cpu_count(only_physical_cores=True)
    return max(1, min(n_trials, cores, in_memory))


def crowd(batch_macs: float, settings: Settings) -> str | None:
    """Say that trials side by side, whose steps take `batch_macs`, have more threads than this machine has cores.

    Such threads wait for one another: two trials of gpt_small took 95 s with two threads each on two cores, and 30 s
    with one.
    """
    jobs, threads, cores = settings.jobs or 1, threads_for(batch_macs, settings.threads), cpu_count()
    if 1 in (jobs, threads) or jobs * threads <= cores or settings.timing_only or settings.backend != "local":
        return None
    shared = f"{threads} threads each share {cores} cores"
    return f"--jobs: {jobs} trials with {shared} and wait for one another; try --threads {max(1, cores // jobs)}"


def _is_importable() -> bool:
    """Return True unless the program came from standard input, where other processes cannot find it again."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return file is None or os.path.exists(file)


def _one_by_one(variants: Mapping[int, Variant], folder: RunFolder, settings: Settings, notify: Notify) -> None:
    for number, variant in variants.items():
        attempt(number, variant, folder.trial_folder(number), settings=settings, notify=notify)
        if failure := read_failure(folder.trial_folder(number)):
            notify(Failed(number, failure))


def _side_by_side(
    variants: Mapping[int, Variant], folder: RunFolder, settings: Settings, jobs: int, notify: Notify
) -> None:
    """Run trials in `jobs` processes, which are new interpreters because torch's threads do not survive a fork.

    Each worker is a pool of one process: a pool of several would be lost with the first of them that is killed.
    """
    given = given_to_processes(variant.scenario for variant in variants.values())
    context = multiprocessing.get_context("spawn")
    waiting = list(variants)

    def new_worker() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, context, end_with_parent)

    workers = {new_worker() for _ in range(min(jobs, len(waiting)))}
    running: dict[Future[None], tuple[int, ProcessPoolExecutor]] = {}
    manager = SyncManager(ctx=context)
    manager.start(end_with_parent_alone)
    with manager:
        news: queue.Queue[bytes] = manager.Queue()
        stop = manager.Event()

        def begin(worker: ProcessPoolExecutor) -> None:
            if not waiting:
                worker.shutdown(wait=False)  # frees its memory, and Ctrl-C finds no process that idles
                return
            number = waiting.pop(0)
            place = folder.trial_folder(number)
            task = number, variants[number], place, settings, given, news, stop
            running[worker.submit(_apart, *task)] = number, worker

        try:
            for worker in workers:
                begin(worker)
            while running:
                done, _ = wait(running, timeout=0.1, return_when=FIRST_COMPLETED)
                while not news.empty():
                    notify(pickle.loads(news.get()))
                for future in done:
                    number, worker = running.pop(future)
                    place = folder.trial_folder(number)
                    try:
                        future.result()
                    except BrokenProcessPool:
                        variant = variants[number]
                        write_failure(place, Failure(variant.name, variant.scenario.seed, None, KILLED))
                        workers.remove(worker)
                        workers.add(worker := new_worker())
                    if failure := read_failure(place):
                        notify(Failed(number, failure))
                    begin(worker)
        except BaseException:  # of any kind: let the trials keep their whole rounds and end
            stop.set()
            raise
        finally:
            for worker in workers:
                worker.shutdown(cancel_futures=True)


def given_to_processes(scenarios: Iterable[Scenario]) -> Permission:
    """Return the permission and the objects that other processes need to run these scenarios.

    Raises ScenarioError if they cannot get them, or would run the user's whole script, which they import first.
    """
    if not _is_importable():
        problem = "a program from standard input cannot run in several processes, which import it: write it into a file"
        raise ScenarioError(problem, key="jobs", allowed="1")
    main = sys.modules["__main__"]
    script = Path(getattr(main, "__file__", None) or "")
    if main.__spec__ is None and script.is_file() and b"__name__" not in script.read_bytes():
        problem = 'needs `if __name__ == "__main__":` around the call, since other processes import the script'
        raise ScenarioError(problem, key="jobs", file=str(script))
    return permission(*(scenario.model_dump() for scenario in scenarios))


def _apart(
    number: int,
    variant: Variant,
    place: Path,
    settings: Settings,
    given: Permission,
    news: queue.Queue[bytes],
    stop: threading.Event,
) -> None:
    def notify(item: News) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        news.put(pickle.dumps(brief(item)))  # or else the manager's process would import torch

    with permitted(given):
        attempt(number, variant, place, settings=settings, notify=notify)


def end_with_parent() -> None:
    """Let this process end as soon as its parent has ended."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def end_with_parent_alone() -> None:
    """Let this process end with its parent alone, and survive a `kill` of the group: the parent still needs it then."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
