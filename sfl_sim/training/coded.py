"""Values that travel coded: their size is that of the code, and what a step loads is what its receiver decodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from sfl_sim.data.batches import Batch
from sfl_sim.models.part import Part
from sfl_sim.models.replica import Bundle, Replica, model_bytes
from sfl_sim.ops import State, Step, Value, Work
from sfl_sim.rng import stream
from sfl_sim.training.codecs import Code, Codec, Delta, Shape

Draw = tuple[int, str, *tuple[int, ...]]
"""What a message draws from: the seed of the run, a name, and the round, the client, ..."""


class Coded(Value):
    """A message whose tensors are coded, each by itself.

    Nothing is computed before a step loads it; then the codes are kept, for the gradient that comes back. Where nodes
    are processes, its receiver has one that is made of nothing: its codes and its content are what has come.

    Args:
        payload: its content is a tensor, or a tuple that begins with the tensors that are coded.
        codec: of the tensors.
        shapes: of the tensors (n, ...).
        dtype: of the tensors.
        draw: names the random draws.
    """

    __slots__ = ("_codes", "codec", "draw", "dtype", "made_of", "shapes")

    def __init__(self, payload: Value, codec: Codec, shapes: Sequence[Shape], dtype: torch.dtype, draw: Draw) -> None:
        size_bytes = payload.size_bytes - dtype.itemsize * sum(map(math.prod, shapes))
        size_bytes += sum(codec.size_bytes(shape, dtype) for shape in shapes)
        super().__init__(payload.kind, size_bytes, samples=payload.samples, step=payload.step, content=payload.content)
        self.maker, self.length = payload.maker, payload.length
        self.made_of = [payload]
        self.codec = codec
        self.shapes = shapes
        self.dtype = dtype
        self.draw = draw
        self._codes: dict[int, Code] = {}

    def __repr__(self) -> str:
        return f"{super().__repr__()} by {self.codec!r}, {self.draw}"

    def _tensors(self) -> tuple[Sequence[Tensor], tuple[Any, ...] | None]:
        """Return the tensors that are coded, and the rest of the content; None if there is nothing but a tensor."""
        content, n = self.made_of[0].load(), len(self.shapes)
        return ([content], None) if isinstance(content, Tensor) else (content[:n], content[n:])

    def code(self, number: int) -> Code:
        """Return the code of a tensor, by its number: the same one every time."""
        if number not in self._codes:
            self._codes[number] = self.codec.encode(self._tensors()[0][number], stream(*self.draw, number))
        return self._codes[number]

    def load(self) -> Any:
        """Return the payload with decoded tensors, laid out in memory as they were."""
        if not self.made_of:
            return self.content
        tensors, rest = self._tensors()
        decoded = [
            laid_out(self.codec.decode(self.code(number), shape, self.dtype), tensors[number])
            for number, shape in enumerate(self.shapes)
        ]
        return decoded[0] if rest is None else (*decoded, *rest)

    def packed(self) -> Any:
        """Return the bytes of the codes, the layout of each tensor in memory, and what is not coded."""
        tensors, rest = self._tensors()
        codes = [self.codec.pack(self.code(number), shape, self.dtype) for number, shape in enumerate(self.shapes)]
        return codes, [tensor.stride() for tensor in tensors], rest

    def envelope(self) -> Coded:
        received = _received(self)
        received._codes = {}
        return received

    def unpacked(self, packed: Any) -> Coded:
        """Decode, and lay the tensors out in memory as they were."""
        codes, strides, rest = packed
        decoded = []
        for number, (code, shape, stride) in enumerate(zip(codes, self.shapes, strides, strict=True)):
            self._codes[number] = self.codec.unpack(code, shape, self.dtype)
            decoded.append(in_memory(self.codec.decode(self._codes[number], shape, self.dtype), stride))
        self.content = decoded[0] if rest is None else (*decoded, *rest)
        return self


class CodedGradient(Value):
    """The gradient at a message, on its way back: only of what the message's codec has sent, and coded itself.

    Where nodes are processes, its receiver is the sender of the message, who knows the codes of that.

    Args:
        payload: the whole gradient at what the receiver has decoded.
        message: whose first tensor it is the gradient of, if that was coded; else None.
        shape, dtype: of the gradient.
        codec: of what comes back; None: it comes as it is.
        draw: names the random draws.
    """

    __slots__ = ("codec", "draw", "dtype", "made_of", "message", "shape")

    def __init__(
        self,
        payload: Value,
        message: Coded | None,
        shape: Shape,
        dtype: torch.dtype,
        codec: Codec | None,
        draw: Draw,
    ) -> None:
        back = message.codec.gradient_shape(shape, dtype) if message else shape
        size_bytes = codec.size_bytes(back, dtype) if codec else dtype.itemsize * math.prod(back)
        super().__init__(payload.kind, size_bytes, samples=payload.samples, step=payload.step, content=payload.content)
        self.maker, self.length = payload.maker, payload.length
        self.made_of = [payload, message] if message else [payload]
        self.message = message
        self.shape = shape
        self.dtype = dtype
        self.codec = codec
        self.draw = draw

    def __repr__(self) -> str:
        return f"{super().__repr__()} by {self.codec!r}, {self.draw}"

    def load(self) -> Tensor:
        """Return the gradient at what was coded, as it was before that (n, ...)."""
        if not self.made_of:
            received: Tensor = self.content
            return received
        whole: Tensor = self.made_of[0].load()
        back = self._back(whole)
        if self.codec:
            back = self.codec.decode(self.codec.encode(back, stream(*self.draw)), tuple(back.shape), self.dtype)
        return laid_out(self._pulled(back), whole)

    def _back(self, whole: Tensor) -> Tensor:
        """Return what has to come back of the gradient."""
        through = self.message
        return through.codec.select(whole, through.code(0)) if through else whole

    def _pulled(self, back: Tensor) -> Tensor:
        """Return the gradient at what was coded, of what came back."""
        through = self.message
        return through.codec.pull(back, through.code(0), self.shape) if through else back

    def packed(self) -> Any:
        """Return what comes back, or the bytes of its code; its shape, and the layout of the gradient in memory."""
        whole: Tensor = self.made_of[0].load()
        back, stride = self._back(whole), whole.stride()
        shape = tuple(back.shape)
        if self.codec:
            return self.codec.pack(self.codec.encode(back, stream(*self.draw)), shape, self.dtype), shape, stride
        return back, shape, stride

    def envelope(self) -> CodedGradient:
        return _received(self)

    def unpacked(self, packed: Any) -> CodedGradient:
        """Decode, and put each element where it belongs."""
        back, shape, stride = packed
        if self.codec:
            back = self.codec.decode(self.codec.unpack(back, shape, self.dtype), shape, self.dtype)
        self.content = in_memory(self._pulled(back), stride)
        return self


T = TypeVar("T", Coded, CodedGradient)


def _received(message: T) -> T:
    """Return a message as its receiver has it before it comes."""
    received = copy(message)
    received.made_of, received.content = [], None
    return received


def laid_out(x: Tensor, like: Tensor) -> Tensor:
    """Give x in the memory layout of another tensor of its shape: the last bit of what follows may depend on it."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)


def in_memory(x: Tensor, stride: Sequence[int]) -> Tensor:
    """Give x in memory of the given layout."""
    return x if x.stride() == stride else torch.empty_strided(x.shape, stride, dtype=x.dtype).copy_(x)


class CodedUpdate(Bundle):
    """A trained model on its way up, of which the difference to what its client has downloaded travels, coded.

    Its copy is the model that arrives. Floating buffers, and a velocity, travel as they are.

    Args:
        model: the client's copy, trained.
        base: the same as it was downloaded.
        sent: the same as its sender has kept it.
        codec: of the difference.
        draw: names the random draws.
        error: what the client's earlier updates have lost and this one makes good; None: nothing is made good.
    """

    __slots__ = ("codec", "draw", "error", "sent")

    def __init__(
        self,
        model: Replica | Bundle,
        base: Replica | Bundle,
        sent: Replica | Bundle,
        codec: Codec,
        draw: Draw,
        error: State | None,
    ) -> None:
        super().__init__([model, base, *([error] if error else [])])  # type: ignore[list-item]
        self.sent = sent
        self.codec = codec
        self.draw = draw
        self.error = error
        self.size_bytes = 0
        for replica in _replicas(model):
            part = replica.part
            sizes = [codec.size_bytes((1, numel), part.dtype) for numel in numels(codec, part)]
            self.size_bytes += model_bytes(part, replica.has_velocity)  # joined adapters of all came down
            self.size_bytes += sum(sizes) - part.n_parameters * part.dtype.itemsize

    def __repr__(self) -> str:
        return f"{super().__repr__()} by {self.codec!r}, {self.draw}"

    def snapshot(self) -> Any:
        """Make the model that arrives: what was downloaded, and the decoded difference."""
        model, base = self.members[:2]
        arrived = model.snapshot()
        arrived.size_bytes = self.size_bytes
        learn(_replicas(arrived), _replicas(base), (decoded for _, _, decoded in self.differences()), self.codec)
        return arrived

    def packed(self) -> Any:
        """Give the bytes of the differences' codes, and the model's buffers and velocity."""
        codes = [self.codec.pack(code, tuple(d.shape), d.dtype) for d, code, _ in self.differences()]
        models = [replica.packed()[1:] for replica in _replicas(self.members[0])]
        return codes, models

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Leave out what the sender of an update does not have."""
        state: tuple[None, dict[str, Any]] = super().__getstate__()  # type: ignore[assignment]
        return None, {name: value for name, value in state[1].items() if name != "sent"}

    def envelope(self) -> CodedUpdate:
        """Return what its receiver begins with: what it has sent."""
        received = copy(self)
        received.members, received.error = [self.sent], None  # type: ignore[list-item]
        return received

    def unpacked(self, packed: Any) -> State:
        """Turn what was sent into the model that arrives, in place, and return that."""
        codes, models = packed
        (model,) = self.members
        replicas = _replicas(model)
        shapes = [((1, n), replica.part.dtype) for replica in replicas for n in numels(self.codec, replica.part)]
        messages = zip(codes, shapes, strict=True)
        decoded = (self.codec.decode(self.codec.unpack(code, *shape), *shape) for code, shape in messages)
        learn(replicas, replicas, decoded, self.codec)
        for replica, (buffers, velocity, known) in zip(replicas, models, strict=True):
            parameters = replica.part.without_gaps(replica.weights.flat, replica.part.shapes)
            replica.unpacked((parameters, buffers, velocity, known))
        return model

    def differences(self) -> Iterator[tuple[Tensor, Code, Tensor]]:
        """Give the difference in each message (1, m), earlier errors included, its code, and what arrives of it."""
        errors = iter(self.error.content or ()) if self.error else iter(())
        number = 0
        for trained, begun in zip(*map(_replicas, self.members[:2]), strict=True):
            if trained.content is None or not trained.part.shapes:
                continue
            vectors = [_flat(replica) for replica in (trained, begun)]
            whole = vectors[0] - vectors[1]
            for difference in torch.split(whole, numels(self.codec, trained.part)):
                difference = difference[None] + next(errors, 0)
                code = self.codec.encode(difference, stream(*self.draw, number))
                yield difference, code, self.codec.decode(code, tuple(difference.shape), difference.dtype)
                number += 1


def learn(replicas: Sequence[Replica], bases: Sequence[Replica], decoded: Iterator[Tensor], codec: Codec) -> None:
    """Set `replicas` to their `bases` and the differences that have arrived, each (1, m)."""
    for replica, begun in zip(replicas, bases, strict=True):
        if replica.content is None or not replica.part.shapes:
            continue
        pieces = [next(decoded).flatten() for _ in numels(codec, replica.part)]
        views = replica.part.views(replica.weights.flat)
        learned = torch.split(torch.cat(pieces), [view.numel() for view in views])
        for view, old, new in zip(views, replica.part.views(begun.weights.flat), learned, strict=True):
            torch.add(old, new.view(old.shape), out=view)


def numels(codec: Codec, part: Part) -> list[int]:
    """Count the elements of each message of an update: of each layer's tensor, or of all parameters."""
    of_tensors = [math.prod(shape) for shape in part.shapes]
    return of_tensors if codec.layerwise or not of_tensors else [part.n_parameters]


def _replicas(model: Any) -> list[Replica]:
    return model.replicas if isinstance(model, Bundle) else list(model.members)


def _flat(replica: Replica) -> Tensor:
    """Return all parameters (P,), without the gaps between them."""
    views = replica.part.views(replica.weights.flat)
    return torch.cat([view.reshape(-1) for view in views])


class KeepError(Step):
    """Remember what an update that has arrived has lost."""

    name = "error"

    def run(self, error: State, update: CodedUpdate) -> None:
        """Set the content to the lost part (1, m) of each message."""
        error.content = [difference - arrived for difference, _, arrived in update.differences()]


class ComparedSamples(Value):
    """What a comparison tells: the samples as the server will see them (n, ...), and which of them are sent (n,).

    `read` of it gives the number of samples that are sent.
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
        is_known = torch.tensor([old is not None for old in last], device=x.device)
        seen = torch.stack([new if old is None else old for new, old in zip(x, last, strict=True)])
        alike = cosine_similarity(x.flatten(1).float(), seen.flatten(1).float())
        sent = ~is_known | ~(alike >= self.delta.theta)  # NaN is not alike
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
        memory.content = (memory.content or {}) | {number: row.clone() for number, row, is_sent in rows if is_sent}
