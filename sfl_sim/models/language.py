"""GPT-2 as layers: an embedding, blocks, and a head with scores of the next token at every position.

Radford et al., "Language models are unsupervised multitask learners", 2019. The maps of a block are linear layers: q,
k, v and o of attention, ff1 and ff2 of the rest. There is no dropout. Embedding and head, one matrix in the
publication, are two here, since a cut parts them.
"""

import math
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from sfl_sim.models.layers import Shape, check_fits, named, sequence

INITIAL_STD = 0.02
"""Standard deviation of initial weights."""


@dataclass(frozen=True)
class Gpt2:
    """Sizes of a GPT-2; called with the shape of a sample, it makes the layers.

    Attributes:
        vocabulary: number of different tokens.
        positions: maximum length of a sequence.
        dim, heads, blocks, ff: width, heads of attention, blocks, and width within a block's second half.
    """

    vocabulary: int
    positions: int = 1024
    dim: int = 768
    heads: int = 12
    blocks: int = 12
    ff: int = 3072

    def __call__(self, shape: Shape, n_labels: int) -> nn.Sequential:
        """Make the layers for sequences of the given length."""
        check_fits(shape, n_labels, self.positions, self.vocabulary)
        blocks = {f"block{i}": Gpt2Block(self) for i in range(1, self.blocks + 1)}
        head = named(norm=nn.LayerNorm(self.dim), linear=nn.Linear(self.dim, self.vocabulary, bias=False))
        embedding = Positioned(nn.Embedding(self.vocabulary, self.dim), nn.Embedding(self.positions, self.dim))
        return _initialised(named(embedding=embedding, **blocks, head=head), self.blocks)


class Positioned(nn.Module):
    """Embedding of tokens, plus that of their positions."""

    def __init__(self, token: nn.Embedding, position: nn.Embedding) -> None:
        super().__init__()
        self.token = token
        self.position = position

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (n, T) integers to (n, T, D)."""
        vectors: Tensor = self.token(tokens)
        return vectors + self.position.weight[: tokens.shape[1]]


class Gpt2Block(nn.Module):
    """Block of a GPT-2, with the norms before attention and before the rest."""

    def __init__(self, sizes: Gpt2) -> None:
        super().__init__()
        dim = sizes.dim
        self.heads = sizes.heads
        self.norm1 = nn.LayerNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm2 = nn.LayerNorm(dim)
        self.ff1, self.ff2 = nn.Linear(dim, sizes.ff), nn.Linear(sizes.ff, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, T, D) to (n, T, D)."""
        seen = self.norm1(x)
        query, key, value = (_heads(project(seen), self.heads) for project in (self.q, self.k, self.v))
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        return x + self.ff2(gelu(self.ff1(self.norm2(x)), approximate="tanh"))  # type: ignore[no-any-return]


def _heads(x: Tensor, heads: int) -> Tensor:
    """Rearrange (n, T, heads * e) as (n, heads, T, e)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def _initialised(model: nn.Sequential, blocks: int) -> nn.Sequential:
    """Draw initial weights as GPT-2 does: the maps that end in the sum over blocks are smaller the more there are."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            ends_in_sum = name.endswith((".o", ".ff2"))
            nn.init.normal_(module.weight, std=INITIAL_STD / math.sqrt(2 * blocks if ends_in_sum else 1))
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model


def gpt_small(shape: Shape, n_labels: int) -> nn.Sequential:
    """Small GPT-2 for characters, as 8 layers: embedding, 6 blocks, head; it predicts every next token.

    Its sizes are those of `char_transformer`.
    """
    length = sequence(shape)
    return Gpt2(n_labels, positions=length, dim=128, heads=4, blocks=6, ff=512)(shape, n_labels)


def gpt2(shape: Shape, n_labels: int) -> nn.Sequential:
    """GPT-2 small (Radford et al. 2019) by its shapes alone, for timing: embedding, 12 blocks, head."""
    return Gpt2(50_257)(shape, n_labels)
