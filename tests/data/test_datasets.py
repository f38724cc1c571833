from __future__ import annotations

import urllib.error
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from sfl_sim.data.datasets import load
from sfl_sim.errors import ScenarioError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from sfl_sim.data.datasets import Dataset

GREY, RED, GREEN = 90, (255, 0, 0), (0, 255, 0)


def save(file: Path, colour: int | tuple[int, int, int], size: tuple[int, int] = (6, 4)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(file)


def rows(x: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in x}


def assert_well_formed(data: Dataset) -> None:
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        assert x.dtype is torch.uint8
        assert y.dtype is torch.int64
        assert len(x) == len(y)
        assert set(y.tolist()) == set(range(data.n_labels))
        assert data.mean.shape == data.std.shape == x.shape[1:2]


def assert_pixels_are_normalised_by_mean_and_std(data: Dataset) -> None:
    value = torch.arange(256) / 255
    for channel, mean, std in zip(data.x_train.unbind(1), data.mean.tolist(), data.std.tolist(), strict=True):
        share = torch.bincount(channel.flatten(), minlength=256) / channel.numel()
        assert float((share * value).sum()) == pytest.approx(mean, abs=1e-4)
        assert float((share * (value - mean) ** 2).sum()) == pytest.approx(std**2, abs=1e-4)


# digits


def test_digits_are_split_four_to_one_within_every_label():
    data = load("digits")
    assert_well_formed(data)
    assert_pixels_are_normalised_by_mean_and_std(data)
    assert data.x_train.shape == (1438, 1, 8, 8)
    assert data.x_test.shape == (359, 1, 8, 8)
    assert data.label_names == tuple("0123456789")
    assert data.x_train.max() == 255
    test, train = torch.bincount(data.y_test), torch.bincount(data.y_train)
    assert (test - 0.2 * (test + train)).abs().max() <= 1


def test_digits_test_images_are_no_training_images():
    data = load("digits")
    assert rows(data.x_train).isdisjoint(rows(data.x_test))
    assert len(rows(data.x_train) | rows(data.x_test)) == 1797


def test_a_subset_is_stratified_and_the_same_every_time():
    whole, subset, again = (
        load("digits"),
        *(load("digits", train_samples=100, test_samples=50) for _ in range(2)),
    )
    assert torch.equal(subset.x_train, again.x_train)
    assert (len(subset.y_train), len(subset.y_test)) == (100, 50)
    share = torch.bincount(whole.y_train) * 100 / len(whole.y_train)
    assert (torch.bincount(subset.y_train) - share).abs().max() < 1
    assert rows(subset.x_train) < rows(whole.x_train)
    assert torch.equal(subset.mean, whole.mean)


@pytest.mark.parametrize(("key", "wanted"), [("train_samples", 1439), ("test_samples", 360), ("test_samples", 0)])
def test_a_subset_larger_than_the_set_or_empty_is_refused(key, wanted):
    with pytest.raises(ScenarioError, match=f"data.{key}.*found {wanted}"):
        load("digits", **{key: wanted})


# torchvision's sets


@pytest.mark.parametrize(
    ("name", "train_shape", "first_label"),
    [("cifar10", (50_000, 3, 32, 32), "airplane"), ("fashion_mnist", (60_000, 1, 28, 28), "T-shirt/top")],
)
def test_real_images_load_offline_with_their_well_known_constants(staged_data, capfd, name, train_shape, first_label):
    data = load(name, root=staged_data, download=False)
    assert_well_formed(data)
    assert_pixels_are_normalised_by_mean_and_std(data)
    assert data.x_train.shape == train_shape
    assert data.x_test.shape == (10_000, *train_shape[1:])
    assert data.label_names[0] == first_label
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_missing_files_are_one_line_that_says_where_they_belong(tmp_path, monkeypatch, name):
    monkeypatch.setenv("SFL_SIM_DATA", str(tmp_path))
    with pytest.raises(ScenarioError, match=r"download is off.*SFL_SIM_DATA") as failure:
        load(name, download=False)
    assert failure.value.key == "data.name"
    assert str(tmp_path) in str(failure.value)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(("name", "module"), [("cifar10", "cifar"), ("fashion_mnist", "mnist")])
def test_a_failed_download_is_one_line_that_says_why(tmp_path, monkeypatch, capfd, name, module):
    def no_network(*args: object, **kwargs: object) -> None:
        print("Downloading ...")
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(f"torchvision.datasets.{module}.download_and_extract_archive", no_network)
    with pytest.raises(ScenarioError, match=r"downloading it failed.*no network") as failure:
        load(name, root=tmp_path)
    assert str(tmp_path) in str(failure.value)
    assert "\n" not in str(failure.value)
    assert capfd.readouterr() == ("", "")


# a user's own images


def test_class_folders_alone_are_split_four_to_one(tmp_path):
    for i in range(1, 11):
        save(tmp_path / "cats" / f"{i}.png", (i, 0, 0))
        save(tmp_path / "dogs" / f"{i}.png", (0, i, 0))
    data = load("image_folder", path=tmp_path)
    assert_well_formed(data)
    assert data.label_names == ("cats", "dogs")
    assert data.x_train.shape == (16, 3, 4, 6)
    assert torch.bincount(data.y_test).tolist() == [2, 2]
    assert torch.equal(data.y_train == 1, data.x_train[:, 1, 0, 0] > 0)  # dogs are green


def test_train_and_test_folders_are_kept_apart_with_their_labels(tmp_path):
    save(tmp_path / "train" / "red" / "a.png", RED)
    save(tmp_path / "train" / "green" / "b.jpg", GREEN)
    save(tmp_path / "test" / "red" / "c.png", RED)
    save(tmp_path / "test" / "green" / "d.png", GREEN)
    data = load("image_folder", path=str(tmp_path))
    assert data.label_names == ("green", "red")
    assert data.y_train.tolist() == data.y_test.tolist() == [0, 1]
    assert data.x_test[:, :, 0, 0].tolist() == [[0, 255, 0], [255, 0, 0]]


def test_grey_files_make_grey_images_and_one_colour_file_makes_all_rgb(tmp_path):
    save(tmp_path / "a" / "1.png", GREY)
    save(tmp_path / "b" / "1.png", GREY)
    assert load("image_folder", path=tmp_path).x_train.shape[1] == 1
    save(tmp_path / "b" / "2.png", RED)
    data = load("image_folder", path=tmp_path)
    assert rows(torch.cat([data.x_train, data.x_test])[:, :, 0, 0]) == {bytes([GREY] * 3), bytes(RED)}


def test_a_constant_channel_can_still_be_divided_by_its_std(tmp_path):
    save(tmp_path / "a" / "1.png", RED)
    save(tmp_path / "b" / "1.png", GREEN)
    data = load("image_folder", path=tmp_path)
    assert (data.x_train[:, 2] == 0).all()
    assert (data.std > 0).all()


def test_images_of_unequal_size_need_an_image_size(tmp_path):
    save(tmp_path / "a" / "1.png", RED, size=(6, 4))
    save(tmp_path / "b" / "2.png", RED, size=(5, 5))
    with pytest.raises(ScenarioError, match=r"6 x 4 pixels.*5 x 5") as failure:
        load("image_folder", path=tmp_path)
    assert failure.value.key == "data.image_size"
    assert load("image_folder", path=tmp_path, image_size=8).x_train.shape[1:] == (3, 8, 8)


def test_a_file_that_is_no_image_is_named(tmp_path):
    save(tmp_path / "a" / "1.png", RED)
    save(tmp_path / "b" / "2.png", RED)
    (tmp_path / "b" / "broken.png").write_bytes(b"no image")
    with pytest.raises(ScenarioError, match=r"broken\.png"):
        load("image_folder", path=tmp_path)


def test_a_truncated_image_is_named(tmp_path):
    save(tmp_path / "a" / "1.png", RED)
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    whole = tmp_path / "b" / "cut.png"
    whole.parent.mkdir()
    Image.fromarray(noise).save(whole)
    whole.write_bytes(whole.read_bytes()[:1000])
    with pytest.raises(ScenarioError, match=r"cut\.png"):
        load("image_folder", path=tmp_path, image_size=8)


def test_sixteen_bit_images_are_refused_rather_than_clipped(tmp_path):
    save(tmp_path / "a" / "1.png", GREY)
    (tmp_path / "b").mkdir()
    Image.fromarray(np.full((4, 6), 4000, dtype=np.uint16)).save(tmp_path / "b" / "deep.png")
    with pytest.raises(ScenarioError, match=r"deep\.png.*8 bits"):
        load("image_folder", path=tmp_path)


def test_folders_that_are_no_data_set_are_refused(tmp_path):
    with pytest.raises(ScenarioError, match="nowhere"):
        load("image_folder", path=tmp_path / "nowhere")
    save(tmp_path / "only" / "1.png", RED)
    with pytest.raises(ScenarioError, match="only one class"):
        load("image_folder", path=tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScenarioError, match="empty"):
        load("image_folder", path=tmp_path)


def test_train_and_test_need_the_same_classes(tmp_path):
    for part, classes in (("train", "abc"), ("test", "abd")):
        for name in classes:
            save(tmp_path / part / name / "1.png", RED)
    with pytest.raises(ScenarioError, match="classes c, d"):
        load("image_folder", path=tmp_path)


# options


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ScenarioError, match=r"allowed: digits, fashion_mnist.*did you mean 'cifar10'"):
        load("cifar")


@pytest.mark.parametrize("option", [{"path": "x"}, {"image_size": 8}, {"root": "x"}])
def test_an_option_of_another_data_set_is_refused(option):
    with pytest.raises(ScenarioError, match="not an option of digits") as failure:
        load("digits", **option)
    assert failure.value.key == f"data.{next(iter(option))}"


def test_image_folder_needs_its_path():
    with pytest.raises(ScenarioError, match=r"data.path"):
        load("image_folder")
