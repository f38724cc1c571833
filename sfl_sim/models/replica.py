"""A replica: one node's copy of a part, as flat vectors, so that copy, average and step are one call each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import get_device_states, set_device_states

from sfl_sim.models.part import Part
from sfl_sim.ops import State

CACHED_ELEMENTS = 65_536
"""Elements of a vector that a core's cache holds several times over."""


class Weights:
    """Parameters and buffers of a part in two flat vectors, with views for the layers.

    A flat clone costs a third of a module's deepcopy, and one fused optimiser step over the vector a fifth of a step
    per tensor. Buffers lie apart because views of one vector share autograd's version counter, and batch norm writes
    its statistics between a forward and its backward.
    """

    __slots__ = (
        "__weakref__",
        "_forgotten",
        "_grad",
        "_leaves",
        "awaiting_gradient",
        "buffer_views",
        "buffers",
        "flat",
        "momentum",
        "part",
        "start",
    )

    def __init__(self, part: Part, flat: Tensor, buffers: Tensor) -> None:
        self.part = part
        self.flat = flat
        self.buffers = buffers
        self.buffer_views = part.buffer_views(buffers)
        self.momentum: Tensor | None = None
        self.start: Tensor | None = None
        """What `flat` was before the round's first step; kept by `ProximalSgd` alone."""
        self.awaiting_gradient: Tensor | None = None
        """Cut-layer activations whose gradient has not come back yet; they carry the client's graph."""
        self._forgotten: Forgotten | None = None
        self._leaves: list[Tensor] | None = None
        self._grad: Tensor | None = None

    @classmethod
    def of(cls, part: Part, module: nn.Module, device: torch.device) -> Weights:
        """The weights of `module`, whose layers are those of `part`."""
        weights = cls(
            part,
            torch.zeros(part.flat_length(part.shapes), dtype=part.dtype, device=device),
            torch.zeros(part.flat_length(part.buffer_shapes), dtype=part.dtype, device=device),
        )
        values = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, view in weights.named_tensors():
                view.copy_(values[name])
        return weights

    def copy(self) -> Weights:
        """The same numbers in new memory, without optimiser state (fresh for every round, METHODS.md 0.3)."""
        return Weights(self.part, self.flat.clone(), self.buffers.clone())

    def only(self, part: Part) -> Weights:
        """The weights of the layers of `part`, which are some of these, in the same memory."""
        if part is self.part:
            return self
        parameters, buffers = self.part.where(part)
        return Weights(part, self.flat[parameters], self.buffers[buffers])

    @property
    def leaves(self) -> list[Tensor]:
        """The parameters as autograd leaves; their gradients accumulate in the flat vector `grad`."""
        if self._leaves is None:
            self._leaves = [view.detach().requires_grad_() for view in self.part.views(self.flat)]
            for leaf, gradient in zip(self._leaves, self.part.views(self.grad), strict=True):
                leaf.grad = gradient
        return self._leaves

    @property
    def grad(self) -> Tensor:
        """The gradient since it was last zeroed, laid out as `flat`."""
        if self._grad is None:
            self._grad = torch.zeros_like(self.flat)
        return self._grad

    def __call__(self, x: Tensor, training: bool) -> Tensor:
        """Run the part's layers on a batch."""
        parameters = self.leaves if training else self.part.views(self.flat)
        return self.part.call(parameters, self.buffer_views, x, training)

    def forward(self, x: Tensor) -> Tensor:
        """The activations of a training batch x; its graph waits here for `backward`, or is computed again then."""
        hold = self.part.calling.graphs.admit(self)
        self._forgotten = None if hold else Forgotten(self, x)
        activations = self(x, training=True)
        self.awaiting_gradient = activations if hold else None
        return activations.detach()

    def backward(self, gradient: Tensor) -> None:
        """Accumulate the parameters' gradients from that of the activations which `forward` gave."""
        activations = self._forgotten.again(self) if self._forgotten else self.awaiting_gradient
        assert activations is not None, "backward without a forward"
        self.awaiting_gradient = self._forgotten = None
        torch.autograd.backward(activations, gradient)
        self.part.calling.graphs.release(self)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Names and views as in the `state_dict` of the part's layers."""
        yield from zip(self.part.names, self.part.views(self.flat), strict=True)
        yield from zip(self.part.buffer_names, self.buffer_views, strict=True)


class Forgotten:
    """A forward pass whose graph was not kept: what it takes to run it once more, to the bit."""

    __slots__ = ("buffers", "devices", "draws", "version", "x")

    def __init__(self, weights: Weights, x: Tensor) -> None:
        self.x = x
        self.buffers = weights.buffers.clone()
        self.version = weights.flat._version
        self.draws = torch.get_rng_state()
        self.devices = get_device_states(x)

    def again(self, weights: Weights) -> Tensor:
        """The activations with their graph: random draws repeat, and running statistics do not move twice."""
        if weights.flat._version != self.version:
            raise RuntimeError("weights have been modified by an inplace operation between forward and backward")
        with torch.random.fork_rng(self.devices[0], device_type=self.x.device.type):
            torch.set_rng_state(self.draws)
            set_device_states(*self.devices)
            return weights.part.call(weights.leaves, weights.part.buffer_views(self.buffers), self.x, training=True)


class Replica(State):
    """A state for flows: a part and, outside timing-only runs, its weights as content."""

    __slots__ = ("part",)
    content: Weights | None

    def __init__(self, part: Part, weights: Weights | None = None) -> None:
        super().__init__("model", part.size_bytes, content=weights)
        self.part = part

    @property
    def members(self) -> Sequence[Replica]:
        """The replicas that this state is made of, to be applied one after another: itself."""
        return (self,)

    @property
    def weights(self) -> Weights:
        """The content of a replica that is not a ghost."""
        assert self.content is not None, "a timing-only replica has no weights"
        return self.content

    def snapshot(self) -> Replica:
        """A copy with the same numbers and a fresh optimiser."""
        return Replica(self.part, self.content and self.content.copy())

    @classmethod
    def averaged(cls, replicas: Sequence[Replica], shares: Sequence[float]) -> Replica:
        """A new replica that is the average of others of one part."""
        result = replicas[0].snapshot()
        average(result.weights, [replica.weights for replica in replicas], shares)
        return result


class Joined(State):
    """Replicas of consecutive parts as one state, which a step changes together; its copy is one replica.

    A change of any of them waits for the turn of the first. Another joined state may share later members, so long as it
    shares the first as well: heads on one trunk.
    """

    __slots__ = ("members", "part")

    def __init__(self, part: Part, members: Sequence[Replica]) -> None:
        super().__init__("model", part.size_bytes)
        self.part = part
        self.members = members

    @property
    def guard(self) -> State:
        """The first member."""
        return self.members[0]

    def snapshot(self) -> Replica:
        """One replica of all the layers, with the same numbers and a fresh optimiser."""
        weights = [replica.content for replica in self.members if replica.content]
        if not weights:
            return Replica(self.part)
        flat, buffers = torch.cat([w.flat for w in weights]), torch.cat([w.buffers for w in weights])
        return Replica(self.part, Weights(self.part, flat, buffers))


def average(into: Weights, replicas: Sequence[Weights], shares: Sequence[float]) -> None:
    """`into` becomes the average of `replicas` weighted by `shares`: a running sum, bound by memory bandwidth.

    Replicas may hold more layers than `into`. A CPU sums stretch by stretch, so that the sum stays in its cache: 1.25
    times as fast, with the same bits.
    """
    replicas = [weights.only(into.part) for weights in replicas]
    with torch.no_grad():
        for flat in ("flat", "buffers"):
            vectors = [getattr(weights, flat) for weights in (into, *replicas)]
            length = CACHED_ELEMENTS if vectors[0].device.type == "cpu" else max(1, len(vectors[0]))
            for average, *summands in zip(*(vector.split(length) for vector in vectors), strict=True):
                total = torch.zeros_like(average)
                for summand, share in zip(summands, shares, strict=True):
                    total.add_(summand, alpha=share)
                average.copy_(total)
