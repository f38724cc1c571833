"""Image transforms on whole batches: uint8 in memory, floating point only in the batch that trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """x, from the host's memory, on `device`; a GPU gets it in its turn while the host goes on."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def normalise(x_uint8: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """(x / 255 - mean) / std per channel, for images (N, C, H, W), in `dtype` and the wanted memory format.

    Args:
        x_uint8: (N, C, H, W) with values 0 .. 255.
        mean, std: (C,), of pixel values in [0, 1].
    """
    scale, shift = (1 / (255 * std)).to(dtype), (-mean / std).to(dtype)
    x = x_uint8.to(dtype).mul_(scale[:, None, None]).add_(shift[:, None, None])
    # Converting last is 3 times as fast as arithmetic that broadcasts over innermost channels.
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def random_crop_flip(x_uint8: Tensor, padding: int, generator: np.random.Generator) -> Tensor:
    """Each image cropped at random from a zero-padded copy of itself, then mirrored with probability 1/2.

    The usual augmentation of CIFAR (He et al. 2016, section 4.2).

    Args:
        x_uint8: (N, C, H, W), for instance all samples of a client's epoch.
        padding: zero pixels on each side before the crop back to (H, W).
        generator: source of the draws.
    """
    n = len(x_uint8)
    corners = to_device(torch.from_numpy(generator.integers(2 * padding + 1, size=(2, n))), x_uint8.device)
    mirrored = torch.from_numpy(generator.random(n) < 0.5)
    return crop_flip(x_uint8, padding, corners[0], corners[1], mirrored)


def crop_flip(x: Tensor, padding: int, top: Tensor, left: Tensor, mirrored: Tensor) -> Tensor:
    """Each image zero-padded, cropped back to its size at its `top` and `left`, and mirrored if so marked.

    Args:
        x: (N, C, H, W).
        padding: zero pixels on each side.
        top, left: (N,) integers in 0 .. 2 padding, in pixels of the padded image.
        mirrored: (N,) booleans, in the host's memory: whoever looks for them on a GPU waits for it.
    """
    n, channels, height, width = x.shape
    padded = F.pad(x, (padding,) * 4).contiguous()
    # A row of a crop is `width` adjacent elements of the padded images: pick all rows by where they start.
    rows = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
    plane, row = (torch.arange(k, device=x.device) for k in (n * channels, height))
    start = plane.view(n, channels, 1) * padded[0, 0].numel()
    start = start + ((top[:, None] + row) * padded.shape[3] + left[:, None])[:, None]
    crops = rows.index_select(0, start.flatten()).view(x.shape)
    chosen = to_device(mirrored.nonzero().flatten(), x.device)
    return crops.index_copy_(0, chosen, crops.index_select(0, chosen).flip(-1))
