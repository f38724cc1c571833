"""Smashed data of which only the samples travel that have changed since their client sent them last."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from sfl_sim.data.batches import Batch
from sfl_sim.ops import State, Step, Value, Work
from sfl_sim.rng import stream
from sfl_sim.training.codecs import Delta, Shape
from sfl_sim.training.coded import Draw, laid_out


class ComparedSamples(Value):
    """What a comparison has found: the samples as the server will see them (n, ...), and which were sent (n,).

    As a number it is how many were sent.
    """

    __slots__ = ()

    def load(self) -> float:
        """Count the samples that are sent."""
        _, sent = self.content
        return float(sent.sum())


@dataclass(frozen=True)
class Compare(Step):
    """Compare a client's smashed data with what it sent last of the same samples: by the cosine of each sample.

    Attributes:
        draw: names the random draws.
        numel: elements of all samples together.
        batch: their mini-batch; no argument of the step, which would load its samples again (`sample_s`).
    """

    delta: Delta
    draw: Draw
    numel: int
    batch: Batch
    name = "compare"

    def work(self, memory: State, smashed: Value) -> Work:
        """Two products per element: with what was sent last, and with itself."""
        return Work.of(2 * self.numel)

    def out(self, memory: State, smashed: Value) -> ComparedSamples:
        """Make a value that stays at the client."""
        return ComparedSamples("compared", samples=smashed.samples, step=smashed.step)

    def run(self, memory: State, smashed: Value) -> tuple[Tensor, Tensor]:
        """Decode what is sent, and look the others up."""
        x, _ = smashed.load()
        known = memory.content or {}
        last = [known.get(number) for number in self.batch.numbers.tolist()]
        same = torch.tensor([one is not None for one in last], device=x.device)
        seen = torch.stack([one if old is None else old for one, old in zip(x, last, strict=True)])
        alike = cosine_similarity(x.flatten(1).float(), seen.flatten(1).float())
        sent = ~same | ~(alike >= self.delta.theta)  # NaN is not alike
        if sent.any():
            changed = x[sent]
            code = self.delta.encode(changed, stream(*self.draw, 0))
            seen[sent] = self.delta.decode(code, tuple(changed.shape), x.dtype)
        return laid_out(seen, x), sent


class Changes(Value):
    """The message with the samples that have changed, as smashed data."""

    __slots__ = ("made_of",)

    def __init__(
        self, smashed: Value, compared: ComparedSamples, sent: int, delta: Delta, shape: Shape, dtype: torch.dtype
    ) -> None:
        size_bytes = smashed.size_bytes - dtype.itemsize * math.prod(shape) + delta.sent_bytes(sent, shape, dtype)
        super().__init__(smashed.kind, size_bytes, smashed.samples, smashed.step, compared.content)
        self.maker = smashed.maker
        self.made_of = [smashed, compared]

    def load(self) -> tuple[Tensor, Tensor]:
        """Give the samples as the server sees them (n, ...), and labels (n,)."""
        smashed, compared = self.made_of
        _, labels = smashed.load()
        return compared.content[0], labels


@dataclass(frozen=True)
class KeepSent(Step):
    """Remember what has been sent of a mini-batch: client and server hold the same table."""

    batch: Batch
    name = "remember"

    def run(self, memory: State, compared: ComparedSamples) -> None:
        """Put what the server has decoded into the client's table, by the samples' numbers."""
        seen, sent = compared.content
        rows = zip(self.batch.numbers.tolist(), seen, sent.tolist(), strict=True)
        memory.content = (memory.content or {}) | {number: one.clone() for number, one, is_sent in rows if is_sent}
