"""Checkpoints on a disk: whole or not there, and whatever damage is done to one, it is noticed."""

import errno
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfl_sim.store.checkpoints import Checkpoints

ROUNDS = [{"loss": 0.1 + round} for round in range(3)]


def memory(number):
    return f"what was in memory after round {number}".encode()


def stored(trial, n=3):
    """Store `n` rounds, with a checkpoint after each."""
    checkpoints = Checkpoints(trial)
    checkpoints.go_on_after(None)
    for number in range(n):
        checkpoints.add_round(ROUNDS[number])
        checkpoints.save(f"round-{number + 1:06d}", {"number": number}, memory(number))
    return checkpoints


def found(trial):
    """List the readable checkpoints, and the problems of the others."""
    problems = []
    return list(Checkpoints(trial).readable(problems.append)), problems


def assert_is(checkpoint, number):
    assert checkpoint.about["number"] == number
    assert checkpoint.rounds == ROUNDS[: number + 1]
    assert checkpoint.memory == memory(number)


def test_the_newest_and_the_one_before_are_there(tmp_path):
    stored(tmp_path)
    (newest, before), problems = found(tmp_path)
    assert_is(newest, 2)
    assert_is(before, 1)
    assert problems == []
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "round-000002",
        "round-000003",
        "rounds.jsonl",
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    trial = tmp_path_factory.mktemp("whole")
    stored(trial)
    return trial / "checkpoints"


@given(data=st.data())
@settings(max_examples=60)
def test_whatever_byte_changes_and_wherever_a_file_ends_what_is_read_is_what_was_written(data, whole, tmp_path_factory):
    trial = tmp_path_factory.mktemp("damaged")
    shutil.copytree(whole, trial / "checkpoints")
    path = data.draw(st.sampled_from(sorted(path for path in trial.rglob("*") if path.is_file())))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[at:]
    path.write_bytes(content)
    checkpoints, problems = found(trial)
    assert len(checkpoints) + len(problems) == 2
    for checkpoint in checkpoints:
        assert_is(checkpoint, int(checkpoint.folder.name[-1]) - 1)
    for problem in problems:
        assert "is damaged (" in problem


def test_a_write_that_fails_leaves_the_earlier_ones_and_can_be_done_again(tmp_path, monkeypatch):
    checkpoints = stored(tmp_path, n=2)
    checkpoints.add_round(ROUNDS[2])
    for failing in ("write_file", "settle"):
        with monkeypatch.context() as patch:
            patch.setattr(f"sfl_sim.store.checkpoints.{failing}", full)
            with pytest.raises(OSError, match="full"):
                checkpoints.save("round-000003", {"number": 2}, memory(2))
        (newest, before), problems = found(tmp_path)
        assert_is(newest, 1)
        assert_is(before, 0)
        assert problems == []
    checkpoints.save("round-000003", {"number": 2}, memory(2))
    assert_is(found(tmp_path)[0][0], 2)


def full(*args):
    raise OSError(errno.ENOSPC, "full")


def test_what_follows_an_earlier_one_takes_the_place_of_what_was_after_it(tmp_path):
    stored(tmp_path)
    checkpoints, (_, before) = Checkpoints(tmp_path), found(tmp_path)[0]
    checkpoints.go_on_after(before)
    checkpoints.add_round({"loss": "another"})
    checkpoints.save("round-000003", {"number": "another"}, b"")
    newest, other = found(tmp_path)[0]
    assert newest.rounds == [*ROUNDS[:2], {"loss": "another"}]
    assert_is(other, 1)


def test_nothing_is_made_where_the_folder_of_the_trial_is_gone(tmp_path):
    (tmp_path / "trial").mkdir()
    checkpoints = stored(tmp_path / "trial")
    shutil.rmtree(tmp_path / "trial")
    with pytest.raises(FileNotFoundError):
        checkpoints.save("round-000004", {}, b"")
    assert not (tmp_path / "trial").exists()
