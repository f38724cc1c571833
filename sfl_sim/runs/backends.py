"""Backends run the trials of a study: one by one, side by side in processes, or on a Ray cluster, with equal results.

Processes end with their parent, even if it is killed. Nodes of a cluster share no disk with us: a trial's files come
back as bytes. A node needs the same code of sfl-sim, and the scenario's files, data sets and modules at the same paths.
"""

import multiprocessing
import os
import pickle
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import islice
from multiprocessing.managers import SyncManager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch

from sfl_sim.build.code_version import code_version
from sfl_sim.errors import ScenarioError
from sfl_sim.runs.interrupts import SIGNALS, end_with_parent, shielded, uninterrupted
from sfl_sim.runs.news import Failed, News, Notify, brief
from sfl_sim.runs.trial import Settings, attempt, failure_of
from sfl_sim.scenario.load import Variant
from sfl_sim.scenario.own_code import Permission, permission, permitted
from sfl_sim.scenario.sections import Scenario
from sfl_sim.store.files import write_file
from sfl_sim.store.folder import RunFolder
from sfl_sim.store.trial import SUMMARY, Failure, read_failure, write_failure
from sfl_sim.training.hardware import pick_device, threads_for

POLL_S = 0.1
BACKENDS = ("local", "ray")
WORTH_S = 10.0
"""Seconds of work from which on other processes pay: each imports torch and reads the data for itself."""
KILLED = "its process was killed, perhaps because memory ran out"
GONE = (EOFError, ConnectionError)
"""What is raised where the process that holds the news has gone."""


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
    import psutil

    in_memory = psutil.virtual_memory().available // psutil.Process().memory_info().rss
    return max(1, min(n_trials, cpu_count(only_physical_cores=True), in_memory))


def crowd(batch_macs: float, settings: Settings) -> str | None:
    """Return the warning that trials side by side have more threads than this machine has cores; None if not.

    Such threads wait for one another: two trials of gpt_small took 95 s with two threads each on two cores, and 30 s
    with one.
    """
    jobs, threads, cores = settings.jobs or 1, threads_for(batch_macs, settings.threads), cpu_count()
    if 1 in (jobs, threads) or jobs * threads <= cores or settings.timing_only or settings.backend != "local":
        return None
    shared = f"{threads} threads each share {cores} cores"
    return f"--jobs: {jobs} trials with {shared} and wait for one another; try --threads {max(1, cores // jobs)}"


def cpu_count(*, only_physical_cores: bool = False) -> int:
    """Return the number of cores that this process may use."""
    from joblib import cpu_count as count  # takes 0.1 s to import

    return int(count(only_physical_cores=only_physical_cores))


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
        return ProcessPoolExecutor(1, context, _begin_worker)

    workers = {new_worker() for _ in range(min(jobs, len(waiting)))}
    running: dict[Future[None], tuple[int, ProcessPoolExecutor]] = {}
    manager = SyncManager(ctx=context)
    with ExitStack() as ends:
        with _answering(), shielded():  # the parent needs it still when the whole group is killed
            manager.start(end_with_parent)
            ends.enter_context(manager)
        news: queue.Queue[bytes] = manager.Queue()
        stop = manager.Event()

        def begin(worker: ProcessPoolExecutor) -> None:
            if not waiting:
                worker.shutdown(wait=False)  # frees its memory, and Ctrl-C finds no process that idles
                return
            number = waiting.pop(0)
            task = number, variants[number], folder.trial_folder(number), settings, given, news, stop
            with shielded():  # or else nobody would know of a process that has just begun
                running[worker.submit(_apart, *task)] = number, worker

        try:
            for worker in workers:
                begin(worker)
            while running:
                # an interrupt within `wait` would leave a future locked, and its thread's end be waited for for ever
                with _answering(), uninterrupted():
                    done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                    told = [news.get() for _ in range(news.qsize())]
                for item in told:
                    notify(pickle.loads(item))
                for future in done:
                    number, worker = running.pop(future)
                    trial = folder.trial_folder(number)
                    try:
                        future.result()
                    except BrokenProcessPool:
                        variant = variants[number]
                        write_failure(trial, Failure(variant.name, variant.scenario.seed, None, KILLED))
                        workers.remove(worker)
                        workers.add(worker := new_worker())
                    if failure := read_failure(trial):
                        notify(Failed(number, failure))
                    begin(worker)
        except BaseException:  # of any kind: let the trials keep their whole rounds and end
            with suppress(*GONE):
                stop.set()
            raise
        finally:
            for worker in workers:
                worker.shutdown(cancel_futures=True)


@contextmanager
def _answering() -> Iterator[None]:
    """Raise RuntimeError, with a sentence, if the process that holds the news of others has gone."""
    try:
        yield
    except GONE as error:
        raise RuntimeError(f"the helper of --jobs does not answer: {KILLED}") from error


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
    trial: Path,
    settings: Settings,
    given: Permission,
    news: queue.Queue[bytes],
    stop: threading.Event,
) -> None:
    def notify(item: News) -> None:
        try:
            if stop.is_set():
                raise KeyboardInterrupt
            news.put(pickle.dumps(brief(item)))  # or else the manager's process would import torch
        except GONE:
            raise KeyboardInterrupt from None

    with permitted(given):
        attempt(number, variant, trial, settings=settings, notify=notify)


def _begin_worker() -> None:
    """Let this process end with its parent, and get signals from now on: what it imports would show a traceback."""
    end_with_parent()
    if hasattr(signal, "sigpending"):
        if signal.sigpending() & {*SIGNALS}:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def find_ray() -> ModuleType:
    """Return Ray, or raise ScenarioError if it is not installed."""
    try:
        import ray
    except ModuleNotFoundError as error:
        problem = "Ray is not installed; it comes with pip install 'sfl-sim[ray]'"
        raise ScenarioError(problem, key="--ray", found="ray") from error
    return ray


def on_ray(variants: Mapping[int, Variant], folder: RunFolder, settings: Settings, notify: Notify) -> None:
    """Run every trial as a task with as many CPUs as a trial may use threads, and its share of a GPU.

    If they are interrupted, only trials that are finished are kept.
    """
    ray = find_ray()
    device = "cpu" if settings.timing_only else pick_device(settings.device).type
    resources = {
        "num_cpus": 1 if settings.timing_only else settings.threads,
        "num_gpus": 1 / (settings.jobs or 1) if device == "cuda" else 0,
    }
    with connected(ray, settings.address):
        _require_room(ray, **resources)
        from ray.util.queue import Queue

        given = permission(*(variant.scenario.model_dump() for variant in variants.values()))

        news = Queue(actor_options={"num_cpus": 0})
        task = ray.remote(max_retries=0, **resources)(_elsewhere)
        paths = [os.path.abspath(path) for path in sys.path]
        same = replace(settings, device=device), given, news, code_version(), paths
        running = {task.remote(number, variant, *same): number for number, variant in variants.items()}
        try:
            while running:
                done, _ = ray.wait(list(running), timeout=POLL_S)
                for item in news.get_nowait_batch(news.qsize()):
                    notify(pickle.loads(item))
                for result in done:
                    number = running.pop(result)
                    _settle(ray, result, variants[number], folder.trial_folder(number))
                    if failure := read_failure(folder.trial_folder(number)):
                        notify(Failed(number, failure))
        finally:
            for result in running:  # we have been interrupted
                ray.cancel(result)
            news.shutdown()


def _require_room(ray: ModuleType, num_cpus: float, num_gpus: float) -> None:
    """Check that some node can take the tasks: otherwise Ray would wait for ever without a message."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= num_cpus and node.get("GPU", 0) >= num_gpus for node in nodes):
        problem = f"no node of the cluster has so many CPUs{' beside a GPU' if num_gpus else ''}"
        most = max((node.get("CPU", 0) for node in nodes), default=0)
        raise ScenarioError(problem, key="--threads", found=num_cpus, allowed=f"up to {most:g}")


def _elsewhere(
    number: int, variant: Variant, settings: Settings, given: Permission, news: Any, code: str, paths: Sequence[str]
) -> dict[str, bytes]:
    """Run a trial on a node, with `paths` on its module path for a user's own code; return the trial's files."""
    sys.path.extend(path for path in paths if path not in sys.path)
    if code_version() != code:
        raise RuntimeError("this node has other code than the machine where the study was begun")
    with TemporaryDirectory() as folder:
        trial = Path(folder, "trial")

        def notify(item: News) -> None:
            news.put(pickle.dumps(brief(item)))  # or else the queue's own process would import torch

        with permitted(given):
            attempt(number, variant, trial, settings=settings, notify=notify)
        return {path.name: path.read_bytes() for path in trial.iterdir()}


def _settle(ray: ModuleType, result: Any, variant: Variant, trial: Path) -> None:
    """Write a task's files into the trial's folder, or the reason why there are none."""
    shutil.rmtree(trial, ignore_errors=True)  # what an earlier run left unfinished
    try:
        files = ray.get(result)
    except ray.exceptions.RayError as error:
        write_failure(trial, failure_of(variant, getattr(error, "cause", None) or error), str(error))
        return
    trial.mkdir(parents=True)
    for name in sorted(files, key=lambda name: name == SUMMARY):  # which closes the trial
        write_file(trial / name, files[name])


@contextmanager
def connected(ray: ModuleType, address: str | None) -> Iterator[None]:
    """Connect to the cluster, or to a Ray on this machine that ends with the block; an existing connection is kept."""
    if ray.is_initialized():
        yield
        return
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address or "local", include_dashboard=None if address else False, log_to_driver=False, logging_level="error"
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ScenarioError(f"cannot be reached: {reason}", key="--ray", found=address) from error
    if is_main:
        signal.signal(signal.SIGTERM, before)  # Ray has set one that ends this process on the spot
    try:
        yield
    finally:
        ray.shutdown()
