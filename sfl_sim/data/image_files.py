"""A user's own image files: found by class folder, read into one uint8 tensor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from sfl_sim.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def list_images(folder: Path, key: str) -> tuple[list[Path], Tensor, list[str]]:
    """Image files in the class folders of `folder`, their labels (N,), and the class names.

    Raises ScenarioError with this `key`.
    """
    from torchvision.datasets import ImageFolder

    try:
        listed = ImageFolder(folder)
    except OSError as error:
        raise ScenarioError(f"no class folders with images: {error}", key=key) from error
    if len(listed.classes) < 2:
        raise ScenarioError(f"{folder} holds only one class", key=key, found=listed.classes[0])
    return [Path(file) for file, _ in listed.samples], torch.tensor(listed.targets), listed.classes


def read_images(files: Sequence[Path], image_size: int | None, key: str) -> Tensor:
    """uint8 (N, C, H, W); C is 1 if every file is grey, else 3.

    Args:
        files: N image files.
        image_size: pixels of each side that images are resized to, whatever their shape; None keeps theirs.
        key: of errors: `data.path` for a user's own images, `data.name` for a published set, which has no options.
    """
    images = [_read_image(file, image_size, key) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.size != images[0].size:
            raise ScenarioError(
                f"images need one size: {files[0]} has {images[0].width} x {images[0].height} pixels, "
                f"{file} has {image.width} x {image.height}",
                key="data.image_size" if key == "data.path" else key,
            )
    mode = "L" if all(image.mode == "L" for image in images) else "RGB"
    return channels_first(np.stack([np.asarray(image.convert(mode)) for image in images]))


def channels_first(pixels: object) -> Tensor:
    """An array or tensor (N, H, W) or (N, H, W, C) as a tensor (N, C, H, W)."""
    x = torch.as_tensor(pixels)
    return x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()


def _read_image(file: Path, image_size: int | None, key: str) -> Image.Image:
    """One image in 8-bit grey (mode L) or RGB."""
    try:
        with Image.open(file) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"pixels of mode {image.mode} do not fit into 8 bits")
            plain = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
    except Exception as error:  # a broken file makes Pillow raise nearly anything
        raise ScenarioError(f"cannot read the image {file}: {error}", key=key) from error
    return plain.resize((image_size, image_size)) if image_size else plain
