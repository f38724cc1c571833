"""LoRA: adapters of low rank on frozen weight matrices (docs/methods/lora.md).

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import register_parametrization

from sfl_sim.errors import ScenarioError

USUAL_NAMES = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "out_proj": "o", "attn.c_proj": "o",
    "gate_proj": "ff1", "linear1": "ff1", "c_fc": "ff1", "down_proj": "ff2", "linear2": "ff2", "mlp.c_proj": "ff2",
    "up_proj": "ff3",
}  # fmt: skip
"""Ends of names in blocks of transformers' and of torch's models, and the names that targets go by."""
JOINT = "attn.c_attn"
"""The linear map of transformers' GPT-2 whose rows are q, k and v."""


@dataclass(frozen=True)
class Lora:
    """Settings of adapters.

    Attributes:
        rank: r.
        alpha: the adapter's product is scaled by alpha / r.
        targets: names of the weight matrices, or of modules all of whose matrices are meant.
        aggregate: what an average of replicas does. `separate`: it averages A and B each by itself. `ffa`: A stays as
            it was drawn. `concat`: it adds the average product to the frozen weights, and draws new adapters. `svd`: A
            and B become the best factors of the average product.
        preinstalled: whether clients hold the frozen layers from the start.
        above: number of layers before the first that may have adapters.
    """

    rank: int = 4
    alpha: float = 8.0
    targets: tuple[str, ...] = ("q", "v")
    aggregate: str = "separate"
    preinstalled: bool = False
    above: int = 0


class Adapter(nn.Module):
    """Parametrization of a weight W0 (out, ...) as W0 + s*B*A, where A is (r, in), B (out, r) and s is `scale`.

    B is 0 and A is drawn as torch draws weights of linear maps, so that the first W is W0. `rows` are those that are
    adapted, if W0 joins several maps.

    This fits convolutions and whatever else uses a weight. With small matrices a step takes less time on a CPU than
    with W0*x + s*B*(A*x), which runs more operations (docs/methods/lora.md#measured).
    """

    def __init__(
        self, weight: Tensor, rank: int, scale: float, rows: slice = slice(None), trains_a: bool = True
    ) -> None:
        super().__init__()
        self.rows = rows
        self.scale = scale
        adapted = weight[rows]
        self.rank = rank
        self.shape = len(adapted), math.prod(adapted.shape[1:])
        n_out, n_in = self.shape
        self.A = nn.Parameter(weight.new_empty(rank, n_in), requires_grad=trains_a)
        self.B = nn.Parameter(weight.new_zeros(n_out, rank))
        self.draw(self.A)

    def draw(self, a: Tensor, generator: torch.Generator | None = None) -> None:
        """Draw A anew."""
        nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)

    def forward(self, weight: Tensor) -> Tensor:
        """Return W0 + s*B*A in the shape of `weight`."""
        return with_adapter(weight, self.A, self.B, self.scale, self.rows)

    def added(self, weight: Tensor, product: Tensor) -> Tensor:
        """Return W0 + s times a product (out, in) in its rows."""
        return _added(weight, product, self.scale, self.rows)


def with_adapter(weight: Tensor, a: Tensor, b: Tensor, scale: float, rows: slice) -> Tensor:
    """Return W0 + scale*B*A, in `rows` of W0, in the shape of the weight W0."""
    if len(b) == len(weight):
        return torch.addmm(weight.flatten(1), b, a, alpha=scale).view_as(weight)
    return _added(weight, b @ a, scale, rows)


def _added(weight: Tensor, product: Tensor, scale: float, rows: slice) -> Tensor:
    start, stop, _ = rows.indices(len(weight))
    change = nn.functional.pad(product, (0, 0, start, len(weight) - stop))
    return torch.add(weight.flatten(1), change, alpha=scale).view_as(weight)


class Matrix(NamedTuple):
    """Weight matrix of a network: its name, and the module, the tensor and the rows that hold it."""

    name: str
    module: nn.Module
    tensor: str
    rows: slice = slice(None)

    def is_meant_by(self, target: str) -> bool:
        """Return True if `target` names the matrix or a module around it; `block3.q` is the q somewhere in block3."""
        path = iter(self.name.split("."))
        return all(name in path for name in target.split("."))


def matrices(network: nn.Module) -> Iterator[Matrix]:
    """Yield the weight matrices of linear maps and convolutions, and the three of every joint attention projection."""
    for path, module in network.named_modules():
        if isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            yield from _thirds(path, module, "in_proj_weight")
        elif isinstance(module, nn.Linear) and path.endswith(JOINT):
            yield from _thirds(path, module, "weight")
        elif isinstance(module, nn.Linear | _ConvNd):
            usual = (
                f"{path.removesuffix(end)}{name}" for end, name in USUAL_NAMES.items() if f".{path}".endswith(f".{end}")
            )
            yield Matrix(next(usual, path), module, "weight")


def _thirds(path: str, module: nn.Module, tensor: str) -> Iterator[Matrix]:
    n_rows = len(getattr(module, tensor)) // 3
    for i, name in enumerate("qkv"):
        yield Matrix(f"{path}.{name}", module, tensor, slice(i * n_rows, (i + 1) * n_rows))


def adapt(network: nn.Module, lora: Lora) -> None:
    """Freeze all weights of `network`, and put an adapter on every target.

    Raises:
        ScenarioError: no weight matrix has the name of a target.
    """
    below = {name for name, _ in list(network.named_children())[: lora.above]}
    adapted = [matrix for matrix in matrices(network) if matrix.name.partition(".")[0] not in below]
    for target in lora.targets:
        if not any(matrix.is_meant_by(target) for matrix in adapted):
            last = {matrix.name.rpartition(".")[2] for matrix in adapted}
            names = sorted(name for name in last if not name.isdigit())
            layers = dict.fromkeys(matrix.name.partition(".")[0] for matrix in adapted)
            raise ScenarioError("no weight matrix of the network has this name", key="lora.targets", found=target,
                                allowed=list(dict.fromkeys([*names, *layers])) or None)  # fmt: skip
    network.requires_grad_(False)
    for matrix in adapted:
        if any(map(matrix.is_meant_by, lora.targets)):
            weight = getattr(matrix.module, matrix.tensor)
            adapter = Adapter(
                weight, lora.rank, lora.alpha / lora.rank, rows=matrix.rows, trains_a=lora.aggregate != "ffa"
            )
            register_parametrization(matrix.module, matrix.tensor, adapter)


class AdapterSlot(NamedTuple):
    """Where a part keeps an adapter: names of its tensors and of the frozen weight, and the adapter itself."""

    a: str
    b: str
    weight: str
    adapter: Adapter


def adapter_slots(skeleton: nn.Module) -> list[AdapterSlot]:
    """Return the slots of all adapters of a network."""
    return [
        AdapterSlot(f"{path}.A", f"{path}.B", f"{path.rpartition('.')[0]}.original", adapter)
        for path, adapter in skeleton.named_modules()
        if isinstance(adapter, Adapter)
    ]


def joined(pairs: Sequence[tuple[Tensor, Tensor]], shares: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Join factors (A_i, B_i) to A (sum of r_i, in) and B (out, sum of r_i) with the product sum_i k_i B_i A_i."""
    weighted = [share * b for (_, b), share in zip(pairs, shares, strict=True)]
    return torch.cat([a for a, _ in pairs]), torch.cat(weighted, 1)


def average_product(pairs: Sequence[tuple[Tensor, Tensor]], shares: Sequence[float]) -> Tensor:
    """Return sum_i k_i B_i A_i (out, in) of factors (A_i, B_i) of any ranks, as one product of joined factors."""
    a, b = joined(pairs, shares)
    return b @ a


def truncated_product(pairs: Sequence[tuple[Tensor, Tensor]], shares: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Return factors A (r, in) and B (out, r) whose product is the best one of rank r to sum_i k_i B_i A_i.

    The rows of A are orthonormal and the singular values are in B: so a direction in which nothing was learned has a B
    of 0 and can still learn. They are found in a small core between the orthogonal bases of the joined factors. The
    third result is the squared norms of what is left out, and of the sum itself, (2,), in float64.
    """
    first_a, first_b = pairs[0]
    joined_a, joined_b = joined(pairs, shares)
    basis_a, core_a = torch.linalg.qr(joined_a.double().T)
    basis_b, core_b = torch.linalg.qr(joined_b.double())
    left, values, right = torch.linalg.svd(core_b @ core_a.T, full_matrices=False)
    kept = min(len(first_a), len(values))
    a, b = first_a.new_zeros(first_a.shape), first_b.new_zeros(first_b.shape)
    a[:kept] = right[:kept] @ basis_a.T
    b[:, :kept] = (basis_b @ left[:, :kept]) * values[:kept]
    squares = values.square()
    return a, b, torch.stack([squares[kept:].sum(), squares.sum()])


def product_errors(pairs: Sequence[tuple[Tensor, Tensor]], shares: Sequence[float]) -> Tensor:
    """Return the squared norms of sum k B A - (sum k B)(sum k A), and of sum k B A itself, (2,), in float64.

    They follow from the factors' inner products, so that no matrix (out, in) is made.
    """
    a, b = (factor.double() for factor in joined(pairs, shares))
    mean_a = torch.stack([share * a for (a, _), share in zip(pairs, shares, strict=True)]).sum(0)
    mean_b = torch.stack([share * b for (_, b), share in zip(pairs, shares, strict=True)]).sum(0)
    joined_a, joined_b = torch.cat([a, mean_a.double()]), torch.cat([b, -mean_b.double()], 1)
    return torch.stack([((y.T @ y) * (x @ x.T)).sum() for x, y in ((joined_a, joined_b), (a, b))])
