"""Replicas: copies of a part at nodes, and states that consist of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfl_sim.models.averages import average
from sfl_sim.models.part import Part
from sfl_sim.models.weights import Weights, momentum_buffers
from sfl_sim.ops import State


def model_bytes(part: Part, has_velocity: bool) -> int:
    """Return the bytes of a model in a message: parameters, buffers, and with a velocity the parameters once more."""
    return part.size_bytes + (part.n_parameters * part.dtype.itemsize if has_velocity else 0)


class Beforehand(NamedTuple):
    """What a model's receiver knows without a message, or gets with it, and no price counts.

    Attributes:
        frozen: parameters that all copies share.
        draws: as `Weights.draws`.
        has_momentum: False if no step has been taken yet, so that the velocity is zero.
    """

    frozen: tuple[Tensor, ...]
    draws: tuple[int, int]
    has_momentum: bool


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

    def envelope(self) -> Replica:
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
        assert self.content is not None, "has no weights: of a timing-only run, or its executor has steps to finish()"
        return self.content

    def at(self, length: int) -> Replica:
        return Replica(self.part.at(length), has_velocity=self.has_velocity)

    def snapshot(self) -> Replica:
        """Copy the replica, with a new optimiser state except for the velocity."""
        copy = self.envelope()
        copy.content = self.content and self.content.copy(self.has_velocity)
        return copy

    def packed(self) -> Any:
        """Return parameters and buffers without gaps, the velocity if it travels, and what is known beforehand."""
        weights, part = self.weights, self.part
        velocity = weights.flat.new_zeros(len(weights.flat)) if weights.momentum is None else weights.momentum
        return (
            part.without_gaps(weights.flat, part.shapes),
            part.without_gaps(weights.buffers, part.buffer_shapes),
            part.without_gaps(velocity, part.shapes) if self.has_velocity else None,
            Beforehand(weights.frozen, weights.draws, weights.momentum is not None),
        )

    def unpacked(self, packed: Any) -> Replica:
        """Make the weights of a copy."""
        parameters, buffers, velocity, known = packed
        flat, part = self.part.with_gaps(parameters, self.part.shapes), self.part
        self.content = Weights(part, flat, part.with_gaps(buffers, part.buffer_shapes), known.frozen)
        self.content.draws = known.draws
        if self.has_velocity and known.has_momentum:
            self.content.momentum = part.with_gaps(velocity, part.shapes)
        return self

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
        return self.members[0]

    def at(self, length: int) -> Joined:
        return Joined(self.part.at(length), [member.at(length) for member in self.members])

    def envelope(self) -> Replica:
        copy = Replica(self.part, has_velocity=self.has_velocity)
        if any(member.copy_bytes is not None for member in self.members):
            copy.size_bytes = sum(member.envelope().size_bytes for member in self.members)
        return copy

    def snapshot(self) -> Replica:
        """Copy all layers to one replica, with a new optimiser state except for the velocity."""
        copy = self.envelope()
        members = [replica.content for replica in self.members if replica.content]
        if not members:
            return copy
        flat, buffers = torch.cat([w.flat for w in members]), torch.cat([w.buffers for w in members])
        weights = Weights(self.part, flat, buffers, tuple(tensor for w in members for tensor in w.frozen))
        if self.has_velocity and (momenta := momentum_buffers(members)):
            weights.momentum = torch.cat(momenta)
        copy.content = weights
        return copy

    def packed(self) -> Any:
        """Return what its copy has."""
        return self.snapshot().packed()


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
        return self.members[0].guard

    def at(self, length: int) -> Bundle:
        return Bundle([member.at(length) for member in self.members])

    def snapshot(self) -> Bundle:
        """Copies of the members, each one replica."""
        return Bundle([member.snapshot() for member in self.members])

    def packed(self) -> Any:
        return [member.packed() for member in self.members]

    def envelope(self) -> Bundle:
        return Bundle([member.envelope() for member in self.members])

    def unpacked(self, packed: Any) -> State:
        for member, content in zip(self.members, packed, strict=True):
            member.unpacked(content)
        return self

    @property
    def replicas(self) -> list[Replica]:
        """All replicas that the members are made of, in order."""
        return [replica for member in self.members for replica in member.members]


def through(parts: Sequence[Replica | Joined], x: Tensor, training: bool) -> Tensor:
    """Run x (n, ...) through one part after another, in training or in eval mode."""
    for part in parts:
        for replica in part.members:
            x = replica.weights(x, training)
    return x
