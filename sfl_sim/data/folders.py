"""Data sets of image files in folders."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sfl_sim.data.cache import cached, walk
from sfl_sim.data.dataset import Dataset, measured, split_off_test
from sfl_sim.data.download import Remote, data_root, fetch_folder, own_path
from sfl_sim.data.transforms import channels_first
from sfl_sim.errors import ScenarioError, unreadable

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Endings of names of files that are images, in any case."""
PARTS = {"train", "val", "valid", "validation", "test"}
"""Names of folders that are not classes."""


def cinic10(root: str | Path | None = None, download: bool = True) -> Dataset:
    """CINIC-10 (Darlow et al. 2018): 90,000 + 90,000 colour images of 32 x 32, without its validation images."""
    folder = data_root(root) / "CINIC-10"
    urls = tuple(
        f"https://{host}/bitstream/handle/10283/3192/CINIC-10.tar.gz"
        for host in ("datashare.ed.ac.uk", "datashare.is.ed.ac.uk")
    )
    mean, std = (0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)

    def read() -> Dataset:
        archive = Remote(urls, folder.with_name("CINIC-10.tar.gz"), "md5:6ee4d0c996905fe93221de577967a372")
        fetch_folder("cinic10", folder, archive, download)
        return replace(
            _train_and_test("cinic10", folder, None, "data.name"), mean=torch.tensor(mean), std=torch.tensor(std)
        )

    return cached(data_root(root), "cinic10", {}, [folder / "train", folder / "test"], read)


def tiny_imagenet(root: str | Path | None = None, download: bool = True) -> Dataset:
    """Tiny ImageNet (Stanford CS231n): 100,000 + 10,000 colour images of 64 x 64, 200 classes.

    The test images are the published validation images, since the labels of its test images are not published.
    """
    folder = data_root(root) / "tiny-imagenet-200"
    url = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"

    def read() -> Dataset:
        archive = Remote((url,), folder.with_name("tiny-imagenet-200.zip"), "md5:90528d7ca1a48142e341f4ef8d21d0de")
        fetch_folder("tiny_imagenet", folder, archive, download)
        return _read_tiny_imagenet(folder)

    return cached(data_root(root), "tiny_imagenet", {}, [folder / "train", folder / "val"], read)


def image_folder(path: str | Path | None = None, image_size: int | None = None) -> Dataset:
    """Images of your own: one folder for each class, in `path` or in both `path`/train and `path`/test.

    Without train and test folders a stratified fifth of the images becomes the test set. Images are grey if
    all files are, else RGB.

    Args:
        path: folder of the images.
        image_size: pixels of each side to which images are resized; None keeps their size.

    Raises ScenarioError for no path, fewer than two classes, unequal classes in train and test, one of them without the
    other, an unreadable file, or files of unequal size without an `image_size`.
    """
    if not path:
        raise ScenarioError("image_folder needs the folder of the images", key="data.path")
    folder = own_path(path)

    def read() -> Dataset:
        if (folder / "train").is_dir() and (folder / "test").is_dir():
            return _train_and_test("image_folder", folder, image_size, "data.path")
        if parts := sorted(part.name for part in folder.glob("*") if part.name.lower() in PARTS and part.is_dir()):
            problem = f"{folder} needs both train and test, or class folders alone"
            raise ScenarioError(problem, key="data.path", found=", ".join(parts))
        files, y, names = list_images(folder, "data.path")
        return split_off_test("image_folder", read_images(files, image_size, "data.path"), y, names)

    return cached(data_root(None), "image_folder", {"path": str(folder), "image_size": image_size}, [folder], read)


def _train_and_test(name: str, folder: Path, image_size: int | None, key: str) -> Dataset:
    train_files, y_train, names = list_images(folder / "train", key)
    test_files, y_test, test_names = list_images(folder / "test", key)
    if names != test_names:
        differing = ", ".join(sorted(set(names) ^ set(test_names)))
        raise ScenarioError(f"train and test in {folder} do not share the classes {differing}", key=key)
    x_train, x_test = read_images(train_files + test_files, image_size, key).tensor_split([len(train_files)])
    return measured(Dataset(name, x_train, y_train, x_test, y_test, tuple(names)))


def _read_tiny_imagenet(folder: Path) -> Dataset:
    try:
        ids = sorted((folder / "wnids.txt").read_text().split())
        words = dict(line.split("\t") for line in (folder / "words.txt").read_text().splitlines())
        annotated = [line.split("\t")[:2] for line in (folder / "val" / "val_annotations.txt").read_text().splitlines()]
        label = {wnid: number for number, wnid in enumerate(ids)}
        train = [(file, label[wnid]) for wnid in ids for file in sorted((folder / "train" / wnid).glob("images/*"))]
        test = [(folder / "val" / "images" / Path(file).name, label[wnid]) for file, wnid in annotated]
        names = tuple(words[wnid].partition(",")[0] for wnid in ids)
    except (OSError, ValueError, KeyError) as error:
        raise ScenarioError(f"{folder} is not Tiny ImageNet: {error}", key="data.name") from error
    x = read_images([file for file, _ in train + test], image_size=None, key="data.name")
    y = torch.tensor([number for _, number in train + test])
    (x_train, x_test), (y_train, y_test) = x.tensor_split([len(train)]), y.tensor_split([len(train)])
    return measured(Dataset("tiny_imagenet", x_train, y_train, x_test, y_test, names))


def list_images(folder: Path, key: str) -> tuple[list[Path], Tensor, list[str]]:
    """List the image files in the class folders of `folder`, with their labels (N,) and the class names.

    Raises ScenarioError with this `key`, if there are fewer than two classes, or no images.
    """
    names = sorted(path.name for path in folder.glob("*") if path.is_dir())
    images = [_images_below(folder / name) for name in names]
    if empty := [name for name, files in zip(names, images, strict=True) if not files]:
        raise ScenarioError(f"no images ({', '.join(IMAGES)}) in these folders of {folder}", key=key, found=empty)
    if len(names) < 2:
        raise ScenarioError(f"{folder} holds {'only one class' if names else 'no class folders'}", key=key, found=names)
    labels = np.repeat(np.arange(len(names)), [len(files) for files in images])
    return [file for files in images for file in files], torch.from_numpy(labels), names


def _images_below(folder: Path) -> list[Path]:
    """List the images in a folder and in those below it: folder by folder, by name.

    What a Mac adds on foreign disks (`._photo.jpg` beside `photo.jpg`) is no image.
    """
    named = [Path(root, name) for root, names in sorted(walk(folder)) for name in names]
    return [file for file in named if file.name.lower().endswith(IMAGES) and not file.name.startswith("._")]


def read_images(files: Sequence[Path], image_size: int | None, key: str) -> Tensor:
    """Read images as uint8 (N, C, H, W); C is 1 if every file is grey, else 3.

    Args:
        files: N image files.
        image_size: pixels of each side to which images are resized; None keeps their size.
        key: key of errors: `data.path` for a user's own images, `data.name` for a published set.

    Raises ScenarioError for an unreadable file, or files of unequal size without an `image_size`.
    """
    images = [_read_image(file, image_size, key) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.size != images[0].size:
            raise ScenarioError(
                f"images need one size: {files[0]} has {images[0].width} x {images[0].height} pixels, "
                f"{file} has {image.width} x {image.height}",
                key="data.image_size" if key == "data.path" else key,
            )
    return stacked(images)


def stacked(images: Sequence[Image.Image]) -> Tensor:
    """Make one tensor, uint8 (N, C, H, W), of images of mode L or RGB of one size; C is 1 if all are grey, else 3."""
    mode = "L" if all(image.mode == "L" for image in images) else "RGB"
    return channels_first(np.stack([np.asarray(image.convert(mode)) for image in images]))


def plain(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to 8-bit grey (mode L) or RGB; transparency is dropped.

    Raises ValueError for modes I and F, whose pixels need more bits.
    """
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"pixels of mode {image.mode} do not fit into 8 bits")
    return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")


def _read_image(file: Path, image_size: int | None, key: str) -> Image.Image:
    """Read an image in 8-bit grey (mode L) or RGB."""
    try:
        with Image.open(file) as image:
            read = plain(image)
    except Exception as error:  # a broken file makes Pillow raise nearly anything
        raise ScenarioError(unreadable(file, error), key=key, found=str(file)) from error
    return read.resize((image_size, image_size)) if image_size else read
