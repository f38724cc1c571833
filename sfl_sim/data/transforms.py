"""Image transforms on whole batches: uint8 in memory, floating point only in the batch that trains."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy x from the host's memory to `device`, without waiting for a GPU."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


def channels_first(pixels: object) -> Tensor:
    """Convert an array or tensor (N, H, W) or (N, H, W, C) to a tensor (N, C, H, W)."""
    x = torch.as_tensor(pixels)
    return x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()


def normalise(x_uint8: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """Normalise images: (x / 255 - mean) / std per channel, in `dtype` and the given memory format.

    Args:
        x_uint8: (N, C, H, W) with values 0 .. 255.
        mean, std: (C,), of pixel values in [0, 1].
        dtype: floating type of the result.
        channels_last: memory format of the result.
    """
    scale, shift = (1 / (255 * std)).to(dtype), (-mean / std).to(dtype)
    x = x_uint8.to(dtype).mul_(scale[:, None, None]).add_(shift[:, None, None])
    # Converting last is 3 times as fast as arithmetic that broadcasts over innermost channels.
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def random_crop_flip(x_uint8: Tensor, padding: int, generator: np.random.Generator) -> Tensor:
    """Crop each image at random from its zero-padded copy, and mirror it with probability 1/2.

    This is the usual augmentation of CIFAR (He et al. 2016, section 4.2).

    Args:
        x_uint8: (N, C, H, W), for instance all samples of a client's epoch.
        padding: zero pixels on each side before the crop back to (H, W).
        generator: source of the draws.
    """
    n = len(x_uint8)
    corners = to_device(torch.from_numpy(generator.integers(2 * padding + 1, size=(2, n))), x_uint8.device)
    mirrored = np.flatnonzero(generator.random(n) < 0.5)
    return crop_flip(x_uint8, padding, corners[0], corners[1], mirrored)


def crop_flip(x: Tensor, padding: int, top: Tensor, left: Tensor, mirrored: NDArray[np.int64]) -> Tensor:
    """Zero-pad each image, crop it back to its size at `top` and `left`, and mirror some.

    Args:
        x: (N, C, H, W).
        padding: zero pixels on each side.
        top, left: (N,) integers in 0 .. 2 padding, in pixels of the padded image.
        mirrored: numbers of the images that are mirrored, in the host's memory: no GPU has to be awaited for them.
    """
    n, channels, height, width = x.shape
    padded = F.pad(x, (padding,) * 4).contiguous()
    # A row of a crop is `width` adjacent elements of the padded images: pick all rows by where they start.
    rows = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
    plane, row = (torch.arange(k, device=x.device) for k in (n * channels, height))
    start = plane.view(n, channels, 1) * padded[0, 0].numel()
    start = start + ((top[:, None] + row) * padded.shape[3] + left[:, None])[:, None]
    crops = rows.index_select(0, start.flatten()).view(x.shape)
    chosen = to_device(torch.from_numpy(mirrored), x.device)
    return crops.index_copy_(0, chosen, crops.index_select(0, chosen).flip(-1))
