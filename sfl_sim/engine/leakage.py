"""Leakage: what an attacker learns from the messages across the cut (docs/methods/leakage.md).

The attacks use the models of a round. They change nothing in the training.
"""

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

from sfl_sim.build.checks import check_rounds
from sfl_sim.build.optimisation import one_batch_size
from sfl_sim.build.setup import Setup
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import Method
from sfl_sim.metrics.leakage import (
    by_chance,
    clusters_of,
    labels_by_clusters,
    labels_by_nearest,
    labels_by_norm,
    psnr,
    ssim,
)
from sfl_sim.models.replica import through
from sfl_sim.rng import stream
from sfl_sim.scenario.optional_sections import Leakage
from sfl_sim.scenario.sections import Scenario
from sfl_sim.store.schema import tables
from sfl_sim.training.defences import correlation, distances, unbiased_correlation
from sfl_sim.training.inversion import invert

Ints = NDArray[np.int64]
SamplesByClient = Mapping[int, Ints]
"""Indices into the training set, by the client that holds them."""
ALL = -1
"""Stands for all clients in place of one."""
N_SHOWN = 8
LEAST_SIDE = 3
"""SSIM needs images of at least so many pixels a side."""


def check_leakage(scenario: Scenario, method: Method) -> None:
    """Check that the attacks which the scenario asks for are possible; otherwise raises ScenarioError."""
    wanted = scenario.report.leakage
    if wanted is None or not method.is_split:
        return
    one_batch_size(scenario.train, "report.leakage")
    if len(method.data) < 2:
        raise ScenarioError("needs a client that is attacked and one whose samples are known", key="clients.count",
                            found=len(method.data), allowed="2 and more")  # fmt: skip
    check_rounds(scenario, "report.leakage.rounds", wanted.rounds)
    method.sides(0)


def chosen_samples(shares: Sequence[Ints], wanted: Leakage, seed: int) -> tuple[SamplesByClient, SamplesByClient]:
    """Choose the auxiliary samples, which the attacker knows, and the samples that are attacked.

    Auxiliary samples are all samples of some clients; of the last of these clients, only a part may be needed. The
    attacked samples belong to the other clients.
    """
    mixed = [stream(seed, "attacked", c).permutation(share) for c, share in enumerate(shares)]
    left = max(1, round(wanted.aux_share * sum(map(len, shares))))
    auxiliary: dict[int, Ints] = {}
    for c in stream(seed, "auxiliary").permutation(len(shares)).tolist()[:-1]:
        if left <= 0:
            break
        auxiliary[c] = mixed[c][:left]
        left -= len(auxiliary[c])
    others = [c for c in range(len(shares)) if c not in auxiliary][: wanted.samples]
    return auxiliary, {c: mixed[c][: wanted.samples // len(others)] for c in others}


@dataclass(frozen=True)
class Crossed:
    """The messages about n samples that have crossed the cut. All arrays are in the order of the samples.

    Attributes:
        index: (n,) index of each sample in the training set.
        client: (n,) client that holds each sample.
        message: (n,) number of the mini-batch that each sample was in.
        smashed: (n, ...) activations as the server has got them, after defences and codec.
        gradients: (n, ...) gradients as the client has got them: of the server's share of the mini-batch's mean loss.
    """

    index: Ints
    client: Ints
    message: Ints
    smashed: Tensor
    gradients: Tensor


class Meter:
    """Attacks the models of a method that trains, at every cut of its clients.

    Attributes:
        auxiliary: samples that the attacker knows.
        attacked: samples that it wants to know.
        tell: called while a decoder is trained: with its name, the epochs done, and the epochs in all.
    """

    def __init__(self, setup: Setup, method: Method) -> None:
        scenario = setup.scenario
        assert scenario.report.leakage
        self.wanted = scenario.report.leakage
        self.method = method
        self.seed = scenario.seed
        self.n_labels = setup.dataset.n_labels
        self.batch_size = one_batch_size(scenario.train, "report.leakage")
        self.cuts = self.method.task.cuts
        self.tokens = self.method.task.network.tokens
        assert self.method.data.images
        self.images = self.method.data.images
        self.tell: Callable[[str, int, int], None] = lambda what, done, total: None
        self.auxiliary, self.attacked = chosen_samples(setup.shares, self.wanted, self.seed)

    def measure(self, round: int) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Mount all attacks; gives the round's rows of leakage.parquet and of reconstructions.parquet."""
        figures: list[dict[str, Any]] = []
        pictures: list[dict[str, Any]] = []
        for cut in [0, *sorted({self.cuts[c] for c in self.attacked})]:
            attacks = self._at_cut(cut, round) if cut else self._without_cut()
            for attack, result in attacks:
                of_attack = {"cut": cut, "attack": attack}
                if isinstance(result, Reconstruction):
                    pictures += [of_attack | row for row in result.pictures()]
                    figures += [of_attack | row for row in result.rows()]
                    continue
                for metric, (value, chance) in result.items():
                    figures.append({**of_attack, "client": ALL, "metric": metric, "value": value, "chance": chance})
        about = {"round": round, "labels_sent": self.method.sends_labels}
        leakage = pd.DataFrame(figures, columns=tables("run")["leakage"].of_trial)
        return leakage.assign(**about), pd.DataFrame(pictures).assign(round=round)

    def _without_cut(self) -> Iterator[tuple[str, Reconstruction]]:
        """Reconstruct the attacked samples without a cut, as a scale for the attacks.

        `mean` guesses the mean of the auxiliary samples. `inversion` gives the decoder the attacked samples themselves.
        """
        if "inversion" not in self.wanted.attacks:
            return
        x, auxiliary = self._truth(_together(self.attacked)), self._truth(_together(self.auxiliary))
        usual = auxiliary.mode(0).values if self.tokens else auxiliary.mean(0)
        yield "mean", self._reconstruction(usual.expand_as(x))
        yield "inversion", self._reconstruction(self._invert(self._plain(auxiliary), auxiliary, self._plain(x), cut=0))

    def _at_cut(self, cut: int, round: int) -> Iterator[tuple[str, Reconstruction | Mapping[str, tuple[float, float]]]]:
        """Mount all attacks on the messages across this cut; none if activations are not finite.

        Gives the measures of each attack, and what they find by chance.
        """
        attacked = self._crossed(
            {c: indices for c, indices in self.attacked.items() if self.cuts[c] == cut}, cut, round
        )
        if not bool(attacked.smashed.isfinite().all()):
            return
        n, rng = len(attacked.index), stream(self.seed, "by chance", round, cut)

        def chance_beside(measure: Callable[[Ints], float], groups: Ints | None = None) -> tuple[float, float]:
            return measure(np.arange(n)), by_chance(measure, np.zeros(n, int) if groups is None else groups, rng)

        if "inversion" in self.wanted.attacks:
            auxiliary = self._crossed(self.auxiliary, cut, round)
            decoded = self._invert(auxiliary.smashed, self._truth(auxiliary.index), attacked.smashed, cut)
            yield "inversion", self._reconstruction(decoded, attacked)
        if "dependence" in self.wanted.attacks:
            of_x, of_z = distances(self._plain(self._truth(attacked.index))), distances(attacked.smashed)
            yield (
                "dependence",
                {
                    "dcor": chance_beside(lambda order: float(correlation(of_x[order][:, order], of_z))),
                    "dcor2_unbiased": chance_beside(lambda order: unbiased_correlation(of_x[order][:, order], of_z)),
                },
            )
        method = self.method
        come_down = method.gets_gradients and method.gradients_by_row and cut > method.task.network.lowest
        if "labels" in self.wanted.attacks and come_down and bool(attacked.gradients.isfinite().all()):
            labels, gradients = self.images.labels[attacked.index], attacked.gradients.flatten(1).cpu().numpy()
            norms = np.linalg.norm(gradients.astype(np.float64), axis=1)
            auc = chance_beside(lambda order: labels_by_norm(norms, labels[order], attacked.message), attacked.message)
            yield "norm", {"auc": auc}
            clusters = clusters_of(gradients, self.n_labels, int(stream(self.seed, "k-means").integers(2**31)))
            yield "clusters", {"accuracy": chance_beside(lambda order: labels_by_clusters(clusters, labels[order]))}
            yield "nearest", {"accuracy": chance_beside(lambda order: labels_by_nearest(gradients, labels[order]))}
            commonest = float(np.bincount(labels).max() / len(labels))
            yield "commonest label", {"accuracy": (commonest, commonest)}

    def _crossed(self, samples: SamplesByClient, cut: int, round: int) -> Crossed:
        """Send samples across a cut in mini-batches, each by its client's part-1.

        A client with another cut lends its samples: they run through the part-1 of an attacked client with this cut.
        """
        at_cut = next(c for c in self.attacked if self.cuts[c] == cut)
        batches = []
        for c, indices in samples.items():
            front, back = self.method.sides(c if self.cuts[c] == cut else at_cut)
            for start in range(0, len(indices), self.batch_size):
                index = indices[start : start + self.batch_size]
                rows = torch.from_numpy(index).to(self.images.x.device)
                with torch.no_grad():
                    z = through(front, self.images.prepare(self.images.x[rows]), training=False)
                ids = (round, cut, c, start)
                batches.append((index, np.full(len(index), c), *self._exchanged(z, self.images.y[rows], back, ids)))
        index, client, smashed, gradients = zip(*batches, strict=True)
        message = np.repeat(np.arange(len(batches)), list(map(len, index)))
        return Crossed(
            np.concatenate(index),
            np.concatenate(client),
            message,
            smashed=torch.cat(smashed),
            gradients=torch.cat(gradients),
        )

    def _exchanged(self, z: Tensor, y: Tensor, back: Sequence[Any], ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Give the activations and the gradients of one mini-batch, as somebody reads them who listens at the link."""
        up, down, shape = self.method.wire.up, self.method.wire.down, tuple(z.shape)
        code = up.encode(z, stream(self.seed, "leakage up", *ids)) if up else ()
        seen = (up.decode(code, shape, z.dtype) if up else z).detach().requires_grad_()
        summed = back[-1].part.loss(through(back, seen, training=False), y, reduction="sum")
        loss = self.method.server_share * summed / self.batch_size
        (gradient,) = torch.autograd.grad(loss, seen)
        if up:
            gradient = up.select(gradient, code)
        if down:
            returned = down.encode(gradient, stream(self.seed, "leakage down", *ids))
            gradient = down.decode(returned, tuple(gradient.shape), z.dtype)
        return seen.detach().float(), (up.pull(gradient, up.as_overheard(code), shape) if up else gradient).float()

    def _invert(self, z: Tensor, x: Tensor, unknown: Tensor, cut: int) -> Tensor:
        epochs = self.wanted.epochs
        return invert(
            z,
            x,
            unknown,
            epochs=epochs,
            seed=self.seed,
            n_tokens=self._n_tokens if self.tokens else 0,
            on_epoch=lambda done: self.tell(f"decoder at cut {cut}", done, epochs),
        )

    def _reconstruction(self, decoded: Tensor, crossed: Crossed | None = None) -> Reconstruction:
        index = crossed.index if crossed else _together(self.attacked)
        client = np.repeat(list(self.attacked), [len(indices) for indices in self.attacked.values()])
        return Reconstruction(
            self._truth(index).cpu().numpy(),
            decoded.cpu().numpy(),
            index=index,
            client=crossed.client if crossed else client,
            label=self.images.labels[index],
            tokens=self.tokens,
            others=stream(self.seed, "others").permutation(len(index)),
        )

    def _truth(self, index: Ints) -> Tensor:
        """Give the samples themselves: numbers in [0, 1] (n, ...), or tokens (n, T).

        Data that are floating-point already are scaled by the range of the auxiliary samples.
        """
        x = self.images.x[torch.from_numpy(index).to(self.images.x.device)]
        if self.tokens:
            return x.long()
        if not x.is_floating_point():
            return x.float() / 255
        auxiliary = self.images.x[torch.from_numpy(_together(self.auxiliary)).to(x.device)]
        lo, hi = torch.aminmax(auxiliary)
        return ((x - lo) / (hi - lo)).clamp(0, 1).float()

    def _plain(self, x: Tensor) -> Tensor:
        """Give samples as numbers with distances between them: tokens become unit vectors (n, T, V)."""
        return one_hot(x, self._n_tokens).float() if self.tokens else x

    @property
    def _n_tokens(self) -> int:
        return int(self.images.x.max()) + 1


@dataclass(frozen=True)
class Reconstruction:
    """Samples, and an attack's reconstruction of them.

    Attributes:
        x: (n, ...) samples: numbers in [0, 1], or tokens.
        drawn: (n, ...) reconstructions, of the same kind.
        index, client, label: (n,) of the samples.
        tokens: True for tokens.
        others: (n,) samples in a random order, whose reconstructions are compared by chance.
    """

    x: NDArray[Any]
    drawn: NDArray[Any]
    index: Ints
    client: Ints
    label: Ints
    tokens: bool
    others: Ints

    @property
    def _has_pictures(self) -> bool:
        return self.x.ndim == 4 and min(self.x.shape[2:]) >= LEAST_SIDE

    def rows(self) -> Iterator[dict[str, Any]]:
        """Give the mean of every measure over all samples, and over those of each client."""
        by_chance = self._measures(self.drawn[self.others])
        for metric, values in self._measures(self.drawn).items():
            for client in [ALL, *np.unique(self.client).tolist()]:
                of_client = (self.client == client) | (client == ALL)
                value, chance = float(values[of_client].mean()), float(by_chance[metric][of_client].mean())
                yield {"client": client, "metric": metric, "value": value, "chance": chance}

    def _measures(self, drawn: NDArray[Any]) -> dict[str, NDArray[np.float64]]:
        """Compute how near each reconstruction is (n,), by every measure."""
        if self.tokens:
            return {"token_accuracy": (self.x == drawn).mean(axis=1)}
        errors = ((self.x - drawn).reshape(len(self.x), -1).astype(np.float64) ** 2).mean(axis=1)
        alike = {"ssim": ssim(self.x, drawn)} if self._has_pictures else {}
        return {"mse": errors, "psnr": psnr(errors), **alike}

    def pictures(self) -> Iterator[dict[str, Any]]:
        """Give a few images, of as many labels as possible, with their reconstructions."""
        if not self._has_pictures or self.x.shape[1] not in (1, 3):
            return
        first = np.unique(self.label, return_index=True)[1]
        shown = [*first, *np.setdiff1d(np.arange(len(self.x)), first)][:N_SHOWN]
        for n in shown:
            pixels = {name: _bytes(images[n]) for name, images in (("original", self.x), ("drawn", self.drawn))}
            yield {"client": self.client[n], "sample": self.index[n], "label": self.label[n],
                   "shape": list(self.x.shape[1:]), **pixels}  # fmt: skip


def _bytes(image: NDArray[Any]) -> bytes:
    return (255 * image).round().astype(np.uint8).tobytes()


def _together(samples: SamplesByClient) -> Ints:
    return np.concatenate(list(samples.values()))
