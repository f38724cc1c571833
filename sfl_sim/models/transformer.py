"""Transformers of images cut into patches, and of characters. Every encoder block is a layer."""

import math
from functools import partial

import torch
from torch import Tensor, nn

from sfl_sim.models.layers import Shape, image, named, sequence, stem


class Patches(nn.Module):
    """Embedding of images as sequences: the class token and one vector per patch, plus those of their positions."""

    def __init__(self, project: nn.Module, class_token: nn.Parameter, position: nn.Parameter) -> None:
        super().__init__()
        self.project = project
        self.class_token = class_token
        self.position = position

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, C, H, W) to (n, 1 + patches, D)."""
        patches = self.project(x).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(len(x), -1, -1)
        return torch.cat([class_token, patches], dim=1) + self.position


class Characters(nn.Module):
    """Embedding of characters, plus that of their positions."""

    def __init__(self, vocabulary: int, length: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.position = nn.Embedding(length, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (n, T) integers to (n, T, D)."""
        vectors: Tensor = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return vectors + self.position.weight


class Token(nn.Module):
    """Selection of one vector of each sequence."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, T, D) to (n, D)."""
        return x[:, self.index]


def patch_size(shape: Shape) -> int:
    """Return the largest power of two up to 16 that cuts the image into at least 7x7 patches; 1 if there is none.

    It is 16 at 224 pixels, 8 at 64, 4 at 32 and 28, and 1 at 8.
    """
    _, side, _ = shape
    return next((size for size in (16, 8, 4, 2) if side % size == 0 and side // size >= 7), 1)


def vit_s16(shape: Shape, n_labels: int) -> nn.Sequential:
    """ViT-S/16 (Touvron et al. 2021) as 14 layers: patches, 12 blocks, classifier; smaller patches below 112 pixels.

    It is torchvision's without dropout, for square images with patches of `patch_size`.
    """
    from torchvision.models import VisionTransformer  # torchvision takes a second to import

    channels, height, width = image(shape)
    if height != width:
        raise ValueError("it takes square images")
    size = patch_size(shape)
    if size == 1 and height > 13:
        raise ValueError("it takes images of an even number of pixels a side, or of at most 13")
    net = VisionTransformer(
        height, size, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536, num_classes=n_labels
    )
    fan_in = channels * size**2
    project = stem(net.conv_proj, channels, partial(nn.init.trunc_normal_, std=math.sqrt(1 / fan_in)))
    *blocks, last = net.encoder.layers
    return named(
        patches=Patches(project, net.class_token, net.encoder.pos_embedding),
        **{f"block{i}": block for i, block in enumerate(blocks, start=1)},
        block12=nn.Sequential(last, Token(0)),  # the classifier takes this token only
        head=nn.Sequential(net.encoder.ln, net.heads.head),
    )


def char_transformer(shape: Shape, n_labels: int) -> nn.Sequential:
    """Transformer that predicts the next character of a text, as 8 layers: embedding, 6 blocks, classifier.

    The vocabulary has `n_labels` characters. Sizes are those of FedNAR's Shakespeare model (Li et al. 2023), whose
    settings SMoFi follows. The output is that of the last position; attention is not masked, since all is input.
    """
    length, dim = sequence(shape), 128
    return named(
        embedding=Characters(n_labels, length, dim),
        **{
            f"block{i}": nn.TransformerEncoderLayer(dim, nhead=4, dim_feedforward=512, dropout=0.0, batch_first=True)
            for i in range(1, 7)
        },
        head=nn.Sequential(Token(-1), nn.Linear(dim, n_labels)),
    )
