"""Backends: each gives the same bits, and the failure of a trial does not stop the others."""

import os
import signal
import subprocess
import sys
import time
import weakref
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest
import torch
from small_study import TIMING, Log, poisoned_study, run, study, summaries

from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.runs.backends import KILLED, check_backend, crowd, usual_jobs
from sfl_sim.runs.news import Began, Ended, Failed, Reused
from sfl_sim.runs.trial import Settings
from sfl_sim.store.files import read_manifest
from sfl_sim.store.trial import Failure

pytestmark = pytest.mark.usefixtures("without_pages")


@pytest.fixture
def poison(tmp_path):
    path = tmp_path / "poison"
    path.write_text("no <more>\nof this")
    return path


@pytest.fixture(autouse=True)
def no_page(monkeypatch):
    """Plotly is slow; these tests are not about the page."""
    monkeypatch.setattr("sfl_sim.report.pages.run.write_report", lambda folders, out, parts: out.write_text("a page"))


in_one_process = pytest.mark.xdist_group("ray")
"""Tests run side by side, and each process that has one of these starts a Ray of its own."""


@pytest.fixture(scope="module")
def two_cpus():
    """A Ray of two CPUs on this machine."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
        yield
        ray.shutdown()


ERROR = "RuntimeError: no <more> of this, at tests/support/small_study.py:44"


def rounds(folder):
    return {name: one["rounds"] for name, one in summaries(folder).items()}


def digests(folder):
    return {name: (one["timeline_digest"], one["weights_digest"]) for name, one in summaries(folder).items()}


def test_a_variant_that_fails_is_told_and_the_others_are_whole_and_it_is_retried_alone(poison, tmp_path):
    three = poisoned_study(poison)
    log = Log(three)
    folder, error = run(three, tmp_path / "run", log=log)
    assert rounds(folder) == {"lr=0.1": 3, "lr=0.2": 1, "lr=0.3": 3}
    assert f"1 of 3 runs failed: lr=0.2 (seed 0): {ERROR} (round 2)" in str(error)
    (failed,) = read_manifest(folder)["failed"]
    assert failed == {"variant": "lr=0.2", "seed": 0, "round": 2, "error": ERROR}
    assert log.of(Failed) == {"lr=0.2": Failed(1, Failure(**failed))}
    assert len(log.of(Began)) == 3
    assert "small_study.py" in (folder / "trials" / "0001" / "traceback.txt").read_text()
    poison.unlink()
    log = Log(three)
    folder, error = run(three, tmp_path / "run", replace(TIMING, resume=True), log)
    assert error is None
    assert list(log.of(Began)) == ["lr=0.2"]
    assert log.of(Reused) == {"lr=0.1": Reused(0, folder), "lr=0.3": Reused(2, folder)}
    assert rounds(folder) == {"lr=0.1": 3, "lr=0.2": 3, "lr=0.3": 3}
    manifest = read_manifest(folder)
    assert (manifest["status"], manifest["failed"]) == ("complete", [])


def test_nothing_is_left_where_everything_failed_before_a_round_was_done(poison, tmp_path, monkeypatch):
    monkeypatch.setattr("sfl_sim.runs.trial.Experiment.rounds", lambda self, resume: iter([][1]))
    folder, error = run(study(), tmp_path / "run")
    assert folder is None
    assert "fedavg (seed 0): IndexError: " in str(error)
    assert "Traceback" in error.__notes__[0]
    assert not [path for path in tmp_path.iterdir() if path != poison]


def test_a_process_that_is_killed_takes_no_other_down(poison, tmp_path):
    poison.write_text("kill")
    folder, error = run(poisoned_study(poison), tmp_path / "run", replace(TIMING, jobs=2))
    assert rounds(folder) == {"lr=0.1": 3, "lr=0.3": 3}
    assert f"lr=0.2 (seed 0): {KILLED}" in str(error)


@pytest.fixture
def four_cores(monkeypatch):
    """A machine of four physical cores and memory for ten trials, whose last trial used one thread."""
    before = torch.get_num_threads()
    monkeypatch.setattr("sfl_sim.runs.backends.cpu_count", lambda only_physical_cores=False: 4)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1000))
    monkeypatch.setattr("psutil.Process.memory_info", lambda self: SimpleNamespace(rss=100))
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_cores")
def test_trials_run_side_by_side_where_that_pays(monkeypatch):
    on_cpu = Settings(device="cpu", jobs=None)
    assert usual_jobs(8, 60.0, on_cpu) == 4
    assert usual_jobs(2, 60.0, on_cpu) == 2
    assert usual_jobs(8, 0.5, on_cpu) == usual_jobs(0, 60.0, on_cpu) == 1, "processes take seconds to start"
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=299))
    assert usual_jobs(8, 60.0, on_cpu) == 2, "a third would find no memory"
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=99))
    assert usual_jobs(8, 60.0, on_cpu) == 1


@pytest.mark.usefixtures("four_cores")
def test_steps_that_share_the_cores_already_run_one_by_one():
    torch.set_num_threads(2)
    assert usual_jobs(8, 60.0, Settings(device="cpu")) == 1
    assert usual_jobs(8, 60.0, Settings(timing_only=True)) == 4


@pytest.mark.usefixtures("four_cores")
def test_more_threads_side_by_side_than_cores_are_told():
    large, small = 1e9, 1e3
    four = Settings(device="cpu", jobs=2, threads=4)
    assert "--threads 2" in crowd(large, four)
    assert crowd(small, four) is None, "their steps take one thread"
    assert crowd(large, replace(four, threads=2)) is None
    assert crowd(large, replace(four, jobs=1)) is crowd(large, replace(four, jobs=None)) is None
    assert crowd(large, replace(four, timing_only=True)) is None


def test_the_first_trial_tells_whether_the_others_run_side_by_side(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "sfl_sim.runs.backends.usual_jobs", lambda n, trial_s, settings: asked.append((n, trial_s > 0)) or 2
    )
    three = study(grid={"train.lr": [0.1, 0.2, 0.3]})
    folder, _ = run(three, tmp_path / "auto", replace(TIMING, jobs=None))
    assert asked == [(2, True)]
    assert digests(folder) == digests(run(three, tmp_path / "alone", TIMING)[0])


def test_an_error_of_many_lines_is_a_short_one(poison, tmp_path):
    poison.write_text("line\n" * 1000)
    folder, error = run(poisoned_study(poison), tmp_path / "run")
    assert "\n" not in str(error)
    assert len(read_manifest(folder)["failed"][0]["error"]) <= 500
    assert (folder / "trials" / "0001" / "traceback.txt").read_text().count("line\n") >= 1000


def test_what_cannot_even_begin_again_shows_nothing_of_before(tmp_path, monkeypatch):
    def press(news):
        if isinstance(news, Ended):
            raise KeyboardInterrupt

    two = study(grid={"train.lr": [0.1, 0.2]})
    run(two, tmp_path / "run", TIMING, Log(two, press))
    whole = Experiment.__init__

    def fail(self, scenario, device=None):
        if scenario.train.lr == 0.1:
            raise MemoryError
        whole(self, scenario, device)

    monkeypatch.setattr("sfl_sim.studies.train.check", lambda *_, **__: [])
    monkeypatch.setattr(Experiment, "__init__", fail)
    folder, error = run(two, tmp_path / "run", replace(TIMING, resume=True))
    assert "lr=0.1 (seed 0): MemoryError, at " in str(error)
    assert rounds(folder) == {"lr=0.2": 3}


def test_a_study_that_is_killed_leaves_no_process_behind(tmp_path):
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from small_study import TIMING, run, study; from dataclasses import replace\n"
        "if __name__ == '__main__':\n"
        "    endless = study(grid={'train.rounds': [10**6, 2 * 10**6]})\n"
        "    run(endless, Path(sys.argv[2]), replace(TIMING, jobs=2))\n"
    )
    (tmp_path / "endless.py").write_text(program)
    command = [sys.executable, tmp_path / "endless.py", Path(__file__).parents[1] / "support", tmp_path / "run"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        trials = tmp_path / "run.partial" / "trials"
        while not all((trials / name / "ops.parquet").exists() for name in ("0000", "0001")):
            assert process.poll() is None
            time.sleep(0.1)
        process.kill()
        try:
            process.communicate(timeout=30)  # the pipe ends with the last process that has it
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_ctrl_c_stops_everything_and_keeps_whole_rounds(tmp_path):
    def press(news):
        if isinstance(news, Ended) and news.trial == 1:
            raise KeyboardInterrupt

    two = study(grid={"train.lr": [0.1, 0.2]})
    folder, _ = run(two, tmp_path / "run", TIMING, Log(two, press))
    assert rounds(folder) == {"lr=0.1": 3, "lr=0.2": 1}
    assert read_manifest(folder)["status"] == "interrupted"


def helpers():
    """Processes of trials side by side: no tracker of multiprocessing's, and nothing that an earlier test left."""
    begun = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in begun if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("nth", [1, 2, 3], ids=["the holder of news", "the first worker", "the second worker"])
def test_an_interrupt_while_a_process_begins_leaves_none_behind(tmp_path, monkeypatch, capfd, nth, number):
    begins, begun, before = SpawnProcess.start, [], signal.getsignal(number)
    earlier = helpers()  # an earlier test's helper may still be importing torch, and end after that

    def start(new):
        begins(new)
        begun.append(new)
        if len(begun) == nth:
            for pid in [*(process.pid for process in begun), os.getpid()]:  # as a terminal does
                os.kill(pid, number)

    monkeypatch.setattr(SpawnProcess, "start", start)
    signal.signal(number, signal.default_int_handler)  # as the command line does; a shell's background has none
    try:
        with pytest.raises(KeyboardInterrupt):
            run(study(grid={"train.lr": [0.1, 0.2]}), tmp_path / "run", replace(TIMING, jobs=2))
    finally:
        signal.signal(number, before)
    assert len(begun) == nth
    assert set(helpers()) <= set(earlier)
    assert capfd.readouterr().err == ""


def within_the_lock_of_a_future(running):
    for future in running:
        future._condition.acquire()
    os.kill(os.getpid(), signal.SIGINT)
    for future in running:
        future._condition.release()


def while_something_is_freed(running):
    weakref.finalize(type("Something", (), {})(), os.kill, os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("press", [within_the_lock_of_a_future, while_something_is_freed])
def test_ctrl_c_is_neither_lost_nor_waited_for_for_ever(tmp_path, monkeypatch, press):
    """Before, the first one left the future locked, and its process's thread never ended; Python drops the second."""

    def waiting(running, **settings):
        done, others = wait(running, **settings)
        if others and (tmp_path / "run.partial" / "trials" / "0000" / "ops.parquet").exists():
            press(others)
        return done, others

    monkeypatch.setattr("sfl_sim.runs.backends.wait", waiting)
    monkeypatch.setattr(sys, "unraisablehook", lambda problem: None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        folder, _ = run(study(grid={"train.rounds": [10**4]}), tmp_path / "run", replace(TIMING, jobs=2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert read_manifest(folder)["status"] == "interrupted"
    assert not helpers()


def test_where_the_holder_of_news_is_killed_that_is_said_in_a_sentence(tmp_path):
    first = []

    def kill(news):
        if isinstance(news, Began) and not first:
            first.append(min(helpers(), key=lambda child: child.create_time()))
            first[0].kill()

    long = study(grid={"train.rounds": [10**4, 2 * 10**4]})
    with pytest.raises(RuntimeError, match=KILLED):
        run(long, tmp_path / "run", replace(TIMING, jobs=2), Log(long, kill))
    assert not helpers()


@in_one_process
def test_ray_gives_the_bits_of_this_machine_and_a_failure_there_is_told_alike(two_cpus, poison, tmp_path):
    three = poisoned_study(poison)
    here, error = run(three, tmp_path / "here", Settings(threads=1))
    log = Log(three)
    there, its_error = run(three, tmp_path / "there", Settings(threads=1, backend="ray"), log)
    assert digests(there) == digests(here)
    assert all(weights for _, weights in digests(here).values())
    assert rounds(there) == rounds(here) == {"lr=0.1": 3, "lr=0.2": 1, "lr=0.3": 3}
    assert str(its_error) == str(error).replace(str(here), str(there))
    assert len([news for news in log.news if isinstance(news, Ended)]) == 7
    for table in ("ops", "rounds", "labels", "clients"):
        ours, theirs = (pd.read_parquet(folder / f"{table}.parquet") for folder in (here, there))
        pd.testing.assert_frame_equal(ours, theirs)


@in_one_process
def test_more_threads_than_any_node_has_cpus_are_refused_instead_of_waited_for(two_cpus, tmp_path):
    with pytest.raises(ScenarioError) as caught:
        run(study(), tmp_path / "run", replace(TIMING, threads=64, timing_only=False, backend="ray"))
    assert (caught.value.key, caught.value.found, caught.value.allowed) == ("--threads", 64, "up to 2")
    assert not list(tmp_path.iterdir())


@in_one_process
def test_a_task_that_ray_loses_is_that_trial_s_failure(two_cpus, poison, tmp_path):
    poison.write_text("kill")
    folder, error = run(poisoned_study(poison), tmp_path / "run", replace(TIMING, backend="ray"))
    assert rounds(folder) == {"lr=0.1": 3, "lr=0.3": 3}
    assert "lr=0.2 (seed 0): WorkerCrashedError: " in str(error)


@in_one_process
def test_ctrl_c_cancels_what_ray_runs_and_keeps_what_is_finished(two_cpus, tmp_path):
    def press(news):
        if (
            isinstance(news, Began | Ended)
            and news.trial == 1
            and (tmp_path / "run.partial" / "trials" / "0000" / "summary.json").exists()
        ):
            raise KeyboardInterrupt

    long = study(grid={"train.rounds": [1, 100_000]})
    folder, _ = run(long, tmp_path / "run", replace(TIMING, backend="ray"), Log(long, press))
    assert rounds(folder) == {"rounds=1": 1}
    assert read_manifest(folder)["status"] == "interrupted"


@pytest.mark.parametrize(("key", "value"), [("backend", "slurm"), ("address", "auto")])
def test_a_backend_that_there_is_not_is_one_line(key, value):
    with pytest.raises(ScenarioError) as caught:
        check_backend(replace(TIMING, **{key: value}))
    assert (caught.value.key, caught.value.found) == (key, value)


def test_without_ray_its_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ScenarioError, match=r"sfl-sim\[ray\]"):
        run(study(), tmp_path / "run", replace(TIMING, backend="ray"))
    assert not list(tmp_path.iterdir())


def test_a_program_from_standard_input_runs_its_trials_one_by_one(tmp_path):
    program = """
import sfl_sim
scenario = {"clients": {"count": 2}, "train": {"rounds": 1}, "data": {"train_samples": 100}, "repeats": 2}
try:
    sfl_sim.run(scenario, out="run", jobs=2, timing_only=True)
except sfl_sim.ScenarioError as error:
    print(error.key)
sfl_sim.run(scenario, out="run", jobs=None, timing_only=True)
"""
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=program, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout == "jobs\n"
