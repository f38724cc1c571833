"""FEMNIST from LEAF's JSON files."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from well_formed import assert_normalised_by_mean_and_std

from sfl_sim.data.loading import load
from sfl_sim.errors import ScenarioError

WRITERS = {"f0001_41": 70, "f0000_14": 59, "f0002_99": 58, "f0003_07": 90}
N_TEST = 5
"""f0000_14 has 64 samples in all, f0002_99 one less."""


def write(root, part, users, samples):
    """One file as LEAF's split_data.py writes it."""
    content = {
        "users": list(users),
        "num_samples": [len(samples[user]["y"]) for user in users],
        "user_data": {user: samples[user] for user in users},
    }
    folder = root / "femnist" / part
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"all_data_{len(list(folder.iterdir()))}_niid_0_keep_0_{part}_9.json").write_text(json.dumps(content))


def drawings(writer, part, n):
    """Make a writer's images: all pixels have the grey of the label, and a corner has the writer's number."""
    y = [(i + len(part)) % 62 for i in range(n)]
    x = np.tile(np.array(y)[:, None] / 255, 784)
    x[:, 0] = list(WRITERS).index(writer) / 255
    return {"x": x.round(3).tolist(), "y": y}


@pytest.fixture
def root(tmp_path):
    for part in ("train", "test"):
        n = {writer: N_TEST if part == "test" else n for writer, n in WRITERS.items()}
        samples = {writer: drawings(writer, part, n[writer]) for writer in WRITERS}
        first, *rest = WRITERS
        write(tmp_path, part, [first], samples)
        write(tmp_path, part, rest, samples)
    return tmp_path


def test_every_writer_keeps_their_own_drawings(root):
    data = load("femnist", root=root)
    assert data.owner_names == ("f0000_14", "f0001_41", "f0003_07")  # f0002_99 drew too few
    assert data.x_train.shape == (59 + 70 + 90, 1, 28, 28)
    assert data.x_train.dtype is torch.uint8
    assert torch.bincount(data.owners).tolist() == [59, 70, 90]
    assert torch.bincount(data.test_owners).tolist() == [N_TEST] * 3
    for x, y, owners in ((data.x_train, data.y_train, data.owners), (data.x_test, data.y_test, data.test_owners)):
        assert torch.equal(x[:, 0, 5, 5].long(), y)
        assert [list(WRITERS)[corner] for corner in x[:, 0, 0, 0]] == [data.owner_names[owner] for owner in owners]
    assert_normalised_by_mean_and_std(data)


def test_labels_are_digits_capitals_and_small_letters(root):
    names = load("femnist", root=root).label_names
    assert len(names) == 62
    assert (names[9], names[10], names[35], names[36], names[61]) == ("9", "A", "Z", "a", "z")


def test_so_many_writers_can_be_drawn_the_same_each_time(root):
    whole, two, again = load("femnist", root=root), *(load("femnist", root=root, owners=2) for _ in range(2))
    assert len(two.owner_names) == 2
    assert set(two.owner_names) < set(whole.owner_names)
    assert torch.equal(two.x_train, again.x_train)
    assert len(two.x_test) == 2 * N_TEST
    with refused("data.owners", says=r"not so many.*found 4; allowed: 1 to 3"):
        load("femnist", root=root, owners=4)


def test_missing_files_are_one_line_that_says_how_to_make_them(tmp_path):
    with pytest.raises(ScenarioError, match=r"preprocess\.sh .*-t sample.*github\.com/TalwalkarLab/leaf") as failure:
        load("femnist", root=tmp_path)
    assert str(tmp_path / "femnist") in str(failure.value)
    assert not {"\n", "  "} & {*str(failure.value)}


GREY = [[0.5] * 784]


@pytest.mark.parametrize(
    ("part", "user", "x", "y", "told"),
    [
        ("train", "f0", [[0.5] * 783], [1], "all_data_2"),
        ("train", "f0", [[128.0] * 784], [1], "all_data_2.*0 to 1"),
        ("train", "f0", GREY, [62], "all_data_2.*0 to 61"),
        ("train", "f0", GREY, [1, 2], "all_data_2.*f0"),
        ("train", "f0001_41", GREY, [1], "all_data_2.*f0001_41"),  # who is in another file, too
        ("test", "f0004_01", GREY, [1], "`-t sample`.*f0004_01"),  # as a split by user gives it
    ],
)
def test_what_is_not_femnist_split_by_samples_is_named(root, part, user, x, y, told):
    write(root, part, [user], {user: {"x": x, "y": y}})
    with pytest.raises(ScenarioError, match=re.compile(told)) as failure:
        load("femnist", root=root)
    assert failure.value.key == "data.name"


def test_a_broken_file_is_named(root):
    (root / "femnist" / "train" / "broken.json").write_text('{"users": [')
    with pytest.raises(ScenarioError, match=r"broken\.json"):
        load("femnist", root=root)


def celeba(root, **parts):
    """Files of a celebrity 7 as LEAF writes them, by part: names of images and whether they smile."""
    for part, (x, y) in parts.items():
        folder = root / "celeba" / part
        folder.mkdir(parents=True)
        users = {"7": {"x": x, "y": y}}
        (folder / "all.json").write_text(json.dumps({"users": ["7"], "num_samples": [1], "user_data": users}))


def test_a_celebrity_smiles_or_not(tmp_path):
    images = tmp_path / "celeba" / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    for i in range(4):
        Image.new("RGB", (178, 218), (10 * i, 0, 255)).save(images / f"{i}.png")
    celeba(tmp_path, train=(["0.png", "1.png"], [0.0, 1.0]), test=(["3.png"], [1.0]))
    data = load("celeba", root=tmp_path)
    assert data.x_train.shape == (2, 3, 84, 84)
    assert data.x_train[1, :, 40, 40].tolist() == [10, 0, 255]
    assert data.x_test[0, :, 40, 40].tolist() == [30, 0, 255]
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 1], [1])
    assert data.label_names == ("not smiling", "smiling")


@pytest.mark.parametrize(
    ("x", "y", "problem"), [("../0.png", 0, "by its file alone"), ("0.png", 0.5, "neither 0 nor 1")]
)
def test_a_face_elsewhere_or_half_a_smile_is_refused(tmp_path, x, y, problem):
    celeba(tmp_path, train=([x], [y]), test=([x], [y]))
    with pytest.raises(ScenarioError, match=problem):
        load("celeba", root=tmp_path)
