"""Mini-batches of each client's samples, drawn from (seed, client, round) and nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfl_sim.data.dataset import PADDING, UNCOUNTED
from sfl_sim.data.loading import Dataset
from sfl_sim.data.transforms import normalise, random_crop_flip, to_device
from sfl_sim.errors import ScenarioError
from sfl_sim.goals import NO_LABEL, NO_TOKEN, Goal
from sfl_sim.ops import Value
from sfl_sim.rng import stream

CROP_PADDING = 4
Rest = Literal["keep", "drop", "carry"]
CountPerClient = int | Sequence[int]
"""A number for all clients, or one for each."""


def check_augmentable(dataset: Dataset) -> None:
    """Raise ScenarioError for samples that are no images, which cannot be cropped and flipped."""
    if dataset.mean is None:
        problem = "text and floating samples have no crops and flips"
        raise ScenarioError(problem, key="data.augment", found=True, allowed="false")
    if dataset.goal is Goal.PIXELS:
        problem = "would crop and flip images and not their masks"
        raise ScenarioError(problem, key="data.augment", found=True, allowed="false")


class Images:
    """Training samples on the device that trains: uint8 images, whole numbers as tokens, or floating ones.

    With `augment` the samples must have passed `check_augmentable`. `y` are the targets, and `labels` the labels;
    tokens and pixels of the label `ignored` are not to be predicted.
    """

    def __init__(
        self,
        dataset: Dataset,
        device: torch.device,
        dtype: torch.dtype,
        channels_last: bool,
        augment: bool,
        ignored: int | None = None,
    ) -> None:
        self.x = dataset.x_train.to(device)
        self.y = (dataset.y_train if dataset.targets_train is None else dataset.targets_train).to(device)
        self.labels = dataset.y_train.numpy()
        self.mean = None if dataset.mean is None else dataset.mean.to(device)
        self.std = None if dataset.std is None else dataset.std.to(device)
        self.goal = dataset.goal
        self.is_marked = dataset.is_marked
        self.ignored = ignored
        self.dtype = dtype
        self.channels_last = channels_last
        self.augment = augment

    def prepare(self, x: Tensor) -> Tensor:
        """Normalise uint8 images (n, C, H, W) to floating ones, or convert tokens (n, T) to int64, those to read.

        Floating samples of a user's own change their type and memory format alone.
        """
        if x.is_floating_point():
            channels_last = self.channels_last and x.ndim == 4
            return x.to(self.dtype, memory_format=torch.channels_last if channels_last else torch.preserve_format)
        if self.mean is None or self.std is None:
            x = (x[:, :-1] if self.goal is Goal.TOKENS else x).long()
            return torch.where(x < PADDING, UNCOUNTED - x, x).clamp_min(0) if self.is_marked else x
        return normalise(x, self.mean, self.std, self.dtype, self.channels_last)

    def targets(self, x: Tensor, y: Tensor) -> Tensor:
        """Return what is to be predicted of samples x with targets y (n, ...): these, or the next tokens (n, T)."""
        targets = x[:, 1:].long() if self.goal is Goal.TOKENS else y
        if self.is_marked:
            targets = targets.masked_fill(targets < 0, NO_TOKEN)
        if self.ignored is None:
            return targets
        return targets.masked_fill(targets == self.ignored, NO_LABEL if self.goal is Goal.PIXELS else NO_TOKEN)


class Epoch:
    """A client's samples in the order of one epoch: gathered once, then cut into slices without indexing."""

    __slots__ = ("__weakref__", "images", "order", "rng", "x", "y")

    def __init__(self, images: Images | None, order: NDArray[np.int64], rng: np.random.Generator) -> None:
        self.images = images
        self.order = order
        self.rng = rng
        self.x: Tensor | None = None
        self.y: Tensor | None = None

    def slice(self, start: int, stop: int, length: int = 0) -> tuple[Tensor, Tensor]:
        """Give some of the samples in this order, and their targets; of sequences so many positions, 0: all."""
        assert self.images, "a timing-only batch has no samples"
        if self.x is None:
            index = to_device(torch.from_numpy(self.order), self.images.x.device)
            # index_select copies whole samples; uint8 images took 18 times as long by x[index].
            self.x, self.y = (each.index_select(0, index) for each in (self.images.x, self.images.y))
            if self.images.augment:
                self.x = random_crop_flip(self.x, CROP_PADDING, self.rng)
        assert self.y is not None
        x = self.x[start:stop, : length + 1] if length else self.x[start:stop]
        return self.images.prepare(x), self.images.targets(x, self.y[start:stop])


_Piece = tuple[Epoch, int, int]
"""Samples of an epoch, from the first number to the second in its order."""


class Batch(Value):
    """Mini-batch of a client, whose size is known at once and whose samples are gathered when a step loads them.

    Its content is `drawn`, the name of the random draw: with `step` it says which samples these are, also in
    timing-only runs.
    """

    __slots__ = ("_pieces",)

    def __init__(
        self, client: int, samples: int, step: int, pieces: Sequence[_Piece], drawn: tuple[object, ...], length: int = 0
    ) -> None:
        super().__init__("batch", samples=samples, step=step, content=drawn)
        self.maker, self.length = client, length
        self._pieces = pieces

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Indices (n,) of the samples into the training set."""
        return numbers(self._pieces)

    def load(self) -> tuple[Tensor, Tensor]:
        """Gather the samples: images (n, C, H, W) or tokens (n, T), and their targets (n, ...)."""
        assert self._pieces, "a timing-only batch has no samples"
        x, y = zip(*(epoch.slice(start, stop, self.length) for epoch, start, stop in self._pieces), strict=True)
        return (x[0], y[0]) if len(x) == 1 else (torch.cat(x), torch.cat(y))


def numbers(pieces: Sequence[_Piece]) -> NDArray[np.int64]:
    """Return the indices (n,) into the training set of the samples of some pieces."""
    return np.concatenate([epoch.order[start:stop] for epoch, start, stop in pieces])


@dataclass(frozen=True)
class ClientData:
    """Training data of all clients, and their mini-batches.

    Args:
        shares: each client's sample indices into the training set.
        batch_size: samples of a mini-batch, of all clients or of each.
        local_epochs: passes over its samples that a client makes in a round, likewise.
        rest: treatment of the samples of an epoch that do not fill a mini-batch: a mini-batch of their own (`keep`),
            none (`drop`), or they come first in the next epoch (`carry`): a client with n samples then has
            T = max(1, floor(local_epochs n / batch_size)) full mini-batches of the concatenated epochs
            (docs/methods/README.md#data-order).
        seed: seed of the run.
        images: source of the samples; None in timing-only runs.
        lengths: positions (N,) that a network reads of each training sample, if mini-batches are padded to their
            longest one: samples are then drawn in timing-only runs, too.

    Raises ScenarioError if the rest is dropped, and a client has fewer samples than one mini-batch.
    """

    shares: Sequence[NDArray[np.int64]]
    batch_size: CountPerClient
    local_epochs: CountPerClient = 1
    rest: Rest = "keep"
    seed: int = 0
    images: Images | None = None
    lengths: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for client, share in enumerate(self.shares if self.rest == "drop" else ()):
            if not self.n_batches(client):
                raise ScenarioError(
                    f"client {client} has {len(share)} samples, fewer than one whole batch (train.drop_last)",
                    key="train.batch_size",
                    found=self.size(client),
                    allowed=f"1 to {len(share)}",
                )

    def check_no_single(self) -> None:
        """Raise ScenarioError if a mini-batch holds a single sample, which batch norm cannot normalise."""
        for client in range(len(self)):
            samples, size = self.samples(client), self._size(client)
            if size == 1 or (self.rest == "keep" and samples % size == 1):
                raise ScenarioError(
                    f"client {client} has {self.samples(client)} samples, so one of its batches holds a single sample, "
                    "which batch norm cannot train on; set train.drop_last, train.batches full or another size",
                    key="train.batch_size",
                    found=size,
                )

    def __len__(self) -> int:
        return len(self.shares)

    def size(self, client: int) -> int:
        """Return the samples of one of the client's full mini-batches."""
        return self.batch_size if isinstance(self.batch_size, int) else self.batch_size[client]

    def falls_short(self, client: int) -> bool:
        """Return True if the client's samples of an epoch, or with `carry` of a round, do not fill one mini-batch."""
        return self.size(client) > self.samples(client) * (self.passes(client) if self.rest == "carry" else 1)

    def passes(self, client: int) -> int:
        """Return the passes over its samples that the client makes in a round, E_c."""
        return self.local_epochs if isinstance(self.local_epochs, int) else self.local_epochs[client]

    def common(self, key: str, method: str) -> int:
        """Return `batch_size` or `local_epochs` of all clients. Raises ScenarioError if clients differ."""
        value: CountPerClient = getattr(self, key)
        if not isinstance(value, int):
            raise ScenarioError(f"must be the same for all clients with {method}", key=f"train.{key}")
        return value

    def check_one_length(self, method: str, why: str) -> None:
        """Raise ScenarioError if mini-batches are of sequences of unequal lengths, which `method` cannot have."""
        if self.lengths is not None:
            raise ScenarioError(f"needs sequences of one length: {why}", key="method.name", found=method)

    def samples(self, client: int) -> int:
        """Count the training samples that the client holds."""
        return len(self.shares[client])

    def seen(self, client: int) -> int:
        """Count the training samples in the client's mini-batches of a round, repeated ones included."""
        if self.rest == "keep":
            return self.passes(client) * self.samples(client)
        return self.n_batches(client) * self._size(client)

    def n_batches(self, client: int, batch_size: int | None = None) -> int:
        """Count the client's mini-batches of a round, B_c (docs/methods/README.md#symbols)."""
        samples, size, passes = self.samples(client), batch_size or self.size(client), self.passes(client)
        if self.rest == "carry":
            return max(1, passes * samples // size)
        return passes * (samples // size if self.rest == "drop" else -(-samples // size))

    def mean_batches(self, clients: Sequence[int]) -> int:
        """Average the number of mini-batches of a round over `clients`, rounded to the nearest integer."""
        return int(sum(map(self.n_batches, clients)) / len(clients) + 0.5)

    def epochs(self, client: int, round: int) -> Iterator[list[Batch]]:
        """Yield a list of the mini-batches of each local epoch of the round; every epoch has its own random streams."""
        batches, n, passes = self.batches(client, round), self.n_batches(client), self.passes(client)
        ends = [epoch * n // passes for epoch in range(passes + 1)]
        yield from (list(islice(batches, end - start)) for start, end in pairwise(ends))

    def _endless(
        self, client: int, round: int, batch_size: int | None = None, draws: tuple[str, str] = ("batches", "augment")
    ) -> Iterator[Batch]:
        """Yield the mini-batches of one epoch after another; `draws` names the streams of order and augmentation."""
        samples, drawn = self.samples(client), (*draws, round, batch_size)
        epochs: dict[int, Epoch] = {}
        for step, (start, stop) in enumerate(self._bounds(client, batch_size)):
            pieces = []
            if self.images or self.lengths is not None:
                passes = range(start // samples, -(-stop // samples))
                epochs = {n: epochs[n] if n in epochs else self._epoch(client, round, n, draws) for n in passes}
                begins = [n * samples for n in passes]
                pieces = [(epochs[b // samples], max(start - b, 0), min(stop - b, samples)) for b in begins]
            length = 0 if self.lengths is None else int(self.lengths[numbers(pieces)].max())
            yield Batch(client, samples=stop - start, step=step, pieces=pieces, drawn=drawn, length=length)

    def _size(self, client: int, batch_size: int | None = None) -> int:
        """Samples of a full mini-batch; with `carry`, no more than the client has in a round."""
        size = batch_size or self.size(client)
        return min(size, self.passes(client) * self.samples(client)) if self.rest == "carry" else size

    def _bounds(self, client: int, batch_size: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the first and the end of each mini-batch among a client's samples, epoch after epoch without end."""
        samples, size = self.samples(client), self._size(client, batch_size)
        if self.rest == "carry":
            yield from ((start, start + size) for start in count(step=size))
        for epoch in count():
            for start in range(0, samples, size):
                stop = min(start + size, samples)
                if stop - start == size or self.rest == "keep":
                    yield epoch * samples + start, epoch * samples + stop

    def _epoch(self, client: int, round: int, number: int, draws: tuple[str, str]) -> Epoch:
        ordering, augmenting = (stream(self.seed, draw, client, round, number) for draw in draws)
        return Epoch(self.images, ordering.permutation(self.shares[client]), augmenting)

    def batches(self, client: int, round: int, batch_size: int | None = None) -> Iterator[Batch]:
        """Yield the round's mini-batches one after another.

        With another `batch_size` than the run's, the same samples in the same order are cut into other mini-batches.
        """
        return self.steps(client, round, self.n_batches(client, batch_size), batch_size)

    def others(self, client: int, round: int) -> Iterator[Batch]:
        """Yield as many mini-batches of the same sizes and samples as `batches` does, in an independent order."""
        draws = ("other batches", "other batches, augmented")
        return islice(self._endless(client, round, draws=draws), self.n_batches(client))

    def some(self, client: int, counts: NDArray[np.int64], draw: str, *ids: int) -> Batch:
        """Draw one batch with `counts[l]` of the client's samples of each label l, in random order.

        `draw` and `ids` name the random stream.
        """
        pieces, n = [], int(counts.sum())
        if self.images:
            order = stream(self.seed, draw, *ids).permutation(self.shares[client])
            order = order[_first_of_each(self.images.labels[order], counts)]
            pieces = [(Epoch(self.images, order, stream(self.seed, f"{draw}, augmented", *ids)), 0, n)]
        return Batch(client, samples=n, step=-1, pieces=pieces, drawn=(draw, *ids, *counts.tolist()))

    def steps(self, client: int, round: int, n: int, batch_size: int | None = None) -> Iterator[Batch]:
        """Yield exactly `n` mini-batches, over as many epochs as that takes; the first ones are those of `batches`."""
        return islice(self._endless(client, round, batch_size), n)


def _first_of_each(labels: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark each of `labels` (n,) that is among the first `counts[l]` of its label l."""
    grouped = np.argsort(labels, kind="stable")
    begins = np.searchsorted(labels[grouped], np.arange(len(counts)))
    rank = np.empty(len(labels), dtype=np.int64)
    rank[grouped] = np.arange(len(labels)) - begins[labels[grouped]]
    chosen: NDArray[np.bool_] = rank < counts[labels]
    return chosen
