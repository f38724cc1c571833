"""A run that is killed goes on as if nothing had happened, whenever it is killed and whatever is damaged."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from killed_runs import STEP
from PIL import Image

from sfl_sim.build import setup
from sfl_sim.cli import main
from sfl_sim.engine.checkpointing import CheckpointWriter, StoredRound
from sfl_sim.errors import ScenarioError
from sfl_sim.rng import stream
from sfl_sim.runs.cache_key import own_sources
from sfl_sim.runs.news import Ended, Warned
from sfl_sim.runs.trial import Settings, attempt
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.own_code import Permission, permitted
from sfl_sim.store.checkpoints import Checkpoints
from sfl_sim.studies.train import run_study

KILLED = -9
SCENARIO = {
    "name": "killed",
    "data": {"name": "digits", "train_samples": 64, "test_samples": 20},
    "model": {"name": "cnn_small"},
    "clients": {"count": 4, "compute": 1e9, "network": {"uplink_bps": 1e6, "downlink_bps": 1e6}},
    "train": {"rounds": 3, "batch_size": 8, "momentum": 0.9},
}
DRAWING = {"model": {"factory": "killed_runs:drawing", "cut": 1}}


def scenario(method, **sections):
    """The scenario with a method, its options, and other sections, whose keys are added."""
    merged = {name: SCENARIO.get(name, {}) | keys for name, keys in sections.items() if isinstance(keys, dict)}
    options = {name: value for name, value in sections.items() if name not in merged}
    return {**SCENARIO, **merged, "model": sections.get("model", SCENARIO["model"]),
            "method": {"name": method, **options}}  # fmt: skip


METHODS = {
    "momentum": scenario("splitfed_v2", l2=0.01),
    "fusion": scenario("smofi", barrier="relaxed", carry_fused=True),
    "assistants that are late": scenario("korea", patience_s=0.01, clients={"participation": 0.5}),
    "augmentation": scenario("fedavg", data={"augment": True}, train={"optimizer": "adam", "momentum": 0.0}),
    "heads and draws": scenario("hydra", cut2=2, **DRAWING),
    "adaptation": scenario("harmony", **DRAWING, report={"exits_every": 1}),
    "codecs": scenario(
        "splitfed_v1",
        wire={
            "up": "randtopk",
            "down": {"kind": "int", "rounding": "stochastic"},
            "update": "topk",
            "error_feedback": True,
        },
    ),
    "what was sent": scenario("splitfed_v2", wire={"up": {"kind": "delta", "inner": "int8"}}),
    "joined adapters": scenario("splitfed_v1", lora={"targets": ["conv1", "fc"], "aggregate": "concat"}),
    "kept activations": scenario("splitfrozen", send_once=True, train={"local_epochs": 2}),
    "chosen by losses": scenario("splitfed_v1", clients={"participation": 0.5, "overcommit": 1, "choice": "oort"}),
    "edges between two averages": scenario(
        "splitfed_v2", servers={"edge": {"count": 2, "average_every": 2}}, train={"momentum": 0.9}
    ),
    "hops": scenario("splitfed_v2", servers={"edge": {"count": 2, "cut": 2, "average_every": 2}}),
    "two visits": scenario("u_shaped", server="shared"),
    "flows across rounds": scenario("fedbuff", host="splitfed_v1", buffer=2, **DRAWING),
}


@pytest.fixture
def run_jobs(tmp_path):
    """Run jobs of killed_runs.py; gives how each ended."""

    def run(jobs):
        (tmp_path / "jobs.json").write_text(json.dumps(jobs))
        command = [sys.executable, Path(__file__).parents[1] / "support" / "killed_runs.py", tmp_path / "jobs.json"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1] / "support")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def job(scenario, place, kill=None, is_study=False, **settings):
    return {"scenario": scenario, "place": str(place), "kill": kill, "is_study": is_study, "settings": settings}


def assert_equal_trials(one, other):
    """Check that two trials are equal to the bit."""
    assert not (other / "error.json").exists(), (other / "traceback.txt").read_text()
    first, second = (json.loads((trial / "summary.json").read_text()) for trial in (one, other))
    assert first == second
    tables = sorted(path.name for path in one.glob("*.parquet"))
    assert tables == sorted(path.name for path in other.glob("*.parquet"))
    for table in tables:
        pd.testing.assert_frame_equal(pd.read_parquet(one / table), pd.read_parquet(other / table), check_exact=True)
    assert (one / "checkpoint.safetensors").read_bytes() == (other / "checkpoint.safetensors").read_bytes()
    assert not (other / "checkpoints").exists()


def test_a_run_goes_on_after_it_was_killed_at_any_instant(run_jobs, tmp_path):
    rng = stream(10, "instants")
    jobs = []
    kills = dict(zip(METHODS, [3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 3, 2, 2, 2, 3], strict=True))
    for name, kind in METHODS.items():
        jobs.append(job(kind, tmp_path / name / "whole"))
        for instant in range(kills[name]):
            place, when = tmp_path / name / f"killed {instant}", str(rng.choice(["before", "after"]))
            jobs.append(job(kind, place, (STEP, when, float(rng.uniform(0.05, 0.95)))))
            jobs.append(job(kind, place, resume=True))
    assert run_jobs(jobs) == [KILLED if each["kill"] else 0 for each in jobs]
    for each in jobs:
        place = Path(each["place"])
        assert_equal_trials(place.parent / "whole", place)
        assert json.loads(place.with_suffix(".warnings").read_text()) == []


PHASES = [
    ("sfl_sim.engine.evaluation.evaluate", "before", 2),
    ("sfl_sim.engine.evaluation.evaluate", "after", 2),
    ("sfl_sim.store.trial.TrialWriter.add_round", "after", 2),
    ("sfl_sim.store.checkpoints.Checkpoints._write_rounds", "before", 2),
    ("sfl_sim.store.checkpoints.Checkpoints._write_rounds", "after", 2),
    ("sfl_sim.store.checkpoints.write_file", "after", 3),  # the second checkpoint's memory is there
    ("sfl_sim.store.checkpoints.write_file", "after", 4),  # and its JSON
    ("sfl_sim.store.checkpoints.settle", "before", 4),  # it has its name
    ("sfl_sim.store.checkpoints.Checkpoints.save", "after", 2),
    ("sfl_sim.store.trial.TrialWriter.add_weights", "before", 1),
    ("sfl_sim.store.trial.TrialWriter.close", "before", 1),
    ("sfl_sim.store.trial.TrialWriter.close", "after", 1),
    ("sfl_sim.store.checkpoints.Checkpoints.remove", "after", 1),
]
PHASES_OF_A_STUDY = [
    ("sfl_sim.store.folder.RunFolder.join", "before", 1),
    ("sfl_sim.report.pages.run.write_report", "before", 1),
    ("sfl_sim.report.pages.run.write_report", "after", 1),
    ("pathlib.Path.rename", "before", 1),
    ("sfl_sim.store.folder.RunFolder.publish", "after", 1),
]


def test_a_run_goes_on_after_it_was_killed_between_any_two_of_its_phases(run_jobs, tmp_path):
    kind = scenario("splitfed_v2", report={"snapshots": {"rounds": [2]}})
    whole, study = tmp_path / "trials" / "whole", tmp_path / "studies" / "whole"
    jobs = [job(kind, whole), job(kind, study, is_study=True)]
    for number, phase in enumerate([*PHASES, *PHASES_OF_A_STUDY]):
        is_study = number >= len(PHASES)
        place = (study if is_study else whole).with_name(f"killed {number}")
        jobs += [job(kind, place, phase, is_study=is_study), job(kind, place, is_study=is_study, resume=True)]
    assert run_jobs(jobs) == [0, 0, *[KILLED, 0] * (len(jobs) // 2 - 1)]
    for place in tmp_path.glob("trials/killed *[0-9]"):
        assert_equal_trials(whole, place)
    for place in tmp_path.glob("studies/killed *[0-9]"):
        assert json.loads((place / "summary.json").read_text()) == json.loads((study / "summary.json").read_text())
        assert {path.name for path in place.iterdir()} == {path.name for path in study.iterdir()}
        assert not place.with_name(f"{place.name}.partial").exists()


SMALL = scenario("fedavg", train={"rounds": 4})


@pytest.fixture
def every_round(monkeypatch):
    """A checkpoint after every round, whatever it takes."""
    monkeypatch.setattr("sfl_sim.engine.checkpointing.SHARE", 1e9)


def attempted(place, kind=SMALL, stop_after=None, **settings):
    """Run a trial until a round has ended, as Ctrl-C does; gives the warnings."""
    (variant,) = parse(kind).variants
    problems = []

    def notify(news):
        if isinstance(news, Warned):
            problems.append(news.problem)
        if isinstance(news, Ended) and news.round.row["round"] == stop_after:
            raise KeyboardInterrupt

    try:
        attempt(0, variant, place, Settings(threads=1, **settings), notify)
    except KeyboardInterrupt:
        assert stop_after
    return problems


def folders(trial):
    return sorted(path.name for path in (trial / "checkpoints").glob("round-*"))


@pytest.fixture
def trials(tmp_path, every_round):
    """Make two trials: a finished one, and one stopped in its last round but one, with two checkpoints."""
    attempted(tmp_path / "trials" / "whole")
    stopped = tmp_path / "trials" / "stopped"
    attempted(stopped, stop_after=3)
    assert folders(stopped) == ["round-000001", "round-000002"]
    return tmp_path / "trials" / "whole", stopped


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(trials):
    whole, stopped = trials
    memory = stopped / "checkpoints" / "round-000002" / "memory.pt"
    memory.write_bytes(memory.read_bytes()[:-1])
    (problem,) = attempted(stopped, resume=True)
    assert problem.startswith(f"{memory.parent} is damaged")
    assert memory.name in problem
    assert_equal_trials(whole, stopped)


def test_where_no_checkpoint_can_be_used_everything_is_run_again_and_that_is_said(trials):
    whole, stopped = trials
    (stopped / "checkpoints" / "rounds.jsonl").write_bytes(b"")
    first, second, last = attempted(stopped, resume=True)
    assert "round-000002 is damaged" in first
    assert "round-000001 is damaged" in second
    assert last.startswith("no checkpoint")
    assert_equal_trials(whole, stopped)


ODD = {"pipe": os.mkfifo, "folder": Path.mkdir, "deep": lambda path: path.write_text("[" * 100_000)}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["rounds.jsonl", "round-000002/checkpoint.json", "round-000002/memory.pt"])
def test_what_is_no_file_of_ours_is_neither_waited_for_nor_in_the_way(name, kind, trials):
    whole, stopped = trials
    odd = stopped / "checkpoints" / name
    odd.unlink()
    ODD[kind](odd)
    (stopped / "odd").mkdir()
    assert "round-000002 is damaged" in attempted(stopped, resume=True)[0]
    assert_equal_trials(whole, stopped)


def test_a_checkpoint_of_another_scenario_is_not_used(trials):
    _, stopped = trials
    slower = scenario("fedavg", train={"rounds": 4, "lr": 0.01})
    problems = attempted(stopped, slower, resume=True)
    assert "round-000002 is not used" in problems[0]
    attempted(stopped.with_name("slower"), slower)
    assert_equal_trials(stopped.with_name("slower"), stopped)


NETS = """
from torch import nn

def make(shape, n_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, n_labels))
"""


def images(folder, seed):
    """Write images of two classes."""
    for number in range(60):
        pixels = stream(seed, f"image {number}").integers(0, 255, (8, 8), dtype="uint8")
        place = folder / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number}.png")


def code(folder, version):
    (folder / "my_nets.py").write_text(NETS if version == 0 else NETS.replace("ReLU", "Tanh"))


CHANGED = {
    "own code": (code, {"model": {"factory": "my_nets:make", "cut": 2}}),
    "images": (images, {"data": {"name": "image_folder", "path": "images", "image_size": 8}, "clients": {"count": 2}}),
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_an_earlier_code_or_data_have_made_is_not_gone_on_with(what, tmp_path, monkeypatch, every_round):
    """Nor is what it has finished taken for what the new one makes."""
    change, sections = CHANGED[what]
    kind = scenario("splitfed_v2", **sections)
    kind["data"].pop("train_samples" if what == "images" else "", None)
    kind["data"].pop("test_samples" if what == "images" else "", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SFL_SIM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("sfl_sim.report.pages.run.write_report", lambda folders, out, parts: out.write_text("a page"))

    def in_another_process(version):
        sys.modules.pop("my_nets", None)
        own_sources.cache_clear()
        setup._load.cache_clear()
        change(tmp_path / "images" if what == "images" else tmp_path, version)

    def ran(place, stop_after=None, **settings):
        told = []

        def notify(news):
            told.append(news)
            if isinstance(news, Ended) and news.round.row["round"] == stop_after:
                raise KeyboardInterrupt

        outcome = run_study(parse(kind), tmp_path / place, Settings(threads=1, **settings), notify)
        (made,) = json.loads((outcome.folder / "summary.json").read_text())["variants"]
        return made["weights_digest"], [news.problem for news in told if isinstance(news, Warned)]

    with permitted(Permission(everything=True)):
        in_another_process(1)
        new, _ = ran("new")
        in_another_process(0)
        old, _ = ran("finished")
        ran("stopped", stop_after=2)
        assert new != old
        in_another_process(1)
        made, problems = ran("finished", resume=True)
        assert (made, problems) == (new, [])
        made, problems = ran("stopped", resume=True)
        assert made == new
        assert "is not used" in problems[0]


def test_a_walk_that_does_not_come_to_the_same_point_is_not_gone_on_with(trials, monkeypatch):
    whole, stopped = trials
    monkeypatch.setattr(
        "sfl_sim.runs.trial.trial_key", lambda scenario, meaning, **_: "a key that does not tell them apart"
    )
    others = stopped.with_name("others")
    attempted(others, scenario("splitfed_v2", train={"rounds": 4}), stop_after=3)
    shutil.rmtree(stopped)
    others.rename(stopped)
    problems = attempted(stopped, resume=True)
    assert ["another timeline" in problem for problem in problems] == [True, True, False]
    monkeypatch.undo()
    found, usual = (json.loads((trial / "summary.json").read_text()) for trial in (stopped, whole))
    assert found["weights_digest"] == usual["weights_digest"]


def test_nothing_is_gone_on_with_unasked(trials):
    whole, stopped = trials
    assert attempted(stopped) == []
    assert_equal_trials(whole, stopped)


def test_checkpoints_take_no_more_than_their_share_of_the_time(monkeypatch, tmp_path):
    now_s, saved = [0.0], []
    monkeypatch.setattr("sfl_sim.engine.checkpointing.time.monotonic", lambda: now_s[0])
    writer = CheckpointWriter(Checkpoints(tmp_path), None, None, dict, None, pytest.fail)

    def save(name):
        saved.append(name)
        now_s[0] += 2.0
        writer._ended_s, writer._took_s = now_s[0], 2.0

    monkeypatch.setattr(writer, "_save", save)
    for _ in range(100):
        now_s[0] += 1.0
        writer.after_round(StoredRound({}, [], None))
    assert saved == ["round-000001", "round-000041", "round-000081"]


def full_disk(*args):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def run_here(tmp_path, monkeypatch, every_round, capsys):
    """Run the small scenario from the command line; its exit code and what it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sfl_sim.report.pages.run.write_report", lambda folders, out, parts: out.write_text("a page"))
    (tmp_path / "killed.yaml").write_text(yaml.safe_dump(SMALL))

    def run(*options):
        code = 0
        try:
            main(["killed.yaml", "-q", "--threads", "1", "--fresh", *options])
        except SystemExit as error:
            code = error.code
        return code, capsys.readouterr().err

    return run


def no_room_for_a_page(folders, out, parts):
    """Raise as `write_report` does on a full disk."""
    try:
        full_disk()
    except OSError as error:
        raise ScenarioError("cannot be written", key="report") from error


FULL = {
    "sfl_sim.store.checkpoints.write_file": full_disk,
    "sfl_sim.store.trial.TrialWriter.close": full_disk,
    "sfl_sim.report.pages.run.write_report": no_room_for_a_page,
}


@pytest.mark.parametrize("failing", FULL)
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(failing, run_here, tmp_path):
    assert run_here("--out", "whole") == (0, "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failing, FULL[failing])
        code, said = run_here("--out", "run")
    assert (code, said.count("\n")) == (1, 1)
    assert "run.partial: No space left" in said
    assert "--resume" in said
    assert not (tmp_path / "run").exists()
    assert run_here("--out", "run", "--resume") == (0, "")
    assert (tmp_path / "run" / "summary.json").read_text() == (tmp_path / "whole" / "summary.json").read_text()


def test_a_folder_that_is_gone_is_one_line(run_here, monkeypatch, tmp_path):
    save = Checkpoints.save

    def vanish(self, *args):
        shutil.rmtree(tmp_path / "run.partial")
        save(self, *args)

    monkeypatch.setattr(Checkpoints, "save", vanish)
    code, said = run_here("--out", "run")
    assert (code, said.count("\n")) == (1, 1)
    assert "run.partial" in said
    assert not (tmp_path / "run").exists()
