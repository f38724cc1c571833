"""The run folder: readable at every moment, and never over a different run."""

import json
import os
import shutil
import subprocess
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from refusals import refused

from sfl_sim.errors import ScenarioError
from sfl_sim.store import trial as trials
from sfl_sim.store.columns import OP_DTYPE
from sfl_sim.store.files import damaged, read_manifest, write_file
from sfl_sim.store.folder import RunFolder, free_folder, is_begun
from sfl_sim.store.tables import split_by_trial
from sfl_sim.store.trial import Failure, TrialWriter, write_failure


def ops(n, round=1):
    rows = np.zeros(n, OP_DTYPE)
    rows["node"], rows["kind"], rows["round"], rows["ended_s"] = b"client", b"forward", round, np.arange(n)
    return rows


def fill(folder, rounds=2, number=0, variant="a"):
    trial = TrialWriter(folder.trial_folder(number), variant, seed=0)
    trial.add_tables({"clients": pd.DataFrame({"client": [0]}), "layers": pd.DataFrame({"layer": [1]})})
    for round in range(1, rounds + 1):
        trial.add_round({"round": round, "accuracy": 0.5}, [{"round": round, "label": 0}], ops(3, round))
    trial.add_weights({"w": np.ones(2, np.float32)}, {"variant": variant})
    trial.close({"name": variant, "rounds": rounds, "key": f"key of {variant}"})


def finish(folder, status="complete", additions=None):
    folder.join("s", additions or {})
    (folder.staging / "scenario.yaml").write_text("name: s\n")
    folder.describe({"status": status})
    return folder.publish()


def test_participants_are_stored_by_round_and_take_next_to_no_room_where_all_take_part(tmp_path):
    trial = TrialWriter(tmp_path, "a", seed=0)
    trial.add_round({"round": 1}, [], ops(1, 1), clients=[7, 2], cuts=[3, 1])
    trial.add_round({"round": 2}, [], ops(1, 2), clients=range(1_000_000))
    trial.close({})
    found = pd.read_parquet(tmp_path / "participants.parquet")
    assert found.query("round == 1")[["client", "cut"]].to_numpy().tolist() == [[2, 1], [7, 3]]
    assert found.query("round == 2")["client"].tolist() == list(range(1_000_000))
    assert (tmp_path / "participants.parquet").stat().st_size < 50_000


def test_trials_are_joined_into_tables_and_moved_to_their_place(tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder, number=0, variant="a")
    fill(folder, number=1, variant="b")
    assert not (tmp_path / "run").exists()
    out = finish(folder)
    assert out == tmp_path / "run"
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert [v["name"] for v in json.loads((out / "summary.json").read_text())["variants"]] == ["a", "b"]
    found = pd.read_parquet(out / "ops.parquet")
    assert found.groupby("variant", observed=True).size().to_dict() == {"a": 6, "b": 6}
    assert found["kind"].unique().tolist() == ["forward"]
    assert len(pd.read_parquet(out / "rounds.parquet")) == 4
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == [
        "0000.json",
        "0000.safetensors",
        "0001.json",
        "0001.safetensors",
    ]


def test_many_rounds_are_the_same_table(tmp_path, monkeypatch):
    """Columns that are never known, that become known later, and that only some rounds have."""
    rows = [
        {
            "round": n,
            "accuracy": None,
            "seconds": n / 3,
            "answers": None if n < 4 else 0.5,
            **({"seen": n} if n % 3 else {}),
        }
        for n in range(1, 8)
    ]
    frames = []
    for size in (2, 7, 500):
        monkeypatch.setattr("sfl_sim.store.trial.ROWS_PER_FRAME", size)
        trial = TrialWriter(tmp_path / str(size), "a", seed=0)
        for row in rows:
            trial.add_round(row, [], ops(1, row["round"]))
        trial.close({})
        frames.append(pd.read_parquet(tmp_path / str(size) / "rounds.parquet"))
    for frame in frames[:2]:
        pd.testing.assert_frame_equal(frame, frames[2])


def test_energy_is_null_where_nobody_knows_it(tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    trial = TrialWriter(folder.trial_folder(0), "a", seed=0)
    trial.add_round({"round": 1}, [], ops(2, 1))
    trial.add_round({"round": 2}, [], ops(2, 2), joule=np.array([0.5, 0.0]))
    trial.close({"name": "a", "rounds": 2})
    assert pd.read_parquet(finish(folder) / "ops.parquet")["joule"].fillna(-1).tolist() == [-1, -1, 0.5, 0.0]


def test_what_only_the_whole_run_can_tell_is_added_to_the_summaries_of_its_trials(tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder, number=0, variant="a")
    fill(folder, number=2, variant="c", rounds=3)
    closed = folder.closed()
    assert {number: (summary["name"], len(rounds)) for number, (summary, rounds) in closed.items()} == {
        0: ("a", 2),
        2: ("c", 3),
    }
    out = finish(folder, additions={2: {"reference": "a"}})
    a, c = json.loads((out / "summary.json").read_text())["variants"]
    assert c["reference"] == "a"
    assert "reference" not in a


def test_methods_may_tell_more_of_a_round_than_others(tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder, number=0, variant="plain", rounds=1)
    trial = TrialWriter(folder.trial_folder(1), "korea", seed=0)
    trial.add_round({"replay_late": 3, "round": 1, "accuracy": None}, [], ops(3))
    trial.close({"rounds": 1})
    found = pd.read_parquet(finish(folder) / "rounds.parquet").set_index("variant")
    assert found["replay_late"].isna().to_dict() == {"plain": True, "korea": False}
    assert found.loc["korea", ["round", "replay_late"]].tolist() == [1, 3]
    assert found["accuracy"].isna().to_dict() == {"plain": False, "korea": True}


def test_snapshots_are_a_table_where_there_are_any(tmp_path):
    look = pd.DataFrame(
        {"round": [1], "job": [3], "time_s": [0.5], "true_label": [0], "predicted_label": [0], "share": [1.0]}
    )
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder, number=0, variant="never looked into")
    assert not (finish(folder) / "confusion.parquet").exists()
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder, number=0, variant="never looked into")
    trial = TrialWriter(folder.trial_folder(1), "b", seed=7)
    trial.add_tables({"clients": pd.DataFrame({"client": [0]}), "layers": pd.DataFrame({"layer": [1]})})
    trial.add_round({"round": 1, "accuracy": 0.5}, [{"round": 1, "label": 0}], ops(3), confusion=look)
    trial.add_round({"round": 2, "accuracy": 0.5}, [{"round": 2, "label": 0}], ops(3), confusion=look.head(0))
    trial.close({"rounds": 2})
    found = pd.read_parquet(finish(folder) / "confusion.parquet")
    pd.testing.assert_frame_equal(found, look.assign(variant="b", seed=7)[list(found)])


def test_operations_go_to_disk_in_row_groups_while_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "ROWS_PER_GROUP", 10)
    trial = TrialWriter(tmp_path / "trial", "a", 0)
    for round in range(1, 9):
        trial.add_round({"round": round}, [], ops(4, round))
    trial.close({})
    file = pq.ParquetFile(tmp_path / "trial" / "ops.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [12, 12, 8]


def test_joined_rows_are_dealt_out_to_their_trials_again_under_other_names(tmp_path):
    rows = pd.DataFrame({"variant": ["a", "b", "a"], "seed": [0, 0, 1], "round": [1, 2, 3]})
    rows.astype({"variant": "category"}).to_parquet(tmp_path / "rounds.parquet")
    places = [tmp_path / f"{i}.parquet" for i in range(4)]
    targets = {
        ("a", 0): [(places[0], "x"), (places[1], "a")],
        ("b", 0): [(places[2], "y")],
        ("c", 0): [(places[3], "c")],
    }
    split_by_trial(tmp_path / "rounds.parquet", targets, to_all=False)
    found = [pd.read_parquet(place)[["variant", "round"]].to_numpy().tolist() for place in places if place.exists()]
    assert found == [[["x", 1]], [["a", 1]], [["y", 2]]]
    split_by_trial(tmp_path / "rounds.parquet", targets, to_all=True)
    assert list(pd.read_parquet(places[3])) == ["variant", "seed", "round"]


def test_the_same_run_again_replaces_its_results(tmp_path):
    for rounds in (1, 2):
        folder = RunFolder(tmp_path / "run", "digest")
        fill(folder, rounds)
        finish(folder)
    assert len(pd.read_parquet(tmp_path / "run" / "rounds.parquet")) == 2


def test_a_different_run_is_never_touched(tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder)
    finish(folder)
    with refused("--out", says="something else"):
        RunFolder(tmp_path / "run", "another digest")
    assert free_folder(tmp_path, "run", "digest") == tmp_path / "run"
    assert free_folder(tmp_path, "run", "another digest") == tmp_path / "run-2"


def test_a_folder_of_other_files_is_never_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ScenarioError, match="holds something else"):
        RunFolder(tmp_path, "digest")
    with pytest.raises(ScenarioError, match="is a file"):
        RunFolder(tmp_path / "thesis.tex", "digest")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("--out", says="cannot write"):
        RunFolder(tmp_path / "file" / "run", "digest")


@pytest.mark.parametrize("pressed_in", ["fsync", "replace"])
def test_of_a_file_whose_writing_is_interrupted_nothing_is_left_and_the_earlier_one_stays(
    pressed_in, tmp_path, monkeypatch
):
    def ctrl_c(*_):
        raise KeyboardInterrupt

    (tmp_path / "profile.csv").write_text("earlier")
    monkeypatch.setattr(os, pressed_in, ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "profile.csv", b"new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("profile.csv", "earlier")]


def test_an_interrupted_run_does_not_replace_a_complete_one(tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder, 2)
    finish(folder)
    again = RunFolder(tmp_path / "run", "digest")
    fill(again, 1)
    assert finish(again, "interrupted") == tmp_path / "run.partial"
    assert read_manifest(tmp_path / "run")["status"] == "complete"


def test_resume_keeps_the_trials_that_are_finished(tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder, rounds=3, number=0, variant="a")
    fill(folder, rounds=1, number=1, variant="b")
    finish(folder, "interrupted")
    again = RunFolder(tmp_path / "run", "digest", resume=True)
    assert again.finished(0, {"name": "a", "rounds": 3})
    assert not again.finished(1, {"name": "b", "rounds": 3})
    assert not again.finished(2, {"name": "c", "rounds": 3})
    fill(again, rounds=3, number=1, variant="b")
    out = finish(again)
    assert pd.read_parquet(out / "rounds.parquet").groupby("variant").size().to_dict() == {"a": 3, "b": 3}
    assert not (out / "trials").exists()


def test_a_traceback_with_a_file_name_that_is_no_text_is_stored(tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    failure = Failure("a", seed=0, round=None, error="OSError: no such file")
    write_failure(folder.trial_folder(0), failure, traceback="in caf\udce9.py, with ü")
    assert folder.failures() == {failure: "in caf\\udce9.py, with ü"}


def test_a_trial_that_was_closed_and_failed_is_not_finished(tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder, number=0, variant="a")
    fill(folder, number=1, variant="b")
    (folder.trial_folder(1) / trials.FAILURE).write_text("{}")
    assert folder.finished(0, {"name": "a"})
    assert not folder.finished(1, {"name": "b"})


@pytest.mark.parametrize(
    "file", ["rounds.parquet", "ops.parquet", "checkpoint.safetensors", "summary.json", "SHA256SUMS"]
)
@pytest.mark.parametrize("damage", ["flipped", "emptied", "gone"])
def test_a_finished_trial_with_a_damaged_file_runs_again(file, damage, tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder, rounds=3, number=0, variant="a")
    fill(folder, rounds=3, number=1, variant="b")
    folder.release()
    path = folder.trial_folder(0) / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(b"" if damage == "emptied" else content)
    if damage == "gone":
        path.unlink()
    again = RunFolder(tmp_path / "run", "digest", resume=True)
    if (file, damage) == ("summary.json", "gone"):  # it was never closed
        assert again.damaged == {}
    else:
        assert list(again.damaged) == [0]
    assert not again.finished(0, {"name": "a", "rounds": 3})
    assert again.finished(1, {"name": "b", "rounds": 3})
    out = finish(again)
    assert pd.read_parquet(out / "rounds.parquet")["variant"].unique().tolist() == ["b"]


def test_a_published_run_has_the_checksums_of_its_files(tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder)
    out = finish(folder)
    (out / "report.html").write_text("a page")
    assert damaged(out) == []
    check = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=out, capture_output=True)
    assert check.returncode == 0
    (out / "labels.parquet").write_bytes(b"other")
    assert damaged(out) == ["labels.parquet"]


class Killed(BaseException):
    """What happens to a process."""


def kill(*args, **kwargs):
    raise Killed


KILLS = {
    "while an old folder is removed": ("shutil.rmtree", lambda path, **_: kill((path / "manifest.json").unlink())),
    "before the manifest has its name": ("sfl_sim.store.files.os.replace", kill),
    "while the manifest is written": ("sfl_sim.store.files.os.fsync", kill),
}


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("resume", [True, False])
def test_a_run_that_is_killed_while_it_begins_does_not_lock_its_place(kill, resume, tmp_path):
    before = RunFolder(tmp_path / "run", "digest")
    fill(before)
    before.release()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*KILLS[kill])
        with pytest.raises(Killed):
            RunFolder(tmp_path / "run", "digest")
    assert free_folder(tmp_path, "run", "digest") == tmp_path / "run"
    again = RunFolder(tmp_path / "run", "digest", resume=resume)
    fill(again)
    finish(again)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("content", [None, b"", b"{"])
def test_what_a_run_has_left_without_its_manifest_is_not_touched(content, tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder)
    folder.release()
    manifest = folder.staging / "manifest.json"
    manifest.unlink() if content is None else manifest.write_bytes(content)
    with pytest.raises(ScenarioError, match="holds something else"):
        RunFolder(tmp_path / "run", "digest", resume=True)
    assert free_folder(tmp_path, "run", "digest") == tmp_path / "run-2"


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_run_that_is_killed_while_it_is_published_loses_no_results(nth, tmp_path, monkeypatch):
    """Neither those that it replaces nor its own."""
    first = RunFolder(tmp_path / "run", "digest")
    fill(first, rounds=1)
    finish(first)
    second = RunFolder(tmp_path / "run", "digest")
    fill(second, rounds=2)
    calls = count(1)
    for place, name in ((Path, "rename"), (shutil, "rmtree")):
        move = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *a, move=move, **k: kill() if next(calls) == nth else move(*a, **k))
    with pytest.raises(Killed):
        finish(second)
    second.release()
    monkeypatch.undo()
    again = RunFolder(tmp_path / "run", "digest", resume=True)
    assert read_manifest(tmp_path / "run")["status"] == "complete"
    if nth < 3:
        assert again.finished(0, {"rounds": 2})
        finish(again)
    assert len(pd.read_parquet(tmp_path / "run" / "rounds.parquet")) == 2


def test_a_run_that_came_with_links_is_not_gone_on_with(tmp_path):
    folder = RunFolder(tmp_path / "run", "digest")
    fill(folder)
    out = finish(folder, "interrupted")
    (tmp_path / "precious.txt").write_text("mine")
    (out / "trials" / "0000" / "rounds.parquet").unlink()
    (out / "trials" / "0000" / "rounds.parquet").symlink_to(tmp_path / "precious.txt")
    with refused("--out", says="is a link.*rounds"):
        RunFolder(tmp_path / "run", "digest", resume=True)


def test_a_link_in_the_place_of_the_folder_is_neither_followed_nor_emptied(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "run.partial").symlink_to(tmp_path / "precious")
    with pytest.raises(ScenarioError, match="is a link"):
        RunFolder(tmp_path / "run", "digest")
    (tmp_path / "run.partial").unlink()
    for target in ("precious", "nowhere"):  # before anything is simulated for it
        (tmp_path / "run").symlink_to(tmp_path / target)
        with refused("--out", says="is a link"):
            RunFolder(tmp_path / "run", "digest")
        (tmp_path / "run").unlink()
    assert list((tmp_path / "precious").iterdir()) == []
    assert not (tmp_path / "nowhere").exists()


def test_a_place_that_tables_cannot_name_is_refused(tmp_path):
    with refused("--out", says="UTF-8"):
        RunFolder(tmp_path / os.fsdecode(b"run\xff"), "digest")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_of_another_scenario_left_is_passed_over(tmp_path):
    killed = RunFolder(tmp_path / "mine", "theirs")
    killed.release()
    assert killed.staging.exists()
    assert free_folder(tmp_path, "mine", "ours") == tmp_path / "mine-2"
    assert free_folder(tmp_path, "mine", "theirs") == tmp_path / "mine"


def test_a_run_has_begun_as_soon_as_its_folder_is_open(tmp_path):
    place = tmp_path / "run"
    assert not is_begun(place)
    folder = RunFolder(place, "digest")
    assert is_begun(place), "also if it is killed now"
    fill(folder)
    finish(folder)
    assert is_begun(place)
