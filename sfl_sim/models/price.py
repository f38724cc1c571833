"""Prices of layers: multiply-accumulates (MACs) by kind, activations moved, parameters and buffers."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sfl_sim.errors import ScenarioError
from sfl_sim.models.layers import Several, hand_on, together
from sfl_sim.models.lora import Adapter
from sfl_sim.ops import KINDS, Work

NO_WORK = Work.of(0)
SHAPING = {"_unsafe_view", "unsafe_split", "unsafe_chunk", "prim::device"}
"""Operations that only give another view, though torch does not mark them as views, or ask where a tensor lies."""
FOLDED = {
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "_batch_norm_no_update",
    "native_dropout", "relu", "hardtanh", "clamp", "clamp_min",
}  # fmt: skip
"""Operations that inference runs as part of the product before them: neither MACs nor activations moved."""
UNPRICED = (
    "linalg_", "_linalg_", "cholesky", "lu_", "triangular_solve", "matrix_exp", "ormqr", "geqrf", "_thnn_fused",
    "_cudnn", "_native_multi_head", "_transformer", "_efficient_attention", "_flash_attention", "_scaled_mm", "_int_mm",
    "_weight_int", "quantized_", "_sparse", "sparse_", "_slow_conv", "slow_conv", "thnn_conv", "mkldnn_conv",
)  # fmt: skip
"""Beginnings of names of torch's operations that compute products, for which there is no formula here."""
VECTOR = 16
"""Channels that kernels of 32 bits compute at a time, at most: narrower layers leave some idle."""
WINOGRAD = 4
"""Elements that a call reads for a weight of a 3x3 convolution with stride 1, one group and no dilation: Winograd's
algorithm for 4x4 outputs keeps 6x6 numbers for 3x3 weights."""
FFT_MACS = 2.5
"""MACs of a complex fast Fourier transform of n elements, over n log2(n): 5 n log2(n) operations (Cooley, Tukey)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Price of a layer for one sample.

    Attributes:
        name: name of the layer.
        macs_by_kind: MACs of its forward pass, for each of `KINDS`.
        n_ops: calls of modules in it that run MACs themselves (convolutions, linear maps, attention blocks), each of
            which may cost an overhead. A recurrent module is called for each time step of each layer and direction.
        pointwise, grouped: MACs of 1x1 convolutions, and of convolutions in groups of several channels; both are part
            of `conv` in `macs_by_kind`.
        moved: elements of activations that its operations read and write, without those that inference folds into the
            product before them (batch norm, ReLU).
        padded: MACs that convolutions would need beyond their own if the channels of each group filled up `VECTOR`s.
        parameters, frozen, buffers: trainable elements, frozen ones, and those of floating buffers.
        spared: what the backward pass does not need of twice the forward pass: a gradient for each frozen weight.
        spared_as_first: the same if nobody needs the gradient at its input either, as below it nothing is trained.
        out_shape: shape of its output, without the batch dimension.
        skips: shapes of the tensors that are sent together as its output, where skip connections cross; else none.
        unpriced: names of operations in it whose products are not known; they count as moved elements alone.
        is_complex: True if its output is of complex numbers.
        looked_up: elements of its tables of embeddings, of which a call reads some rows, counted in `moved`.
        transformed: elements that a call reads beyond its weights, since Winograd's convolutions keep more.
    """

    name: str
    macs_by_kind: dict[str, int]
    n_ops: int
    pointwise: int
    grouped: int
    moved: int
    padded: int
    parameters: int
    frozen: int
    buffers: int
    out_shape: tuple[int, ...]
    spared: Work = NO_WORK
    spared_as_first: Work = NO_WORK
    unpriced: tuple[str, ...] = ()
    is_complex: bool = False
    looked_up: int = 0
    transformed: int = 0
    skips: tuple[tuple[int, ...], ...] = ()

    @property
    def twice(self) -> Work:
        """Work of one sample's backward pass if nothing is frozen: twice the forward pass."""
        conv, depthwise, dense, attention = (2 * self.macs_by_kind[kind] for kind in KINDS)
        finer = (2 * self.pointwise, 2 * self.grouped, 2 * self.moved, 2 * self.pointwise)
        return Work(2 * self.macs, (conv, depthwise, dense, attention), 2 * self.n_ops, finer, 2 * self.weights,
                    padded=2 * self.padded)  # fmt: skip

    @property
    def weights(self) -> int:
        """Elements of its weights that a call reads."""
        return self.parameters + self.frozen - self.looked_up + self.transformed

    @property
    def macs(self) -> int:
        """MACs of one sample's forward pass."""
        return sum(self.macs_by_kind.values())

    @property
    def out_numel(self) -> int:
        """Elements per sample of the layer's output."""
        return math.prod(self.out_shape)


def one_sample(module: nn.Module, input_shape: tuple[int, ...], tokens: bool | None = None) -> Tensor:
    """Make a batch of one sample of zeros: int64 tokens, by default if its shape has one dimension, or numbers."""
    tokens = len(input_shape) == 1 if tokens is None else tokens
    return torch.zeros(1, *input_shape, dtype=torch.int64 if tokens else next(module.parameters()).dtype)


def price(module: nn.Sequential, input_shape: tuple[int, ...], tokens: bool | None = None) -> tuple[Layer, ...]:
    """Price every child of `module` with one sample. Puts the module into eval mode."""
    x = one_sample(module, input_shape, tokens)
    hand_on(module)
    given: Tensor | Several = x
    layers = []
    for name, child in zip(module._modules, module, strict=True):  # named_children leaves out a child's second use
        layer, given = price_of(child, given, name)
        layers.append(layer)
    return tuple(layers)


def price_of(module: nn.Module, x: Tensor | Several, name: str = "") -> tuple[Layer, Tensor | Several]:
    """Price `module(x)` for a batch `x` of one sample, on any device, `meta` included; gives its output, too.

    This puts the module into eval mode.

    Raises:
        ScenarioError: the output is no tensor.
    """
    with _counting(module.eval()) as counts:
        out = module(x)
    handed: Tensor | Several = out
    if isinstance(out, Several):
        out = together(out)
    if not isinstance(out, Tensor):
        problem = f"layer {name or type(module).__name__!r} gives a {type(out).__name__}"
        raise ScenarioError(f"{problem}: wrap it in a module that gives one tensor", key="model")
    macs = sum(counts.by_call.values(), Counter())
    layer = Layer(
        name=name,
        macs_by_kind={kind: macs[kind] for kind in KINDS},
        n_ops=sum(counts.steps[n] for n, call_macs in counts.by_call.items() if call_macs.total()),
        pointwise=counts.finer["pointwise"],
        grouped=counts.finer["grouped"],
        moved=counts.finer["moved"],
        padded=counts.finer["padded"],
        parameters=sum(p.numel() for p in module.parameters() if p.requires_grad),
        frozen=sum(p.numel() for p in module.parameters() if not p.requires_grad),
        buffers=sum(b.numel() for inner in module.modules() for b in state_buffers(inner).values()),
        out_shape=tuple(out.shape[1:]),
        skips=tuple(tuple(x.shape[1:]) for x in handed) if isinstance(handed, Several) else (),
        spared=counts.spared_work(counts.spared),
        spared_as_first=counts.spared_work(counts.spared_as_first),
        unpriced=tuple(sorted(counts.unknown)),
        is_complex=out.is_complex(),
        looked_up=_looked_up(module),
        transformed=counts.finer["transformed"],
    )
    return layer if out.requires_grad else replace(layer, spared_as_first=layer.twice), handed.detach()


def _looked_up(module: nn.Module) -> int:
    """Count the elements of tables of embeddings, but of those that a product reads, too."""
    tables: set[Tensor] = set()
    others: set[Tensor] = set()
    for inner in module.modules():
        is_table = isinstance(inner, nn.Embedding | nn.EmbeddingBag)
        (tables if is_table else others).update(inner.parameters(recurse=False))
    return sum(table.numel() for table in tables - others)


def state_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return floating buffers of `module` itself by name: statistics, but no tables that its state dict leaves out."""
    names = module._buffers.keys() - module._non_persistent_buffers_set
    return {name: b for name, b in module._buffers.items() if name in names and b is not None and b.is_floating_point()}


class _Counts:
    """What ran so far: MACs by kind of every call of a module, and finer counts of all.

    The backward pass of a product is a product for each of its two factors. What it is spared is counted once more by
    itself, for every factor that needs no gradient: a frozen weight and, if it is the first layer, what no trained
    weight has touched. A weight with an adapter is frozen; the adapter counts as two products of low rank with what the
    weight is multiplied by, as devices would run it, and not as the product of its factors.
    """

    def __init__(self, module: nn.Module) -> None:
        self.calls: list[tuple[int, nn.Module | None]] = [(0, None)]
        self.by_call: dict[int, Counter[str]] = {0: Counter()}
        self.steps: defaultdict[int, int] = defaultdict(lambda: 1)  # how often a call in by_call runs its kernels
        self.finer: Counter[str] = Counter()
        self.spared: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.spared_as_first: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.weights = {memory_of(weight) for weight in module.parameters()}
        self.frozen = {memory_of(weight) for weight in module.parameters() if not weight.requires_grad}
        self.adapted: dict[int, tuple[Tensor, list[Adapter]]] = {}
        self.in_attention = False
        self.priced_by: nn.Module | None = None  # the module that is running and gives its MACs
        self.unknown: set[str] = set()

    def spared_work(self, by_call: Mapping[int, Counter[str]]) -> Work:
        """Sum what the backward pass is spared; of a call's kernels as many as all of its MACs are spared."""
        total = sum(by_call.values(), Counter())
        conv, depthwise, dense, attention = (total[kind] for kind in KINDS)
        n_ops = 0
        for n, spared in by_call.items():
            n_ops += self.steps[n] * (sum(spared[kind] for kind in KINDS) // max(self.by_call[n].total(), 1))
        finer = (total["pointwise"], total["grouped"], total["moved"], total["pointwise"])
        by_kind = (conv, depthwise, dense, attention)
        return Work(sum(by_kind), by_kind, n_ops, finer, total["weights"], padded=total["padded"])

    def enter(self, module: nn.Module, args: Any) -> None:
        """Note that a module is called."""
        number = len(self.by_call)
        self.calls.append((number, module))
        self.by_call[number] = Counter()
        if isinstance(module, nn.RNNBase) and args and isinstance(x := args[0], Tensor):
            time_steps = x.shape[-2 if module.batch_first or x.dim() == 2 else 0]
            self.steps[number] = time_steps * module.num_layers * (2 if module.bidirectional else 1)
        if self.priced_by is None and callable(macs_of := getattr(module, "macs", None)):
            trained_first = sorted(module.parameters(), key=lambda weight: not weight.requires_grad)
            factors = [*(x for x in args[:1] if isinstance(x, Tensor)), *trained_first[:1]]
            self.products("dense", int(macs_of(*args)), (), factors)
            self.priced_by = module

    def leave(self, module: nn.Module, args: Any, out: Any) -> None:
        """Note that the call ends."""
        self.calls.pop()
        if self.priced_by is module:
            self.priced_by = None
        if isinstance(module, Adapter):
            _, before = self.adapted.get(memory_of(args[0]), (None, []))
            self.adapted[memory_of(out)] = out, [*before, module]
            self.frozen.add(memory_of(out))
            self.weights.add(memory_of(out))

    @property
    def in_adapter(self) -> bool:
        """True while an adapter computes a weight."""
        return isinstance(self.calls[-1][1], Adapter)

    def products(
        self,
        kind: str,
        macs: int,
        operands: Sequence[Tensor],
        factors: Sequence[Tensor] = (),
        finer: str = "",
        groups: int = 1,
        padded: int = 0,
        reads: int = 1,
    ) -> None:
        """Count MACs for the current call, all of them as attention in a self-attention block.

        Args:
            operands: what is read and written, besides weights.
            factors: the two that are multiplied, of which either may be a weight; none if there are other numbers.
            finer: the finer amount that the MACs are, too.
            groups: of a convolution; the matrix A of an adapter sees the inputs of each.
            padded: MACs beyond these if channels filled up vectors.
            reads: elements that are read for a weight.
        """
        if self.in_adapter:
            return
        if self.priced_by:
            self.moved(operands)
            return
        number, module = self.calls[-1]
        kind = "attention" if self.in_attention or isinstance(module, nn.MultiheadAttention) else kind
        addresses = [memory_of(factor) for factor in factors]
        n_frozen = int(not self.frozen.isdisjoint(addresses))
        needed = [
            factor.requires_grad and address not in self.frozen
            for factor, address in zip(factors, addresses, strict=True)
        ]
        n_free = needed.count(False) if any(needed) or any(x.requires_grad for x in operands) else 2
        own = sum(f.numel() for f, address in zip(factors, addresses, strict=True) if address in self.weights)
        self.finer["transformed"] += (reads - 1) * own
        moved = sum(map(Tensor.numel, operands))
        self._product(number, kind, macs, moved, reads * own, spared=(n_frozen, n_free), finer=finer, padded=padded)
        for factor, address in zip(factors, addresses, strict=True):
            whole, adapters = self.adapted.get(address, (factor, []))
            for adapter in adapters:
                a, b = adapter.A, adapter.B
                (rank, n_in), n_out, positions = a.shape, len(b), macs // whole.numel()
                down = positions * rank * groups
                x_needed = operands[0].requires_grad
                for factor_macs, moved, matrix, spared in (
                    (down * n_in, operands[0].numel() + down, a, (not a.requires_grad, 2 - x_needed - a.requires_grad)),
                    (positions * rank * n_out, down + positions * n_out, b, (0, not (x_needed or a.requires_grad))),
                ):
                    self.by_call[number := len(self.by_call)] = Counter()
                    self._product(number, kind, factor_macs, moved, matrix.numel(), spared)

    def _product(
        self, number: int, kind: str, macs: int, moved: int, weights: int, spared: tuple[int, int], finer: str = "",
        padded: int = 0,
    ) -> None:  # fmt: skip
        self.by_call[number][kind] += macs
        self.finer.update({"moved": moved, finer: macs, "padded": padded})
        amounts = {kind: macs, "moved": moved, "weights": weights, finer: macs, "padded": padded}
        for by_call, n in zip((self.spared, self.spared_as_first), spared, strict=True):
            by_call[number].update({what: n * amount for what, amount in amounts.items()})

    def moved(self, operands: Sequence[Tensor]) -> None:
        """Count elements that an operation reads or writes."""
        if not self.in_adapter:
            self.finer["moved"] += sum(operand.numel() for operand in operands)


class _Functions(TorchFunctionMode):
    """Marks the products of attention that is a function."""

    def __init__(self, counts: _Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts.in_attention = function is nn.functional.scaled_dot_product_attention
        out = function(*args, **(kwargs or {}))
        self.counts.in_attention = False
        return out


class _OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that torch runs, whichever Python wrote them."""

    def __init__(self, counts: _Counts) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = counts

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave `__torch_dispatch__` as it is: torch would wrap it in a guard that imports its compiler, in 2 s."""
        return False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        name = op._schema.name.removeprefix("aten::")
        if op.is_view or torch.Tag.inplace_view in op.tags or name in SHAPING:
            return out
        name = name.removesuffix("_")  # in place
        match name, args:
            case "convolution", (x, weight, _, stride, _, dilation, transposed, _, groups):
                self._convolution(x, weight, out, transposed=transposed, groups=groups, steps={*stride, *dilation})
            case "mm" | "bmm" | "mv" | "dot", (a, b):
                self.counts.products("dense", _products(a, b), (a, out) if name == "mm" else (a, b, out), (a, b))
            case "addmm" | "baddbmm" | "addmv", (_, a, b, *_):
                self.counts.products("dense", _products(a, b), (a, out) if name == "addmm" else (a, b, out), (a, b))
            case "mkldnn_rnn_layer", (x, input_weight, hidden_weight, *_):
                n = math.prod(x.shape[:-1])
                hidden = next((needed for needed in (x, input_weight, hidden_weight) if needed.requires_grad), x)
                self.counts.products("dense", n * input_weight.numel(), (x,), (x, input_weight))
                self.counts.products("dense", n * hidden_weight.numel(), (out[0],), (hidden, hidden_weight))
            case _ if name.startswith("_scaled_dot_product"):
                query, key, value = args[:3]
                macs = math.prod(query.shape[:-1]) * key.shape[-2] * (key.shape[-1] + value.shape[-1])
                self.counts.products("attention", macs, (query, key, value, query))
            case "_trilinear", (a, weight, b, *_):
                self.counts.products("dense", len(a) * weight.numel(), (a, b, out), (a, weight))
            case "_cdist_forward", (a, b, *_):
                self.counts.products("dense", a.numel() * b.shape[-2], (a, b, out))
            case "_fft_r2c" | "_fft_c2r" | "_fft_c2c", (x, dims, *_):
                whole = out if name == "_fft_c2r" else x  # half of a real signal's transform is known from the other
                macs = FFT_MACS * whole.numel() * math.log2(math.prod(whole.shape[dim] for dim in dims))
                self.counts.products("dense", round(macs / (1 if name == "_fft_c2c" else 2)), (x, out))
            case "embedding", (_, indices, *_):
                self.counts.moved((indices, out, out))  # the rows that are looked up, not the whole table
            case "_embedding_bag" | "_embedding_bag_forward_only", (weight, indices, *_):
                self.counts.moved((indices, out[0], weight[:1].expand(indices.numel(), -1)))
            case _ if name in FOLDED:
                pass
            case _:
                is_known = op.namespace == "aten" and (name == "linalg_vector_norm" or not name.startswith(UNPRICED))
                if not (self.counts.priced_by or is_known):
                    self.counts.unknown |= {op._schema.name.removeprefix("aten::")}
                self.counts.moved([leaf for leaf in tree_leaves((args, out)) if isinstance(leaf, Tensor)])
        return out

    def _convolution(
        self, x: Tensor, weight: Tensor, out: Tensor, transposed: bool, groups: int, steps: set[int]
    ) -> None:
        positions = math.prod((x if transposed else out).shape[2:])
        macs = len(x) * positions * weight.numel()
        kind, finer = "depthwise" if 1 < groups == x.shape[1] else "conv", ""
        if kind == "conv" and groups > 1:
            finer = "grouped"
        elif kind == "conv" and math.prod(weight.shape[2:]) == 1:
            finer = "pointwise"
        channels = (weight.shape[0] // groups, weight.shape[1])
        filled = 1 if kind == "depthwise" else math.prod(-(-n // VECTOR) * VECTOR / n for n in channels)
        padded = round(macs * (filled - 1))
        winograd = (*weight.shape[2:], groups, transposed) == (3, 3, 1, False) and steps == {1}
        reads = WINOGRAD if winograd else 1
        self.counts.products(kind, macs, (x, out), (x, weight), finer=finer, groups=groups, padded=padded, reads=reads)


def memory_of(tensor: Tensor) -> int:
    """Return what tells the memory of a tensor that is alive from that of others, on the `meta` device, too."""
    return int(tensor.untyped_storage()._cdata)


def _products(a: Tensor, b: Tensor) -> int:
    return a.numel() * (b.shape[-1] if b.dim() > 1 else 1)


@contextmanager
def _counting(module: nn.Module) -> Iterator[_Counts]:
    """Count what `module` runs."""
    counts = _Counts(module)
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)  # which runs a frozen attention block as one operation
        for submodule in module.modules():
            for hook in (
                submodule.register_forward_pre_hook(counts.enter),
                submodule.register_forward_hook(counts.leave),
            ):
                stack.callback(hook.remove)
        stack.enter_context(torch.enable_grad())  # without gradients torch runs an attention block as one operation
        stack.enter_context(_Functions(counts))
        stack.enter_context(_OperationCounter(counts))
        yield counts
