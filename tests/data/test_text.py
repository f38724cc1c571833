"""Shakespeare: LEAF's files, any text with speaker headings, and the real tinyshakespeare."""

import json
import os
from pathlib import Path

import pytest
import torch
from refusals import refused

from sfl_sim.data.loading import load
from sfl_sim.data.text import ALPHABET, LENGTH
from sfl_sim.errors import ScenarioError

STAGED = Path(__file__).parents[3] / "shared" / "data" / "text" / "tinyshakespeare.txt"
PLAY = """\
HAMLET:
To be, or not
to be:

First Clown:
A pestilence on him! $5

HAMLET:

Exeunt
all but:
HORATIO

HAMLET:
Alas,  poor Yorick!
"""


def text(tokens):
    return "".join(ALPHABET[token] for token in tokens)


@pytest.fixture
def play(tmp_path):
    file = tmp_path / "play.txt"
    file.write_text(PLAY)
    return file


def test_the_alphabet_is_leafs_eighty_characters():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert "".join(sorted(ALPHABET)) == ALPHABET


def test_each_character_of_a_speech_follows_the_eighty_before_it(play):
    data = load("shakespeare", path=play)
    assert data.owner_names == ("First Clown", "HAMLET")
    assert data.mean is None
    speeches = {0: ["A pestilence on him!  5\n"], 1: ["To be, or not to be:\n", "Alas, poor Yorick!\n"]}
    found = {0: [], 1: []}
    for part in ((data.x_train, data.y_train, data.owners), (data.x_test, data.y_test, data.test_owners)):
        for x, y, owner in zip(*part, strict=True):
            found[int(owner)].append(text(x) + text([y]))
    for owner, lines in speeches.items():
        padded = [" " * LENGTH + line for line in lines]
        assert found[owner] == [line[i : i + LENGTH + 1] for line in padded for i in range(len(line) - LENGTH)]


def test_the_last_fifth_of_each_role_is_for_tests(play):
    data = load("shakespeare", path=play)
    assert torch.bincount(data.owners).tolist() == [24 - 5, 40 - 8]
    assert torch.bincount(data.test_owners).tolist() == [5, 8]
    assert text(data.y_test[-8:]) == "Yorick!\n"


def test_roles_keep_a_window_of_equal_size_or_are_left_out(play):
    whole, data = load("shakespeare", path=play), load("shakespeare", path=play, samples_per_owner=20)
    assert data.owner_names == ("HAMLET",)
    assert (len(data.x_train), len(data.x_test)) == (20, 4)
    spoken = text(whole.y_train[whole.owners == 1])
    assert text(data.y_train) in spoken
    with refused("data.samples_per_owner", found=32):
        load("shakespeare", path=play, samples_per_owner=32)


def test_a_text_without_headings_or_no_text_is_refused(tmp_path):
    (tmp_path / "prose.txt").write_text("Call me Ishmael.\n\nSome years ago\n")
    for name, problem in (("prose.txt", "no speeches below headings"), ("nowhere.txt", "cannot be read")):
        with pytest.raises(ScenarioError, match=rf"data\.path: .*{problem}.*{name}"):
            load("shakespeare", path=tmp_path / name)


# LEAF's files


def leaf(root, part, roles):
    """One JSON file as LEAF writes it; `roles` gives each role's line, of which every character is a sample."""
    lines = {role: " " * LENGTH + line for role, line in roles.items()}
    user_data = {
        role: {"x": [line[i : i + LENGTH] for i in range(len(line) - LENGTH)], "y": list(line[LENGTH:])}
        for role, line in lines.items()
    }
    user_data["NOBODY"] = {"x": [], "y": []}  # as LEAF leaves users behind whom it has dropped
    content = {"users": list(roles), "num_samples": list(map(len, roles.values())), "user_data": user_data}
    file = root / "shakespeare" / part / f"all_data_niid_0_keep_0_{part}_8.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"hierarchies": ["HAMLET"] * len(roles), **content}))
    return file


def test_leafs_roles_are_owners(tmp_path):
    leaf(tmp_path, "train", {"HAMLET_OPHELIA": "Good my lord", "HAMLET_HAMLET": "Words, words"})
    leaf(tmp_path, "test", {"HAMLET_OPHELIA": "O", "HAMLET_HAMLET": "|m"})
    data = load("shakespeare", root=tmp_path)
    assert data.owner_names == ("HAMLET_HAMLET", "HAMLET_OPHELIA")
    assert text(data.y_train[data.owners == 1]) == "Good my lord"
    assert text(data.x_train[data.owners == 1][5]) == " " * 75 + "Good "
    assert text(data.y_test) == " mO"  # a character that LEAF does not know is a space
    assert data.n_labels == 80
    assert data.label_names[:3] == ("newline", "space", "!")


def test_samples_of_another_length_are_refused(tmp_path):
    leaf(tmp_path, "test", {"A": "x"})
    file = leaf(tmp_path, "train", {"A": "xy"})
    for short, long in (('["x", "y"]', '["x", "yy"]'), (f'"{" " * LENGTH}"', f'"{" " * (LENGTH + 1)}"')):
        whole = file.read_text()
        assert short in whole
        file.write_text(whole.replace(short, long))
        with refused("data.name", says="80"):
            load("shakespeare", root=tmp_path)
        file.write_text(whole)


def test_missing_files_say_how_to_make_them_or_what_else_there_is(tmp_path):
    with pytest.raises(ScenarioError, match=r"data/shakespeare/preprocess\.sh -s niid.*-tf 0\.8"):
        load("shakespeare", root=tmp_path)


# The real text


@pytest.mark.skipif(not STAGED.exists(), reason="tinyshakespeare.txt is not staged")
def test_tinyshakespeare_gives_every_role_2000_characters():
    data = load("shakespeare", path=STAGED, samples_per_owner=2000)
    assert data.x_train.shape == (90 * 2000, LENGTH)
    assert torch.bincount(data.owners).tolist() == [2000] * 90
    assert torch.bincount(data.test_owners).tolist() == [400] * 90
    assert {"ROMEO", "JULIET", "Nurse"} < set(data.owner_names)
    assert int(data.y_train.bincount().argmax()) == ALPHABET.index(" ")


@pytest.mark.parametrize("odd", ["/dev/zero", "pipe", "empty", "huge", "x" * 5000, "/proc/self"])
def test_what_is_no_text_of_a_sensible_size_is_refused_at_once(odd, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(10**11)
    with refused("data.path", says=r"cannot be read: "):
        load("shakespeare", root=tmp_path, path=tmp_path / odd)
