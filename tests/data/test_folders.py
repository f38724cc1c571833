"""Image files in folders: a user's own, CINIC-10 and Tiny ImageNet."""

import os

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from well_formed import assert_well_formed

from sfl_sim.data.folders import list_images
from sfl_sim.data.loading import load
from sfl_sim.errors import ScenarioError

GREY, RED, GREEN, BLUE = 90, (255, 0, 0), (0, 255, 0), (0, 0, 255)


def save(file, colour, size=(6, 4)):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", size, colour).save(file)


def fill(folder, *files, colour=RED):
    """Save images of a colour under these names."""
    for file in files:
        save(folder / file, colour)
    return folder


def rows(x):
    return {image.numpy().tobytes() for image in x}


def colours(x):
    return x[:, :, 0, 0].tolist()


# a user's own


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
    fill(tmp_path, "train/red/a.png", "test/red/c.png")
    fill(tmp_path, "train/green/b.jpg", "test/green/d.png", colour=GREEN)
    data = load("image_folder", path=str(tmp_path))
    assert data.label_names == ("green", "red")
    assert data.y_train.tolist() == data.y_test.tolist() == [0, 1]
    assert data.x_test[:, :, 0, 0].tolist() == [[0, 255, 0], [255, 0, 0]]


def test_grey_files_make_grey_images_and_one_colour_file_makes_all_rgb(tmp_path):
    fill(tmp_path, "a/1.png", "a/2.png", "b/1.png", colour=GREY)
    assert load("image_folder", path=tmp_path).x_train.shape[1] == 1
    save(tmp_path / "b" / "2.png", RED)
    data = load("image_folder", path=tmp_path)
    assert rows(torch.cat([data.x_train, data.x_test])[:, :, 0, 0]) == {bytes([GREY] * 3), bytes(RED)}


def test_a_constant_channel_can_still_be_divided_by_its_std(tmp_path):
    fill(tmp_path, "a/1.png")
    data = load("image_folder", path=fill(tmp_path, "b/1.png", "b/2.png", colour=GREEN))
    assert (data.x_train[:, 2] == 0).all()
    assert (data.std > 0).all()


def test_images_of_unequal_size_need_an_image_size(tmp_path):
    save(tmp_path / "a" / "1.png", RED, size=(6, 4))
    save(tmp_path / "b" / "2.png", RED, size=(5, 5))
    save(tmp_path / "b" / "3.png", RED, size=(5, 5))
    with refused("data.image_size", says=r"6 x 4 pixels.*5 x 5"):
        load("image_folder", path=tmp_path)
    assert load("image_folder", path=tmp_path, image_size=8).x_train.shape[1:] == (3, 8, 8)


def test_what_a_mac_writes_beside_a_photo_is_no_photo(tmp_path):
    fill(tmp_path, "a/1.png", "a/2.png", "b/1.png", "b/2.png")
    for name in "ab":
        (tmp_path / name / "._1.png").write_bytes(b"\0\5\x16\7")
    data = load("image_folder", path=tmp_path)
    assert len(data.x_train) + len(data.x_test) == 4


def truncated(file):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(file)
    file.write_bytes(file.read_bytes()[:1000])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(b"no image"),
        truncated,
        lambda file: Image.fromarray(np.full((4, 6), 4000, dtype=np.uint16)).save(file),  # 16 bits, not to be clipped
        os.mkfifo,
    ],
)
def test_what_is_no_image_of_8_bits_is_named_and_a_pipe_not_waited_for(tmp_path, spoil):
    spoil(fill(tmp_path, "a/1.png", "b/2.png") / "b" / "bad.png")
    with refused("data.path", says=r"bad\.png"):
        load("image_folder", path=tmp_path, image_size=8)


@pytest.mark.parametrize(
    ("files", "key", "told"),
    [
        (["only/1.png"], "data.path", "only one class"),
        (["train/a/1.png", "train/b/1.png", "train/c/1.png", "test/a/1.png", "test/b/1.png", "test/d/1.png"],
         "data.path", "c, d"),
        (["train/a/1.png", "train/b/1.png", "val/a/1.png", "val/b/1.png"], "data.path", "'train, val'"),
        (["Train/a/1.png", "Train/b/1.png", "valid/a/1.png", "valid/b/1.png"], "data.path", "'Train, valid'"),
        (["Validation/a/1.png", "test/b/1.png"], "data.path", "'Validation, test'"),
        (["train/a/1.png", "train/b/1.png"], "data.path", "'train'"),
        (["cats/1.png", "dogs/1.png"], "data.name", "no test samples"),
    ],
)  # fmt: skip
def test_folders_that_are_no_data_set_are_refused(tmp_path, files, key, told):
    with pytest.raises(ScenarioError, match=told) as failure:
        load("image_folder", path=fill(tmp_path, *files))
    assert failure.value.key == key


@pytest.mark.parametrize("odd", ["nowhere", "x" * 5000, "pipe", "/dev/zero", None])
def test_what_is_no_folder_is_refused_at_once(odd, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with refused("data.path"):
        load("image_folder", path=odd and tmp_path / odd)


def test_a_second_start_reads_no_image_again(tmp_path, monkeypatch):
    first = load("image_folder", path=fill(tmp_path, "a/1.png", "a/2.png", "b/1.png", "b/2.png"))
    monkeypatch.setattr("sfl_sim.data.folders.read_images", None)
    assert torch.equal(load("image_folder", path=tmp_path).x_train, first.x_train)
    with pytest.raises(TypeError):
        load("image_folder", path=tmp_path, image_size=3)


# CINIC-10


def cinic10(root):
    """Two classes of CINIC-10 as its archive unpacks them."""
    for part, shade in (("train", 255), ("valid", 200), ("test", 100)):
        save(root / "CINIC-10" / part / "airplane" / "cifar10-train-1.png", (shade, 0, 0), (32, 32))
        save(root / "CINIC-10" / part / "truck" / "n03345487_1.png", (0, shade, 0), (32, 32))
    return root


def test_cinic10_is_its_train_and_test_folders_with_the_published_constants(tmp_path):
    data = load("cinic10", root=cinic10(tmp_path), download=False)
    assert data.x_train.shape == (2, 3, 32, 32)
    assert colours(data.x_train) == [[255, 0, 0], [0, 255, 0]]
    assert colours(data.x_test) == [[100, 0, 0], [0, 100, 0]]
    assert data.label_names == ("airplane", "truck")
    assert data.mean.tolist() == pytest.approx([0.47889522, 0.47227842, 0.43047404])
    assert data.std.tolist() == pytest.approx([0.24205776, 0.23828046, 0.25874835])


@pytest.mark.parametrize("size", [(32, 32), (8, 8)])
def test_errors_of_a_published_set_name_no_option_that_it_lacks(tmp_path, size):
    file = cinic10(tmp_path) / "CINIC-10" / "test" / "truck" / "cifar10-test-2.png"
    save(file, RED, size)
    if size == (32, 32):
        file.write_bytes(b"no image")
    with refused("data.name", says=r"cifar10-test-2\.png"):
        load("cinic10", root=tmp_path, download=False)


# Tiny ImageNet


def tiny_imagenet(root):
    """Two classes of Tiny ImageNet in the layout of its zip; one image is grey, as some of its are."""
    folder = root / "tiny-imagenet-200"
    for wnid, colour in (("n02124075", GREEN), ("n01443537", RED)):
        for number in range(2):
            save(folder / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", colour, (64, 64))
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
    save(folder / "train" / "n01443537" / "images" / "n01443537_9.JPEG", GREY, (64, 64))
    save(folder / "val" / "images" / "val_0.JPEG", GREEN, (64, 64))
    save(folder / "val" / "images" / "val_1.JPEG", RED, (64, 64))
    save(folder / "test" / "images" / "test_0.JPEG", BLUE, (64, 64))
    annotations = "val_1.JPEG\tn01443537\t0\t32\t44\t62\nval_0.JPEG\tn02124075\t52\t55\t57\t59\n"
    (folder / "val" / "val_annotations.txt").write_text(annotations)
    (folder / "wnids.txt").write_text("n02124075\nn01443537\n")
    words = "n00001740\tentity\nn01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\n"
    (folder / "words.txt").write_text(words)
    return root


def test_tiny_imagenet_tests_on_its_annotated_validation_images(tmp_path):
    data = load("tiny_imagenet", root=tiny_imagenet(tmp_path), download=False)
    assert data.label_names == ("goldfish", "Egyptian cat")
    assert data.x_train.shape == (5, 3, 64, 64)
    assert data.y_train.tolist() == [0, 0, 0, 1, 1]
    assert colours(data.x_train)[2] == [GREY] * 3
    is_red, is_green = data.x_test[:, 0, 0, 0] > 200, data.x_test[:, 1, 0, 0] > 200
    assert data.y_test[is_red].tolist() == [0]
    assert data.y_test[is_green].tolist() == [1]


def test_a_folder_that_lacks_a_part_of_tiny_imagenet_is_refused(tmp_path):
    folder = tiny_imagenet(tmp_path) / "tiny-imagenet-200"
    (folder / "val" / "val_annotations.txt").unlink()
    with refused("data.name", says="val_annotations"):
        load("tiny_imagenet", root=tmp_path, download=False)


@pytest.mark.parametrize(
    ("name", "archive"),
    [("cinic10", "datashare.ed.ac.uk/.*/CINIC-10.tar.gz"), ("tiny_imagenet", "cs231n.stanford.edu/.*.zip")],
)
def test_a_missing_set_says_what_to_download(tmp_path, name, archive):
    with pytest.raises(ScenarioError, match=f"{name} is not in {tmp_path} and .*download is off: download .*{archive}"):
        load(name, root=tmp_path, download=False)


def test_links_that_lead_back_do_not_multiply_images(tmp_path):
    kept = ["cats/2.png", "cats/deep/1.png", "dogs/2.png", "dogs/deep/1.png"]
    fill(tmp_path, *kept)
    for name in ("cats", "dogs"):
        for link in ("again", "and again"):
            (tmp_path / name / link).symlink_to(tmp_path / name)
    files, labels, _ = list_images(tmp_path, "data.path")
    assert [file.relative_to(tmp_path).as_posix() for file in files] == kept
    assert labels.tolist() == [0, 0, 1, 1]


def test_a_class_without_images_is_named(tmp_path):
    (fill(tmp_path, "a/1.png") / "b").mkdir()
    with refused("data.path", found=["b"]):
        list_images(tmp_path, "data.path")
