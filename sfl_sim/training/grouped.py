"""Rules for `vmap` that run the convolutions of many replicas as one grouped convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

BY_CHANNEL = {F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d}
"""Functions that treat every channel of an image alike."""


def side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    """Stack the tensors (b, ...) of n replicas to one of shape (n, b, ...).

    Images (b, C, H, W) are laid out as a batch of images with n * C channels, channels last, so that `merged` copies
    nothing.
    """
    if tensors[0].ndim != 4:
        return torch.stack(list(tensors))
    return torch.stack([images.permute(0, 2, 3, 1) for images in tensors], dim=3).permute(3, 0, 4, 1, 2)


def merged(images: Tensor) -> Tensor:
    """Reshape images (n, b, C, H, W) to (b, n * C, H, W)."""
    return images.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)


class ChannelsSideBySide(TorchFunctionMode):
    """Mode in which `vmap` runs convolutions and pooling on the channels of all replicas side by side.

    vmap's own rules compute the same but copy the images before and after every pooling layer, and lose channels_last:
    10 replicas of lenet5 take 1.5 (batch 8) to 2 times (batch 64) as long with them on a CPU.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func` by a rule of this module if there is one."""
        kwargs = kwargs or {}
        if func is F.conv2d and len(args) == 7:  # as nn.Conv2d calls it
            return _Convolution.apply(*args)
        if func in BY_CHANNEL and not kwargs.get("return_indices"):
            return _ByChannel.apply(args[0], lambda images: func(images, *args[1:], **kwargs))
        return func(*args, **kwargs)


class _Rule(torch.autograd.Function):
    """Rule for vmap only: vmap calls `vmap` with the tensors of all replicas, whose operations autograd records."""

    @staticmethod
    def forward(*args: Any) -> Any:
        """Raise: it is never called without vmap."""
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Raise: it is never called, but vmap ignores functions without it."""
        raise NotImplementedError


class _Convolution(_Rule):
    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None,
        stride: Any, padding: Any, dilation: Any, groups: int,
    ) -> tuple[Tensor, int]:  # fmt: skip
        n = info.batch_size
        x, weight = _replicas_first(x, in_dims[0], n), _replicas_first(weight, in_dims[1], n)
        bias = None if bias is None else _replicas_first(bias, in_dims[2], n).flatten()
        return _apart(F.conv2d(merged(x), weight.flatten(0, 1), bias, stride, padding, dilation, n * groups), n), 1


class _ByChannel(_Rule):
    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, function: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, int]:
        n = info.batch_size
        return _apart(function(merged(_replicas_first(x, in_dims[0], n))), n), 1


def _replicas_first(tensor: Tensor, dim: int | None, n: int) -> Tensor:
    """Move the dimension `dim` of replicas to the front; with None all n replicas have the same tensor."""
    return tensor.expand(n, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _apart(images: Tensor, n: int) -> Tensor:
    """Reshape images (b, n * C, H, W) to (b, n, C, H, W)."""
    return images.view(len(images), n, -1, *images.shape[2:])
