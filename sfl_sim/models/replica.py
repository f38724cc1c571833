"""Replicas: copies of a part at nodes, as flat vectors, so that copy, average and step are one call each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sfl_sim.models.lora import average_product, product_errors, truncated_product
from sfl_sim.models.part import Part
from sfl_sim.models.saved_forward import SavedForward
from sfl_sim.ops import State
from sfl_sim.rng import torch_seed

CACHED_ELEMENTS = 65_536
"""Number of elements of a vector that fits into a core's cache several times."""

STORED = ("flat", "buffers", "momentum", "variance", "n_steps", "start", "squared_norms", "statistics",
          "product_errors", "draws")  # fmt: skip
"""Names of what in `Weights` outlives a step, besides frozen parameters."""


class Weights:
    """Parameters (P,) and buffers (B,) of a part in two flat vectors, with views for the layers.

    Frozen parameters and constants are tensors that all copies share: what is copied, sent, averaged and stepped are
    the others. A flat clone costs a third of a module's deepcopy, and one fused optimiser step over the vector a fifth
    of a step per tensor. Buffers are a second vector because views of one vector share autograd's version counter, and
    batch norm writes its statistics between a forward and its backward.
    """

    __slots__ = (
        "__weakref__",
        "_grad",
        "_leaves",
        "_saved",
        "awaiting_gradient",
        "buffer_views",
        "buffers",
        "draws",
        "flat",
        "frozen",
        "momentum",
        "n_steps",
        "part",
        "product_errors",
        "squared_norms",
        "start",
        "statistics",
        "variance",
    )

    def __init__(self, part: Part, flat: Tensor, buffers: Tensor, frozen: tuple[Tensor, ...] = ()) -> None:
        self.part = part
        self.flat = flat
        self.buffers = buffers
        self.frozen = frozen
        self.buffer_views = part.buffer_views(buffers)
        self.momentum: Tensor | None = None
        self.variance: Tensor | None = None
        """Running average of squared gradients; kept by `Adam` alone, as `n_steps` is."""
        self.n_steps: Tensor | None = None
        self.start: Tensor | None = None
        """Value of `flat` before the round's first step; kept by `Proximal` alone."""
        self.squared_norms: Tensor | None = None
        """Sum over the round's steps of the gradient's squared norm, (); kept by `Measured` alone."""
        self.statistics: Tensor | None = None
        """Value of `buffers` before the mini-batch; kept by `OnNan` alone."""
        self.product_errors: Tensor | None = None
        """Squared norms (2,) of `product_errors` over all adapters, of the last average of which this is the result."""
        self.draws = 0, 0
        """Seed of the run, and how many times adapters have been drawn anew for these weights."""
        self.awaiting_gradient: Tensor | None = None
        """Activations at the cut that await their gradient; they carry the client's graph."""
        self._saved: SavedForward | None = None
        self._leaves: list[Tensor] | None = None
        self._grad: Tensor | None = None

    @classmethod
    def of(cls, part: Part, module: nn.Module, device: torch.device, seed: int = 0) -> Weights:
        """Copy the weights of `module`, whose layers are those of `part`, to `device`; `seed` is that of the run."""
        values = dict(module.named_parameters()) | dict(module.named_buffers(remove_duplicate=False))
        layout = torch.channels_last if part.channels_last else torch.contiguous_format
        weights = cls(
            part,
            torch.zeros(part.flat_length(part.shapes), dtype=part.dtype, device=device),
            torch.zeros(part.flat_length(part.buffer_shapes), dtype=part.dtype, device=device),
            tuple(
                values[name].detach().to(device, memory_format=layout if len(shape) == 4 else torch.preserve_format)
                for name, shape in zip(part.frozen_names, part.frozen_shapes, strict=True)
            ),
        )
        weights.draws = seed, 0
        with torch.no_grad():
            for name, view in weights.named_tensors():
                view.copy_(values[name])
        return weights

    def forget(self) -> None:
        """Drop the optimiser's state, as if no step had been taken."""
        self.momentum = self.variance = self.n_steps = self.start = self.squared_norms = None

    @property
    def beside_momentum(self) -> tuple[Tensor | None, ...]:
        """State of optimisers and their rules besides the momentum."""
        return self.variance, self.n_steps, self.start, self.squared_norms

    @beside_momentum.setter
    def beside_momentum(self, kept: tuple[Tensor | None, ...]) -> None:
        self.variance, self.n_steps, self.start, self.squared_norms = kept

    def copy(self, with_momentum: bool = False) -> Weights:
        """Copy the weights; the optimiser's state is new in every round (docs/methods/README.md#optimisers)."""
        copy = Weights(self.part, self.flat.clone(), self.buffers.clone(), self.frozen)
        copy.draws = self.draws
        if with_momentum and self.momentum is not None:
            copy.momentum = self.momentum.clone()
        return copy

    def only(self, part: Part) -> Weights:
        """Return the weights of `part`, some of these layers, in the same memory."""
        if part is self.part:
            return self
        parameters, buffers, frozen = self.part.where(part)
        some = Weights(part, self.flat[parameters], self.buffers[buffers], self.frozen[frozen])
        some.momentum = None if self.momentum is None else self.momentum[parameters]
        return some

    @property
    def leaves(self) -> list[Tensor]:
        """Parameters as autograd leaves, whose gradients accumulate in the flat vector `grad`."""
        if self._leaves is None:
            self._leaves = [view.detach().requires_grad_() for view in self.part.views(self.flat)]
            for leaf, gradient in zip(self._leaves, self.part.views(self.grad), strict=True):
                leaf.grad = gradient
        return self._leaves

    @property
    def grad(self) -> Tensor:
        """Gradient (P,) accumulated since it was last zeroed, laid out as `flat`."""
        if self._grad is None:
            self._grad = torch.zeros_like(self.flat)
        return self._grad

    def __call__(self, x: Tensor, training: bool) -> Tensor:
        """Run the part's layers on a batch."""
        if training:
            self.part.forward_settings.on_nan.keep(self)
        parameters = self.leaves if training else self.part.views(self.flat)
        return self.part.call(parameters, self.frozen, self.buffer_views, x, training)

    def without_graph(self, x: Tensor) -> Tensor:
        """Run the part's layers on a training batch that they do not learn from."""
        with torch.no_grad():
            return self.part.call(self.part.views(self.flat), self.frozen, self.buffer_views, x, training=True)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the activations of a training batch x; the graph is kept for `backward`, or computed again then."""
        hold = self.part.forward_settings.graphs.admit(self)
        self._saved = SavedForward.now(self, x)
        activations = self(x, training=True)
        self.awaiting_gradient = activations if hold else None
        return activations.detach()

    def backward(self, gradient: Tensor) -> None:
        """Accumulate the parameters' gradients, given the gradient at the activations that `forward` returned."""
        activations = self.awaiting_gradient
        if activations is None:
            assert self._saved is not None, "backward without a forward"
            activations = self._saved.again(self)
        self.awaiting_gradient = self._saved = None
        if activations.requires_grad:  # not those of a first part without parameters
            torch.autograd.backward(activations, gradient)
        self.part.forward_settings.graphs.release(self)

    @property
    def passed(self) -> tuple[Tensor, Tensor]:
        """Input and activations of the forward pass that awaits its gradient, without its graph."""
        assert self._saved is not None, "no forward pass"
        activations = self._saved.again(self) if self.awaiting_gradient is None else self.awaiting_gradient
        return self._saved.x, activations.detach()

    def stored(self) -> dict[str, Any]:
        """Return all tensors for a checkpoint; a graph is stored as the forward pass that made it."""
        kept = {name: getattr(self, name) for name in STORED}
        kept["grad"] = self._grad if self._grad is not None and self._grad.any() else None
        passed = self._saved
        kept["passed"] = passed and (passed.x, passed.buffers, passed.draws, passed.devices)
        kept["holds a graph"] = self in self.part.forward_settings.graphs
        kept["frozen"] = self.frozen
        return kept

    @classmethod
    def restored(cls, part: Part, kept: Mapping[str, Any]) -> Weights:
        """Make weights of the tensors that others of the same part have `stored`."""
        weights = cls(part, kept["flat"], kept["buffers"], kept["frozen"])
        for name in STORED:
            setattr(weights, name, kept[name])
        weights._grad = kept["grad"]
        if kept["passed"]:
            x, *before = kept["passed"]
            weights._saved = SavedForward(x, weights.flat._version, *before)
        if kept["holds a graph"]:
            part.forward_settings.graphs.admit(weights)  # as nothing else differs from a run that has never been stored
        return weights

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and views as in the `state_dict` of the part's layers, without constants."""
        yield from zip(self.part.names, self.part.views(self.flat), strict=True)
        shared = zip(self.part.frozen_names, self.frozen, strict=True)
        yield from ((name, tensor) for name, tensor in shared if name not in self.part.constants)
        yield from zip(self.part.buffer_names, self.buffer_views, strict=True)


def model_bytes(part: Part, has_velocity: bool) -> int:
    """Return the bytes of a model in a message: parameters, buffers, and with a velocity the parameters once more."""
    return part.size_bytes + (part.n_parameters * part.dtype.itemsize if has_velocity else 0)


class Replica(State):
    """State of flows that holds a part and, except in timing-only runs, its weights as content.

    With `has_velocity`, the momentum buffer is part of the model: copied, sent and averaged with the weights.
    """

    __slots__ = ("copy_bytes", "has_velocity", "part")
    content: Weights | None

    def __init__(self, part: Part, weights: Weights | None = None, has_velocity: bool = False) -> None:
        super().__init__("model", model_bytes(part, has_velocity), content=weights)
        self.part = part
        self.has_velocity = has_velocity
        self.copy_bytes: int | None = None
        """Size of a copy on its way, where that is not the size of the model."""

    def empty(self) -> Replica:
        """Make a copy without weights."""
        copy = Replica(self.part, has_velocity=self.has_velocity)
        copy.size_bytes = copy.size_bytes if self.copy_bytes is None else self.copy_bytes
        return copy

    @property
    def members(self) -> Sequence[Replica]:
        """Replicas of which this state consists, applied one after another: itself."""
        return (self,)

    @property
    def weights(self) -> Weights:
        """Content of a replica that has weights."""
        assert self.content is not None, "a timing-only replica has no weights"
        return self.content

    def snapshot(self) -> Replica:
        """Copy the replica, with a new optimiser state except for the velocity."""
        copy = self.empty()
        copy.content = self.content and self.content.copy(self.has_velocity)
        return copy

    @classmethod
    def averaged(cls, replicas: Sequence[Replica], shares: Sequence[float]) -> Replica:
        """Make a new replica, the average of `replicas` of one part weighted by `shares`."""
        result = replicas[0].snapshot()
        average(result.weights, [replica.weights for replica in replicas], shares)
        return result


class Joined(State):
    """State of replicas of consecutive parts, which a step changes together; its copy is one replica.

    A change of any of them is serialised with changes of the first. Another joined state may share later members only
    if it shares the first as well.
    """

    __slots__ = ("has_velocity", "members", "part")

    def __init__(self, part: Part, members: Sequence[Replica]) -> None:
        self.has_velocity = all(member.has_velocity for member in members)
        super().__init__("model", model_bytes(part, self.has_velocity))
        self.part = part
        self.members = members

    @property
    def guard(self) -> State:
        """The first member."""
        return self.members[0]

    def empty(self) -> Replica:
        """Make a copy without weights."""
        copy = Replica(self.part, has_velocity=self.has_velocity)
        if any(member.copy_bytes is not None for member in self.members):
            copy.size_bytes = sum(member.empty().size_bytes for member in self.members)
        return copy

    def snapshot(self) -> Replica:
        """Copy all layers to one replica, with a new optimiser state except for the velocity."""
        copy = self.empty()
        members = [replica.content for replica in self.members if replica.content]
        if not members:
            return copy
        flat, buffers = torch.cat([w.flat for w in members]), torch.cat([w.buffers for w in members])
        weights = Weights(self.part, flat, buffers, tuple(tensor for w in members for tensor in w.frozen))
        if self.has_velocity and (velocities := _velocities(members)):
            weights.momentum = torch.cat(velocities)
        copy.content = weights
        return copy


class Bundle(State):
    """Replicas that are copied and sent as one but used apart, such as a front end and its exit; its copy is a bundle.

    Attributes:
        members: the replicas.
        pending: what one step leaves at the node for a later one, such as a gradient or a graph.
    """

    __slots__ = ("members", "pending")

    def __init__(self, members: Sequence[Replica | Joined]) -> None:
        super().__init__("model", sum(member.size_bytes for member in members))
        self.members = members
        self.pending: Any = None

    @property
    def guard(self) -> State:
        """The guard of the first member."""
        return self.members[0].guard

    def snapshot(self) -> Bundle:
        """Copies of the members, each one replica."""
        return Bundle([member.snapshot() for member in self.members])

    @property
    def replicas(self) -> list[Replica]:
        """All replicas that the members are made of, in order."""
        return [replica for member in self.members for replica in member.members]


def through(pieces: Sequence[Replica], x: Tensor) -> Tensor:
    """Run a training pass of x through one piece after another."""
    for piece in pieces:
        x = piece.weights(x, training=True)
    return x


def average(into: Weights, replicas: Sequence[Weights], shares: Sequence[float], with_momentum: bool = False) -> None:
    """Set `into` to the average of `replicas` weighted by `shares`, also its momentum if asked for.

    Replicas may hold more layers than `into`.
    """
    replicas = [weights.only(into.part) for weights in replicas]
    with torch.no_grad():
        learned = _average_adapters(into, replicas, shares) if into.part.aggregate else {}
        weighted_sum(into.flat, [weights.flat for weights in replicas], shares)
        weighted_sum(into.buffers, [weights.buffers for weights in replicas], shares)
        if with_momentum and (velocities := _velocities(replicas)):
            into.momentum = torch.empty_like(into.flat)
            weighted_sum(into.momentum, velocities, shares)
        if learned:
            into.frozen = tuple(map(lambda name, old: learned.get(name, old), into.part.frozen_names, into.frozen))
            for name, view in zip(into.part.names, into.part.views(into.flat), strict=True):
                view.copy_(learned.get(name, view))


def _velocities(replicas: Sequence[Weights]) -> list[Tensor]:
    """Give the momentum buffer of each, zeros if it has taken no step yet; no buffers if none has."""
    if all(weights.momentum is None for weights in replicas):
        return []
    return [torch.zeros_like(w.flat) if w.momentum is None else w.momentum for w in replicas]


def _average_adapters(into: Weights, replicas: Sequence[Weights], shares: Sequence[float]) -> dict[str, Tensor]:
    """Give values by name that replace averages: of adapters, and of the frozen weights that they are joined into.

    Measures what averages of factors, or of their best approximations, are wrong by.
    """
    part, (seed, drawn) = into.part, into.draws
    tensors = [dict(weights.named_tensors()) for weights in replicas]
    learned: dict[str, Tensor] = {}
    errors = torch.zeros(2, dtype=torch.float64)
    for place in part.adapters:
        pairs = [(named[place.a], named[place.b]) for named in tensors]
        if part.aggregate == "separate":
            errors += product_errors(pairs, shares).cpu()
        elif part.aggregate == "svd":
            learned[place.a], learned[place.b], error = truncated_product(pairs, shares)
            errors += error.cpu()
        elif part.aggregate == "concat":
            weight = learned.get(place.weight, tensors[0][place.weight])
            learned[place.weight] = place.adapter.added(weight, average_product(pairs, shares))
            generator = torch.Generator().manual_seed(torch_seed(seed, f"adapter {place.a}", drawn + 1))
            learned[place.a] = torch.empty(pairs[0][0].shape, dtype=part.dtype)
            place.adapter.draw(learned[place.a], generator)
            learned[place.b] = torch.zeros_like(pairs[0][1])
    if part.aggregate in ("separate", "svd"):
        into.product_errors = errors
    elif part.aggregate == "concat":
        into.draws = seed, drawn + 1
    return learned


def weighted_sum(into: Tensor, vectors: Sequence[Tensor], shares: Sequence[float]) -> None:
    """Set `into` (P,) to the sum of `vectors` (P,) weighted by `shares`, by a running sum.

    On a CPU the vectors are summed piece by piece, so that the sum stays in the cache: 1.25 times as fast, same bits.
    """
    length = CACHED_ELEMENTS if into.device.type == "cpu" else max(1, len(into))
    for part, *summands in zip(*(torch.split(vector, length) for vector in (into, *vectors)), strict=True):
        total = torch.zeros_like(part)
        for summand, share in zip(summands, shares, strict=True):
            total.add_(summand, alpha=share)
        part.copy_(total)
