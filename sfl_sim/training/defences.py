"""Defences of what crosses the cut: noise on it, and a penalty on what it tells (docs/methods/leakage.md#defences).

What it tells is measured as distance correlation, how much two tensors of the same samples depend on each other, in
any way. Székely, Rizzo, Bakirov, "Measuring and Testing Dependence by Correlation of Distances", Annals of Statistics
2007; Székely, Rizzo, "Partial Distance Correlation with Methods for Dissimilarities", Annals of Statistics 2014.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from sfl_sim.models.on_nan import rule_in_force
from sfl_sim.models.replica import Replica
from sfl_sim.ops import Step, Value, Work
from sfl_sim.training.codecs import Code, Codec, Shape, of_raw, raw


class Noisy(Codec):
    """Clips each sample, adds noise to its elements, and then codes the mini-batch.

    `clip`: largest norm of a sample; null: samples keep theirs. `sigma`: standard deviation of the noise, in lengths of
    `clip` if there is one. `inner`: codec of what comes out.

    The gradient passes the clipping as if its factor were constant, and the noise as it is.
    """

    clip: Annotated[float, Field(gt=0)] | None = None
    sigma: Annotated[float, Field(ge=0)] = 0.0
    inner: Codec | None = None

    def size_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        return self.inner.size_bytes(shape, dtype) if self.inner else dtype.itemsize * math.prod(shape)

    def encode(self, x: Tensor, draw: np.random.Generator) -> Code:
        """Give the factors (n,) of the clipping, which stay at the sender, and what the inner codec makes."""
        factors, noisy = self._noisy(x, draw)
        return factors, *(self.inner.encode(noisy, draw) if self.inner else [noisy])

    def decode(self, code: Code, shape: Shape, dtype: torch.dtype) -> Tensor:
        return self.inner.decode(code[1:], shape, dtype) if self.inner else code[1]

    def pack(self, code: Code, shape: Shape, dtype: torch.dtype) -> bytes:
        """Without the factors, which stay at the sender."""
        return self.inner.pack(code[1:], shape, dtype) if self.inner else raw(code[1])

    def unpack(self, data: bytes, shape: Shape, dtype: torch.dtype) -> Code:
        """With 1 in place of every factor."""
        sent = self.inner.unpack(data, shape, dtype) if self.inner else (of_raw(data, shape, dtype),)
        return torch.ones(shape[0], dtype=dtype), *sent

    def gradient_shape(self, shape: Shape, dtype: torch.dtype) -> Shape:
        return self.inner.gradient_shape(shape, dtype) if self.inner else shape

    def select(self, gradient: Tensor, code: Code) -> Tensor:
        return self.inner.select(gradient, code[1:]) if self.inner else gradient

    def pull(self, gradient: Tensor, code: Code, shape: Shape) -> Tensor:
        if self.inner:
            gradient = self.inner.pull(gradient, code[1:], shape)
        return gradient * _along(code[0], gradient)

    def as_overheard(self, code: Code) -> Code:
        """As the inner codec, with 1 in place of every factor."""
        return torch.ones_like(code[0]), *(self.inner.as_overheard(code[1:]) if self.inner else code[1:])

    def for_inference(self) -> Codec:
        """The same with what the inner codec is for inference: requests are protected, too."""
        return self.model_copy(update={"inner": self.inner and self.inner.for_inference()})

    def decode_each_alone(self, x: Tensor) -> Tensor:
        """Every sample clipped, with noise of its own, and coded by itself; the same for the same x."""
        noisy = self._noisy(x, np.random.default_rng(0))[1]
        return self.inner.decode_each_alone(noisy) if self.inner else noisy

    def _noisy(self, x: Tensor, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Give the factors (n,) that clip the samples x (n, ...), and the clipped samples with noise."""
        factors = x.new_ones(len(x))
        if self.clip is not None:
            norms = torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.promote_types(x.dtype, torch.float32))
            factors = (self.clip / norms).clamp(max=1).to(x.dtype)
            x = x * _along(factors, x)
        if self.sigma:
            noise = torch.from_numpy(draw.standard_normal(tuple(x.shape), dtype=np.float32)).to(x)
            x = x.add(noise, alpha=self.sigma * (self.clip or 1))
        return factors, x


def _along(factors: Tensor, x: Tensor) -> Tensor:
    """Factors (n,) in a shape that multiplies the samples of x (n, ...)."""
    return factors.view(-1, *[1] * (x.dim() - 1))


@dataclass(frozen=True)
class NoPeek(Step):
    """Add to the gradient at the cut that of `weight` times the distance correlation of inputs and activations.

    Vepakomma et al., "NoPeek: Information leakage reduction to share activations in distributed deep learning", ICDM
    Workshops 2020.
    """

    weight: float
    name = "nopeek"

    def work(self, part1: Replica, gradient: Value) -> Work:
        """Three passes over the distances between samples, at the input and at the cut."""
        part = part1.part
        return Work.of(3 * gradient.samples**2 * (part.in_numel + part.out_numel))

    def out(self, part1: Replica, gradient: Value) -> Value:
        """Make a value that stays at the client."""
        return Value("gradients", samples=gradient.samples, step=gradient.step)

    def run(self, part1: Replica, gradient: Value) -> Tensor:
        """Compute the sum, (n, ...)."""
        x, z = part1.weights.passed
        at_cut = z.requires_grad_()
        loss = self.weight * distance_correlation(x, at_cut)
        rule_in_force().see(loss)
        (penalty,) = torch.autograd.grad(loss, at_cut)
        at_server: Tensor = gradient.load()
        return at_server + penalty.to(at_server.dtype)


LEAST_ROWS = 4
"""Number of samples from which on the unbiased estimate exists."""
LEAST = 1e-9
"""Least square of a distance correlation under a root whose gradient is wanted."""


def distance_correlation(x: Tensor, z: Tensor) -> Tensor:
    """Compute the distance correlation of x (n, ...) and z (n, ...): 0 to 1, and 0 if one of them is constant.

    It can be differentiated. It is biased: of few samples with many elements it is large, whatever they are.
    """
    return correlation(distances(x), distances(z))


def correlation(of_x: Tensor, of_z: Tensor) -> Tensor:
    """Compute the distance correlation from the distances (n, n) of two tensors."""
    a, b = _centred(of_x), _centred(of_z)
    variances = (a * a).mean() * (b * b).mean()
    depend = variances > 0  # no `if`, which would wait for a GPU in every mini-batch
    ratio = (a * b).mean() / torch.where(depend, variances, 1).sqrt()
    return torch.where(depend, ratio.clamp(min=LEAST).sqrt(), 0 * variances)


def unbiased_correlation(of_x: Tensor, of_z: Tensor) -> float:
    """Estimate the squared distance correlation from the distances (n, n) without bias: -1 to 1, around 0 if none.

    0 if one of the tensors is constant; NaN of fewer than four samples.
    """
    if len(of_x) < LEAST_ROWS:
        return float("nan")
    a, b = _unbiased(of_x), _unbiased(of_z)
    variances = float((a * a).sum() * (b * b).sum())
    return float((a * b).sum()) / variances**0.5 if variances > 0 else 0 * variances


def distances(x: Tensor) -> Tensor:
    """Euclidean distances (n, n) of samples, by products in double precision, which is fast for wide samples."""
    flat = x.flatten(1).double()
    flat = flat - flat.mean(0)
    to_others = 1 - torch.eye(len(flat), dtype=flat.dtype, device=flat.device)  # products round that to oneself
    return torch.cdist(flat, flat, compute_mode="use_mm_for_euclid_dist") * to_others


def _centred(distances: Tensor) -> Tensor:
    """Subtract the means of rows and columns, and add that of all."""
    return distances - distances.mean(0) - distances.mean(1, keepdim=True) + distances.mean()


def _unbiased(distances: Tensor) -> Tensor:
    """Subtract the means of rows and columns so that products have the right expectation; the diagonal is 0."""
    n = len(distances)
    rows = distances.sum(0) / (n - 2)
    centred = distances - rows - rows[:, None] + distances.sum() / ((n - 1) * (n - 2))
    return centred.fill_diagonal_(0)
