"""Causal language models as layers: an embedding, blocks, and a head with scores of the next token at every position.

The maps of a block are linear layers of their own: q, k, v and o of attention, ff1 and ff2 (and ff3) of the rest. GPT-2
is that of Radford et al. 2019, "Language models are unsupervised multitask learners"; Llama that of Touvron et al.
2023, "LLaMA: open and efficient foundation language models", with the grouped queries and the stretched angles of its
third version. Qwen 2.5 is a Llama whose q, k and v have biases; Gemma 3 (Gemma Team 2025, "Gemma 3 technical report")
has more norms, and blocks that see a window of the past. There is no dropout. Where embedding and head are one matrix
in publications, they are two here, since a cut parts them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from sfl_sim.models.layers import Shape, named, sequence

INITIAL_STD = 0.02
"""Standard deviation of initial weights, in GPT-2 and in Llama."""


@dataclass(frozen=True)
class Gpt2:
    """Sizes of a GPT-2; called with the shape of a sample, it makes the layers.

    Attributes:
        vocabulary: number of different tokens.
        positions: maximum length of a sequence.
        dim, heads, blocks, ff: width, heads of attention, blocks, and width within a block's second half.
        eps: of the norms.
    """

    vocabulary: int
    positions: int = 1024
    dim: int = 768
    heads: int = 12
    blocks: int = 12
    ff: int = 3072
    eps: float = 1e-5

    def __call__(self, shape: Shape, n_labels: int) -> nn.Sequential:
        """Make the layers for sequences of the given length."""
        _check_fits(shape, self.positions, n_labels, self.vocabulary)
        blocks = {f"block{i}": Gpt2Block(self) for i in range(1, self.blocks + 1)}
        head = named(norm=nn.LayerNorm(self.dim, self.eps), linear=nn.Linear(self.dim, self.vocabulary, bias=False))
        return _initialised(named(embedding=Positioned(self), **blocks, head=head), self.blocks)


@dataclass(frozen=True)
class Llama:
    """Sizes of a Llama; called with the shape of a sample, it makes the layers.

    Attributes:
        vocabulary: number of different tokens.
        positions: maximum length of a sequence.
        dim, heads, kv_heads, head_dim, blocks, ff: width, heads of queries, heads of keys and values, width of a head,
            blocks, and width within a block's second half.
        eps: of the norms.
        theta: base of the rotary angles.
        stretch: `factor`, `low_freq_factor`, `high_freq_factor` and `original_max_position_embeddings` of Llama 3's
            stretched angles, in this order; None: they are not stretched.
        biased: whether q, k and v have biases.
    """

    vocabulary: int
    positions: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    blocks: int
    ff: int
    eps: float = 1e-5
    theta: float = 10_000.0
    stretch: tuple[float, float, float, float] | None = None
    biased: bool = False

    def __call__(self, shape: Shape, n_labels: int) -> nn.Sequential:
        """Make the layers for sequences of the given length."""
        _check_fits(shape, self.positions, n_labels, self.vocabulary)
        blocks = {f"block{i + 1}": self.block(i) for i in range(self.blocks)}
        head = named(norm=nn.RMSNorm(self.dim, self.eps), linear=nn.Linear(self.dim, self.vocabulary, bias=False))
        return _initialised(named(embedding=self.embedding(), **blocks, head=head), self.blocks)

    def embedding(self) -> nn.Embedding:
        """Make the embedding of tokens."""
        return nn.Embedding(self.vocabulary, self.dim)

    def block(self, number: int) -> LlamaBlock:
        """Make a block; they are numbered from 0."""
        return LlamaBlock(self)

    def angles(self, length: int, device: torch.device, theta: float | None = None) -> Tensor:
        """Compute the rotary angles (T, head_dim / 2) of every position."""
        frequencies = (theta or self.theta) ** (-torch.arange(0, self.head_dim, 2, device=device) / self.head_dim)
        if self.stretch:
            factor, low, high, original = self.stretch
            turns = original * frequencies / (2 * math.pi)
            kept = ((turns - low) / (high - low)).clamp(0, 1)
            frequencies = frequencies * (kept + (1 - kept) / factor)
        return torch.arange(length, device=device)[:, None] * frequencies


@dataclass(frozen=True)
class Gemma(Llama):
    """Sizes of a Gemma 3; the others are those of a Llama.

    Attributes:
        window: number of positions, its own included, that a local block sees.
        local_theta: base of the rotary angles in local blocks.
        full_every: of as many blocks the last one is not local.
    """

    window: int = 512
    local_theta: float = 10_000.0
    full_every: int = 6

    def embedding(self) -> nn.Embedding:
        """Make the embedding of tokens, times the root of its width."""
        return Scaled(self.vocabulary, self.dim)

    def block(self, number: int) -> GemmaBlock:
        """Make a block; they are numbered from 0."""
        return GemmaBlock(self, is_local=(number + 1) % self.full_every != 0)


class Scaled(nn.Embedding):
    """Embedding of tokens, times the root of its width."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (n, T) integers to (n, T, D)."""
        vectors: Tensor = super().forward(tokens)
        return vectors * math.sqrt(self.embedding_dim)


class Positioned(nn.Module):
    """Embedding of tokens, plus that of their positions."""

    def __init__(self, sizes: Gpt2) -> None:
        super().__init__()
        self.token = nn.Embedding(sizes.vocabulary, sizes.dim)
        self.position = nn.Embedding(sizes.positions, sizes.dim)

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
        self.norm1 = nn.LayerNorm(dim, sizes.eps)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm2 = nn.LayerNorm(dim, sizes.eps)
        self.ff1, self.ff2 = nn.Linear(dim, sizes.ff), nn.Linear(sizes.ff, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, T, D) to (n, T, D)."""
        seen = self.norm1(x)
        query, key, value = (_heads(project(seen), self.heads) for project in (self.q, self.k, self.v))
        x = x + self.o(_attention(query, key, value))
        return x + self.ff2(gelu(self.ff1(self.norm2(x)), approximate="tanh"))  # type: ignore[no-any-return]


class LlamaBlock(nn.Module):
    """Block of a Llama: rotary positions, fewer heads of keys and values than of queries, gated second half."""

    def __init__(self, sizes: Llama) -> None:
        super().__init__()
        dim, width, kv_width = sizes.dim, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.sizes = sizes
        self.norm1 = nn.RMSNorm(dim, sizes.eps)
        self.q, self.k = (nn.Linear(dim, out, bias=sizes.biased) for out in (width, kv_width))
        self.v, self.o = nn.Linear(dim, kv_width, bias=sizes.biased), nn.Linear(width, dim, bias=False)
        self.norm2 = nn.RMSNorm(dim, sizes.eps)
        self.ff1, self.ff3 = nn.Linear(dim, sizes.ff, bias=False), nn.Linear(dim, sizes.ff, bias=False)
        self.ff2 = nn.Linear(sizes.ff, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, T, D) to (n, T, D)."""
        seen, sizes = self.norm1(x), self.sizes
        angles = sizes.angles(x.shape[1], x.device)
        query = _turned(_heads(self.q(seen), sizes.heads), angles)
        key, value = _turned(_heads(self.k(seen), sizes.kv_heads), angles), _heads(self.v(seen), sizes.kv_heads)
        queries_per_key = sizes.heads // sizes.kv_heads
        key, value = (heads.repeat_interleave(queries_per_key, dim=1) for heads in (key, value))
        x = x + self.o(_attention(query, key, value))
        seen = self.norm2(x)
        return x + self.ff2(silu(self.ff1(seen)) * self.ff3(seen))  # type: ignore[no-any-return]


class GemmaBlock(LlamaBlock):
    """Block of a Gemma 3: norms before and after both halves, and of each query and key; a window if it is local."""

    def __init__(self, sizes: Gemma, is_local: bool) -> None:
        super().__init__(sizes)
        self.after1, self.after2 = nn.RMSNorm(sizes.dim, sizes.eps), nn.RMSNorm(sizes.dim, sizes.eps)
        self.q_norm, self.k_norm = nn.RMSNorm(sizes.head_dim, sizes.eps), nn.RMSNorm(sizes.head_dim, sizes.eps)
        self.theta = sizes.local_theta if is_local else sizes.theta
        self.window = sizes.window if is_local else sizes.positions

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, T, D) to (n, T, D)."""
        seen, sizes, length = self.norm1(x), self.sizes, x.shape[1]
        angles = sizes.angles(length, x.device, self.theta)
        query = _turned(self.q_norm(_heads(self.q(seen), sizes.heads)), angles)
        key = _turned(self.k_norm(_heads(self.k(seen), sizes.kv_heads)), angles)
        value = _heads(self.v(seen), sizes.kv_heads)
        queries_per_key = sizes.heads // sizes.kv_heads
        key, value = (heads.repeat_interleave(queries_per_key, dim=1) for heads in (key, value))
        mask = None
        if length > self.window:
            places = torch.arange(length, device=x.device)
            ago = places[:, None] - places
            mask = (ago >= 0) & (ago < self.window)
        x = x + self.after1(self.o(_attention(query, key, value, mask)))
        seen = self.norm2(x)
        return x + self.after2(self.ff2(gelu(self.ff1(seen), approximate="tanh") * self.ff3(seen)))  # type: ignore[no-any-return]


def _heads(x: Tensor, heads: int) -> Tensor:
    """Rearrange (n, T, heads * e) as (n, heads, T, e)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend to earlier positions, or those in the mask (T, T): (n, heads, T, e) each, to (n, T, heads * e)."""
    seen = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
    return seen.transpose(1, 2).flatten(2)


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Turn each pair of numbers (i, e/2 + i) of (n, heads, T, e) by the angle (T, e/2) of its position."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, other = x.chunk(2, dim=-1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)


def _initialised(model: nn.Sequential, blocks: int) -> nn.Sequential:
    """Draw initial weights as GPT-2 does: the maps that end in the sum over blocks are smaller the more there are."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            ends_in_sum = name.endswith((".o", ".ff2"))
            nn.init.normal_(module.weight, std=INITIAL_STD / math.sqrt(2 * blocks if ends_in_sum else 1))
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model


def _check_fits(shape: Shape, positions: int, n_labels: int, vocabulary: int) -> None:
    if sequence(shape) > positions:
        raise ValueError(f"it takes sequences of at most {positions} tokens")
    if n_labels > vocabulary:
        raise ValueError(f"it knows {vocabulary} tokens, and the data have {n_labels}")


def gpt_small(shape: Shape, n_labels: int) -> nn.Sequential:
    """Small GPT-2 for characters, as 8 layers: embedding, 6 blocks, head; it predicts every next token.

    Its sizes are those of `char_transformer`.
    """
    length = sequence(shape)
    return Gpt2(n_labels, positions=length, dim=128, heads=4, blocks=6, ff=512)(shape, n_labels)


def gpt2(shape: Shape, n_labels: int) -> nn.Sequential:
    """GPT-2 small (Radford et al. 2019) by its shapes alone, for timing: embedding, 12 blocks, head."""
    return Gpt2(50_257)(shape, n_labels)


def llama_3_2_1b(shape: Shape, n_labels: int) -> nn.Sequential:
    """Llama 3.2 with 1.2 billion parameters by its shapes alone, for timing: embedding, 16 blocks, head."""
    sizes = Llama(
        vocabulary=128_256, positions=131_072, dim=2048, heads=32, kv_heads=8, head_dim=64, blocks=16, ff=8192,
        theta=500_000.0, stretch=(32.0, 1.0, 4.0, 8192.0),
    )  # fmt: skip
    return sizes(shape, n_labels)


def gemma_3_270m(shape: Shape, n_labels: int) -> nn.Sequential:
    """Gemma 3 with 270 million parameters by its shapes alone, for timing: embedding, 18 blocks, head."""
    sizes = Gemma(
        vocabulary=262_144, positions=32_768, dim=640, heads=4, kv_heads=1, head_dim=256, blocks=18, ff=2048,
        eps=1e-6, theta=1_000_000.0,
    )  # fmt: skip
    return sizes(shape, n_labels)


def qwen_2_5_0_5b(shape: Shape, n_labels: int) -> nn.Sequential:
    """Qwen 2.5 with half a billion parameters by its shapes alone, for timing: embedding, 24 blocks, head."""
    sizes = Llama(
        vocabulary=151_936, positions=32_768, dim=896, heads=14, kv_heads=2, head_dim=64, blocks=24, ff=4864,
        eps=1e-6, theta=1_000_000.0, biased=True,
    )  # fmt: skip
    return sizes(shape, n_labels)
