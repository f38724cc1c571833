"""Helpers of the model builders: layers by name, stems for any input, and checks of sample shapes."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]


class Several(tuple[Tensor, ...]):
    """Tensors that a layer hands to the next one: all that cross where skip connections are open."""

    def detach(self) -> Several:
        """Return them without their history."""
        return Several(tensor.detach() for tensor in self)


class Stretch(nn.Module):
    """A layer of a larger module; its modules and tensors have the names that they have there.

    Attributes:
        inside: the next layer belongs to the same part, so that several tensors are handed to it as they are; else as
            one (n, numbers), so that messages, codecs and methods see one tensor.
        layout: of images among several tensors that it is given as one.
    """

    inside = False
    layout = torch.contiguous_format


def together(tensors: Sequence[Tensor]) -> Tensor:
    """Lay tensors (n, ...) side by side, sample by sample: (n, numbers)."""
    return torch.cat([_getting_its_layout(tensor).flatten(1) for tensor in tensors], 1)


def _getting_its_layout(tensor: Tensor) -> Tensor:
    """Return a tensor whose gradient is laid out as itself is: sums in another order differ in last bits."""
    if not tensor.requires_grad:
        return tensor
    channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    view = tensor.view_as(tensor)
    view.register_hook(lambda gradient: gradient.clone(memory_format=layout))  # type: ignore[no-untyped-call]
    return view


def taken_apart(x: Tensor, shapes: Sequence[Shape], layout: torch.memory_format) -> Several:
    """Return the tensors of samples of these shapes that lie side by side in x."""
    pieces = zip(torch.split(x, [math.prod(shape) for shape in shapes], 1), shapes, strict=True)
    tensors = (piece.view(-1, *shape) for piece, shape in pieces)
    plain = torch.contiguous_format
    return Several(t.clone(memory_format=layout if t.ndim == 4 else plain) for t in tensors)


def hand_on(layers: nn.Sequential) -> None:
    """Let each layer but the last hand several tensors to the next one as they are."""
    for layer, following in pairwise((*layers, None)):
        if isinstance(layer, Stretch):
            layer.inside = isinstance(following, Stretch)


def given_name(layers: nn.Sequential, name: str) -> str:
    """Return the name that a user's own module gave to the parameter or buffer `name` of the layers made of it."""
    layer, _, below = name.partition(".")
    return below if isinstance(layers._modules[layer], Stretch) else name


kaiming_fan_out = partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu")
"""Initialisation of convolutions in torchvision's ResNets, VGGs and MobileNets."""


def named(**layers: nn.Module) -> nn.Sequential:
    """Make a sequential module of the layers, in the order given, under their names."""
    return nn.Sequential(OrderedDict(layers))


def stem(conv: nn.Conv2d, in_channels: int, initialise: Callable[[Tensor], Tensor], small: bool = False) -> nn.Conv2d:
    """Return torchvision's stem convolution `conv`, or a similar one for `in_channels`, filled by `initialise`.

    With `small` it has a 3x3 window and stride 1.
    """
    if in_channels == conv.in_channels and not small:
        return conv
    kernel, stride, padding = (3, 1, 1) if small else (conv.kernel_size[0], conv.stride[0], conv.padding[0])
    new = nn.Conv2d(in_channels, conv.out_channels, kernel, stride, padding, bias=conv.bias is not None)
    initialise(new.weight)
    if new.bias is not None:
        nn.init.zeros_(new.bias)
    return new


def image(shape: Shape, at_least: int = 1) -> tuple[int, int, int]:
    """Return channels, height and width of an image; ValueError for other samples and for fewer pixels per side."""
    if len(shape) != 3:
        raise ValueError("it takes images (channels, height, width)")
    channels, height, width = shape
    if min(height, width) < at_least:
        raise ValueError(f"it takes images of at least {at_least}x{at_least} pixels")
    return channels, height, width


def sequence(shape: Shape) -> int:
    """Return the length of a sequence of tokens; ValueError for other samples."""
    if len(shape) != 1:
        raise ValueError("it takes sequences of tokens (length,)")
    return shape[0]


def check_fits(shape: Shape, n_labels: int, positions: int, vocabulary: int) -> None:
    """Raise ValueError for samples that are no sequences of at most `positions` tokens, or for too many tokens."""
    if sequence(shape) > positions:
        raise ValueError(f"it takes sequences of at most {positions} tokens")
    if n_labels > vocabulary:
        raise ValueError(f"it knows {vocabulary} tokens, and the data have {n_labels}")


def is_small(shape: Shape) -> bool:
    """Return True if a model for 224x224 images gets the stem that is usual for CIFAR, which does not halve the image.

    Images of 64 pixels (Tiny ImageNet) get the ImageNet stem, as in HARMONY's Table 1.
    """
    return min(shape[1:]) < 64
