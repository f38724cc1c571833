"""Runs trials as tasks of a Ray cluster, whose nodes share no disk with us: a trial's files come back as bytes.

A node needs the same code of sfl-sim, and the scenario's files, data sets and modules at the same paths.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from sfl_sim.build.code_version import code_version
from sfl_sim.errors import ScenarioError
from sfl_sim.runs.news import Failed, News, Notify, brief
from sfl_sim.runs.trial import Settings, attempt, failure_of
from sfl_sim.scenario.load import Variant
from sfl_sim.scenario.own_code import Permission, permission, permitted
from sfl_sim.store import SUMMARY, RunFolder, read_failure, write_failure, write_file
from sfl_sim.training.hardware import pick_device

POLL_S = 0.1


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
        places = [os.path.abspath(place) for place in sys.path]
        same = replace(settings, device=device), given, news, code_version(), places
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
    number: int, variant: Variant, settings: Settings, given: Permission, news: Any, code: str, places: Sequence[str]
) -> dict[str, bytes]:
    """Run a trial on a node, with `places` on its module path for a user's own code; gives the trial's files."""
    sys.path.extend(place for place in places if place not in sys.path)
    if code_version() != code:
        raise RuntimeError("this node has other code than the machine where the study was begun")
    with TemporaryDirectory() as place:
        trial = Path(place, "trial")

        def notify(item: News) -> None:
            news.put(pickle.dumps(brief(item)))  # or else the queue's own process would import torch

        with permitted(given):
            attempt(number, variant, trial, settings=settings, notify=notify)
        return {path.name: path.read_bytes() for path in trial.iterdir()}


def _settle(ray: ModuleType, result: Any, variant: Variant, place: Path) -> None:
    """Write a task's files into the trial's folder, or the reason why there are none."""
    shutil.rmtree(place, ignore_errors=True)  # what an earlier run left unfinished
    try:
        files = ray.get(result)
    except ray.exceptions.RayError as error:
        write_failure(place, failure_of(variant, getattr(error, "cause", None) or error), str(error))
        return
    place.mkdir(parents=True)
    for name in sorted(files, key=lambda name: name == SUMMARY):  # which closes the trial
        write_file(place / name, files[name])


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
