"""Convolutions of many replicas as one grouped convolution: rules for `vmap` that keep the channels side by side."""

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
    """The tensors (b, ...) of n replicas as one of shape (n, b, ...).

    Images (b, C, H, W) lie in memory as a batch of images with n * C channels, channels last: `merged` copies nothing.
    """
    if tensors[0].ndim != 4:
        return torch.stack(list(tensors))
    return torch.stack([images.permute(0, 2, 3, 1) for images in tensors], dim=3).permute(3, 0, 4, 1, 2)


def merged(images: Tensor) -> Tensor:
    """Images (n, b, C, H, W) as (b, n * C, H, W)."""
    return images.permute(1, 3, 4, 0, 2).flatten(3).permute(0, 3, 1, 2)


class ChannelsSideBySide(TorchFunctionMode):
    """While it is active, `vmap` runs convolutions and pooling on the channels of all replicas side by side.

    vmap's own rules do the same maths but copy the images to and fro around every pooling layer, and lose
    channels_last: 10 replicas of lenet5 take 1.5 (batch 8) to 2 times (batch 64) as long with them on a CPU.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func` by our rule if there is one."""
        kwargs = kwargs or {}
        if func is F.conv2d and len(args) == 7:  # as nn.Conv2d calls it
            return _Convolution.apply(*args)
        if func in BY_CHANNEL and not kwargs.get("return_indices"):
            return _ByChannel.apply(args[0], lambda images: func(images, *args[1:], **kwargs))
        return func(*args, **kwargs)


class _Rule(torch.autograd.Function):
    """A rule for vmap and nothing else: vmap calls `vmap` with the tensors of all replicas, and autograd looks on."""

    @staticmethod
    def forward(*args: Any) -> Any:
        """Never called, as there is no call without vmap."""
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Never called, but functions without it get no rule."""
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
    """`tensor` with the dimension that counts replicas in front; None: they all have the same."""
    return tensor.expand(n, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _apart(images: Tensor, n: int) -> Tensor:
    """Images (b, n * C, H, W) as (b, n, C, H, W)."""
    return images.view(len(images), n, -1, *images.shape[2:])
