"""Leakage: attacks on what crosses the cut, with the models of a round; nothing changes (docs/methods/leakage.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from sfl_sim.engine.setup import Setup
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import Method
from sfl_sim.metrics.leakage import labels_by_clusters, labels_by_nearest, labels_by_norm, psnr, ssim
from sfl_sim.rng import stream
from sfl_sim.scenario.optional_sections import Leakage
from sfl_sim.scenario.sections import Scenario
from sfl_sim.store.schema import tables
from sfl_sim.training.dependence import distance_correlation, unbiased_distance_correlation
from sfl_sim.training.deployed import through
from sfl_sim.training.inversion import invert

Ints = NDArray[np.int64]
Samples = Mapping[int, Ints]
"""Indices into the training set, by the client that holds them."""
ALL = -1
"""In place of a client: all of them."""
N_SHOWN = 8
LEAST_SIDE = 3
"""Number of pixels of a side from which on an image has a structure."""


def check_leakage(scenario: Scenario, method: Method) -> None:
    """Check that the attacks which the scenario asks for are possible; otherwise raises ScenarioError."""
    wanted, last = scenario.report.leakage, scenario.train.rounds
    if wanted is None or not method.is_split:
        return
    if len(method.data) < 2:
        raise ScenarioError("needs a client that is attacked and one whose samples are known", key="clients.count",
                            found=len(method.data), allowed="2 and more")  # fmt: skip
    if wanted.rounds and max(wanted.rounds) > last:
        raise ScenarioError(
            "no such round", key="report.leakage.rounds", found=max(wanted.rounds), allowed=f"1 to {last}"
        )
    method.sides(0)


def chosen_samples(shares: Sequence[Ints], wanted: Leakage, seed: int) -> tuple[Samples, Samples]:
    """Choose the samples that the attacker knows, of whole clients as far as they go, and those that are attacked."""
    mixed = [stream(seed, "attacked", c).permutation(share) for c, share in enumerate(shares)]
    left = max(1, round(wanted.aux_share * sum(map(len, shares))))
    known: dict[int, Ints] = {}
    for c in stream(seed, "auxiliary").permutation(len(shares)).tolist()[:-1]:
        if left <= 0:
            break
        known[c] = mixed[c][:left]
        left -= len(known[c])
    others = [c for c in range(len(shares)) if c not in known][: wanted.samples]
    return known, {c: mixed[c][: wanted.samples // len(others)] for c in others}


@dataclass(frozen=True)
class Crossed:
    """What has crossed the cut of some samples, in their order.

    Attributes:
        index: (n,) into the training set.
        client: (n,) that holds each sample.
        message: (n,) number of the mini-batch that each sample was in.
        smashed: what the server has got (n, ...), after defences and codec.
        gradients: what came back of it (n, ...), as of the server's share of the mean loss of a whole mini-batch.
    """

    index: Ints
    client: Ints
    message: Ints
    smashed: Tensor
    gradients: Tensor


class Meter:
    """Attacks the models of a method that trains, at every cut that its clients have.

    Attributes:
        tell: is called with what a decoder learns, the passes that it has done, and those that it does in all.
    """

    def __init__(self, setup: Setup, method: Method) -> None:
        scenario = setup.scenario
        assert scenario.report.leakage
        self.wanted = scenario.report.leakage
        self.method = method
        self.seed = scenario.seed
        self.n_labels = setup.dataset.n_labels
        self.batch_size = scenario.train.batch_size
        self.cuts = self.method.task.cuts
        self.tokens = self.method.task.network.tokens
        assert self.method.data.images
        self.images = self.method.data.images
        self.tell: Callable[[str, int, int], None] = lambda what, done, total: None
        self.known, self.attacked = chosen_samples(setup.shares, self.wanted, self.seed)

    def measure(self, round: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Give the round's rows of leakage.parquet and of reconstructions.parquet."""
        figures: list[dict[str, Any]] = []
        pictures: list[dict[str, Any]] = []
        for cut in [0, *sorted({self.cuts[c] for c in self.attacked})]:
            attacks = self._at_cut(cut, round) if cut else self._without_cut()
            for attack, found in attacks:
                if isinstance(found, Reconstruction):
                    pictures += [{"cut": cut, "attack": attack, **row} for row in found.pictures()]
                    figures += [{"cut": cut, "attack": attack, **row} for row in found.rows()]
                else:
                    figures += [
                        {"cut": cut, "attack": attack, "client": ALL, "metric": metric, "value": value}
                        for metric, value in found.items()
                    ]
        about = {"round": round, "labels_sent": self.method.sends_labels}
        leakage = pd.DataFrame(figures, columns=tables("run")["leakage"].of_trial)
        return leakage.assign(**about), pd.DataFrame(pictures).assign(round=round)

    def _without_cut(self) -> Iterator[tuple[str, Reconstruction]]:
        """Draw what is known without attack: the mean, and what the decoder makes of the samples themselves."""
        if "inversion" not in self.wanted.attacks:
            return
        x, known = self._truth(_together(self.attacked)), self._truth(_together(self.known))
        usual = known.mode(0).values if self.tokens else known.mean(0)
        yield "mean", self._drawn(usual.expand_as(x))
        yield "inversion", self._drawn(self._invert(self._plain(known), known, self._plain(x), cut=0))

    def _at_cut(self, cut: int, round: int) -> Iterator[tuple[str, Reconstruction | Mapping[str, float]]]:
        """Mount all attacks on what crosses this cut, as far as it is finite."""
        attacked = self._crossed({c: own for c, own in self.attacked.items() if self.cuts[c] == cut}, cut, round)
        if not bool(attacked.smashed.isfinite().all()):
            return
        if "inversion" in self.wanted.attacks:
            known = self._crossed(self.known, cut, round)
            drawn = self._invert(known.smashed, self._truth(known.index), attacked.smashed, cut)
            yield "inversion", self._drawn(drawn, attacked)
        if "dependence" in self.wanted.attacks:
            x, z = self._plain(self._truth(attacked.index)), attacked.smashed
            biased, unbiased = float(distance_correlation(x, z)), unbiased_distance_correlation(x, z)
            yield "dependence", {"dcor": biased, "dcor2_unbiased": unbiased}
        come_down = self.method.gets_gradients and cut > self.method.task.network.lowest
        if "labels" in self.wanted.attacks and come_down and bool(attacked.gradients.isfinite().all()):
            labels, gradients = self.images.labels[attacked.index], attacked.gradients.flatten(1).cpu().numpy()
            norms = np.linalg.norm(gradients.astype(np.float64), axis=1)
            yield "norm", {"auc": labels_by_norm(norms, labels, attacked.message)}
            seed = int(stream(self.seed, "k-means").integers(2**31))
            yield "clusters", {"accuracy": labels_by_clusters(gradients, labels, self.n_labels, seed)}
            yield "nearest", {"accuracy": labels_by_nearest(gradients, labels)}
            yield "commonest label", {"accuracy": float(np.bincount(labels).max() / len(labels))}

    def _crossed(self, samples: Samples, cut: int, round: int) -> Crossed:
        """Send samples across a cut, in mini-batches: those of clients with another cut by a part-1 that ends there."""
        at_cut = next(c for c in self.attacked if self.cuts[c] == cut)
        found = []
        for c, own in samples.items():
            front, back = self.method.sides(c if self.cuts[c] == cut else at_cut)
            for start in range(0, len(own), self.batch_size):
                index = own[start : start + self.batch_size]
                places = torch.from_numpy(index).to(self.images.x.device)
                with torch.no_grad():
                    z = through(front, self.images.prepare(self.images.x[places]))
                ids = (round, cut, c, start)
                found.append((index, np.full(len(index), c), *self._exchanged(z, self.images.y[places], back, ids)))
        index, client, smashed, gradients = zip(*found, strict=True)
        message = np.repeat(np.arange(len(found)), list(map(len, index)))
        return Crossed(np.concatenate(index), np.concatenate(client), message, torch.cat(smashed), torch.cat(gradients))

    def _exchanged(self, z: Tensor, y: Tensor, back: Sequence[Any], ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Give what arrives at the server of one mini-batch, and what comes back, as one who listens sees them."""
        up, down, shape = self.method.wire.up, self.method.wire.down, tuple(z.shape)
        code = up.encode(z, stream(self.seed, "leakage up", *ids)) if up else ()
        seen = (up.decode(code, shape, z.dtype) if up else z).detach().requires_grad_()
        summed = back[-1].part.loss(through(back, seen), y, reduction="sum")
        loss = self.method.server_share * summed / self.batch_size
        (gradient,) = torch.autograd.grad(loss, seen)
        if up:
            gradient = up.select(gradient, code)
        if down:
            returned = down.encode(gradient, stream(self.seed, "leakage down", *ids))
            gradient = down.decode(returned, tuple(gradient.shape), z.dtype)
        return seen.detach().float(), (up.pull(gradient, up.heard(code), shape) if up else gradient).float()

    def _invert(self, z: Tensor, x: Tensor, unknown: Tensor, cut: int) -> Tensor:
        n_tokens, epochs = self._n_tokens if self.tokens else 0, self.wanted.epochs
        return invert(
            z, x, unknown, epochs, self.seed, n_tokens, lambda done: self.tell(f"decoder at cut {cut}", done, epochs)
        )

    def _drawn(self, drawn: Tensor, crossed: Crossed | None = None) -> Reconstruction:
        index = crossed.index if crossed else _together(self.attacked)
        client = np.repeat(list(self.attacked), [len(own) for own in self.attacked.values()])
        x, y = self._truth(index), self.images.labels[index]
        return Reconstruction(
            x.cpu().numpy(), drawn.cpu().numpy(), index, crossed.client if crossed else client, y, self.tokens
        )

    def _truth(self, index: Ints) -> Tensor:
        """Give samples in [0, 1] (n, ...), those of a user's own by the range of the known ones; or tokens (n, T)."""
        x = self.images.x[torch.from_numpy(index).to(self.images.x.device)]
        if self.tokens:
            return x.long()
        if not x.is_floating_point():
            return x.float() / 255
        known = self.images.x[torch.from_numpy(_together(self.known)).to(x.device)]
        lo, hi = torch.aminmax(known)
        return ((x - lo) / (hi - lo)).clamp(0, 1).float()

    def _plain(self, x: Tensor) -> Tensor:
        """Give samples as numbers that have distances: tokens as unit vectors (n, T, V)."""
        return one_hot(x, self._n_tokens).float() if self.tokens else x

    @property
    def _n_tokens(self) -> int:
        return int(self.images.x.max()) + 1


@dataclass(frozen=True)
class Reconstruction:
    """Samples and what an attack has drawn of them.

    Attributes:
        x, drawn: (n, ...), numbers in [0, 1] or tokens.
        index, client, label: (n,) of the samples.
        tokens: whether they are tokens.
    """

    x: NDArray[Any]
    drawn: NDArray[Any]
    index: Ints
    client: Ints
    label: Ints
    tokens: bool

    @property
    def _has_pictures(self) -> bool:
        return self.x.ndim == 4 and min(self.x.shape[2:]) >= LEAST_SIDE

    def rows(self) -> Iterator[dict[str, Any]]:
        """Give the means of all measures, over all samples and over those of each client."""
        for metric, values in self._measures().items():
            yield {"client": ALL, "metric": metric, "value": float(values.mean())}
            for client in np.unique(self.client).tolist():
                yield {"client": client, "metric": metric, "value": float(values[self.client == client].mean())}

    def _measures(self) -> dict[str, NDArray[np.float64]]:
        """Compute how near the drawn samples are (n,)."""
        if self.tokens:
            return {"token_accuracy": (self.x == self.drawn).mean(axis=1)}
        errors = ((self.x - self.drawn).reshape(len(self.x), -1).astype(np.float64) ** 2).mean(axis=1)
        alike = {"ssim": ssim(self.x, self.drawn)} if self._has_pictures else {}
        return {"mse": errors, "psnr": psnr(errors), **alike}

    def pictures(self) -> Iterator[dict[str, Any]]:
        """Give some images, of as many labels as possible, as they are and as they were drawn."""
        if not self._has_pictures or self.x.shape[1] not in (1, 3):
            return
        first = np.unique(self.label, return_index=True)[1]
        shown = [*first, *np.setdiff1d(np.arange(len(self.x)), first)][:N_SHOWN]
        for n in shown:
            pixels = {name: _bytes(each[n]) for name, each in (("original", self.x), ("drawn", self.drawn))}
            yield {"client": self.client[n], "sample": self.index[n], "label": self.label[n],
                   "shape": list(self.x.shape[1:]), **pixels}  # fmt: skip


def _bytes(image: NDArray[Any]) -> bytes:
    return (255 * image).round().astype(np.uint8).tobytes()


def _together(samples: Samples) -> Ints:
    return np.concatenate(list(samples.values()))
