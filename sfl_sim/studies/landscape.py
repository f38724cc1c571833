"""Loss landscapes: the loss of stored models whose weights are moved along random directions.

H. Li, Z. Xu, G. Taylor, C. Studer, T. Goldstein, "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018: every
filter of a direction is scaled to the norm of the model's, for a network with ReLUs or batch norm answers the same with
weights of another scale, and would else look flat because its weights are large.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.linalg import vector_norm

from sfl_sim.build.network import stored_weights
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.geometry import with_widths
from sfl_sim.models.layers import given_name
from sfl_sim.models.replica import Replica
from sfl_sim.models.weights import Weights
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load_unchanged
from sfl_sim.report.pages.landscape import write_landscape
from sfl_sim.rng import stream
from sfl_sim.runs.interrupts import uninterrupted
from sfl_sim.runs.news import Counted, Notify
from sfl_sim.scenario.load import Variant, load
from sfl_sim.store.files import models_of, write_file
from sfl_sim.training.alternatives import replicas_by_name
from sfl_sim.training.evaluate import evaluate
from sfl_sim.training.hardware import PRECISIONS, keep_freed_memory, pick_device


@dataclass(frozen=True)
class Extent:
    """Extent of the landscape: a line and a plane, both as far as one length of the weights' filters.

    Attributes:
        points: of the line: odd, so that the model itself is one of them. Each side of the plane has 3/5 of them.
        samples: test samples in the loss of a point, stratified and the same in every run; all if there are no more.

    Raises ScenarioError for what makes no line.
    """

    points: int = 25
    samples: int = 1000

    def __post_init__(self) -> None:
        if self.points < 3 or self.points % 2 == 0:
            problem = "no line with the model in its middle"
            raise ScenarioError(problem, key="--points", found=self.points, allowed="3, 5, 7, ...")

    @property
    def line(self) -> list[tuple[float, float]]:
        """Points (alpha, beta) on the first direction."""
        return [(alpha, 0.0) for alpha in _offsets(self.points)]

    @property
    def plane(self) -> list[tuple[float, float]]:
        """Points (alpha, beta) of a grid on both directions."""
        offsets = _offsets(max(3, 3 * self.points // 5 | 1))
        return [(alpha, beta) for alpha in offsets for beta in offsets]


def _offsets(n: int) -> list[float]:
    half = n // 2
    return [i / half for i in range(-half, half + 1)]


class Surroundings:
    """A model that can be moved along two random directions, which are the same for every model of its architecture.

    Args:
        model: its parts, whose weights `move` changes.
        seed: of the directions.
    """

    def __init__(self, model: Sequence[Replica], seed: int) -> None:
        self.model = model
        self._centre = [replica.weights.flat.clone() for replica in model]
        rngs = [stream(seed, "landscape", axis) for axis in (0, 1)]
        self._directions = [[filter_normalised(replica.weights, rng) for rng in rngs] for replica in model]

    def move(self, alpha: float, beta: float) -> None:
        """Move the weights to the centre plus alpha times the first direction plus beta times the second."""
        for replica, centre, (first, second) in zip(self.model, self._centre, self._directions, strict=True):
            torch.add(centre, first, alpha=alpha, out=replica.weights.flat).add_(second, alpha=beta)


def filter_normalised(weights: Weights, rng: np.random.Generator) -> Tensor:
    """Draw a normal direction (P,), laid out as `weights.flat`, each filter as long as that of the weights.

    A filter is what gives one output: an index of the first dimension. Biases and batch norm's parameters, which have
    no other, stay as they are, as in the authors' code.
    """
    flat = torch.zeros_like(weights.flat)
    views = weights.part.views
    for direction, weight in zip(views(flat), views(weights.flat), strict=True):
        if weight.dim() > 1:
            direction.copy_(torch.from_numpy(rng.standard_normal(weight.shape)))
            inner = tuple(range(1, weight.dim()))
            direction *= vector_norm(weight, dim=inner, keepdim=True) / vector_norm(direction, dim=inner, keepdim=True)
    return flat


@dataclass(frozen=True)
class StoredModel:
    """A stored model: its run, its experiment's variant, its file, and whether it is its variant's first seed."""

    run: Path
    trained: Variant
    checkpoint: Path
    is_first: bool

    def slices(self, extent: Extent) -> dict[str, list[tuple[float, float]]]:
        """List the points (alpha, beta) to evaluate: on a line, and for the first seed on a plane."""
        return {"line": extent.line} | ({"plane": extent.plane} if self.is_first else {})


def survey(folders: Sequence[Path], out: Path, extent: Extent, device: str, notify: Notify) -> None:
    """Write the page `out` on the loss around stored runs' final models, and its points as a table beside it.

    Raises ScenarioError if a folder holds no run with models, a method has several models at once, the data are not
    there, or the page cannot be written.
    """
    frames = merge([load_unchanged(folder) for folder in dict.fromkeys(folders)])
    models = _models(frames)
    keep_freed_memory()
    total = sum(len(points) for model in models for points in model.slices(extent).values())
    rows = []
    for model in models:
        for row in _look(model, extent, pick_device(device)):
            rows.append(row)
            notify(Counted(f"{row['variant']} (seed {row['seed']}), {row['slice']}", "point", len(rows), total))
    points = with_widths(pd.DataFrame(rows))
    with uninterrupted():
        write_landscape(frames, points, out)
        write_file(out.with_suffix(".parquet"), points.to_parquet(index=False))


def _models(frames: Frames) -> list[StoredModel]:
    """Return every variant's stored models, one per seed."""
    found = []
    for shown in frames.variants:
        folder = shown.run.folder
        files = models_of(folder)
        study = load(folder / "scenario.yaml")
        ours = [v for v in study.variants if v.name == shown.name and (v.name, v.scenario.seed) in files]
        if not ours:
            reason = ", since it was timing-only" if shown.run.rounds["accuracy"].isna().all() else ""
            raise ScenarioError(f"{folder} has no checkpoint of {shown.name}{reason}")
        with ours[0].places.locating():
            experiment = Experiment(ours[0].scenario, device=None)
            _parts(experiment)
            if not experiment.dataset.goal.scores_labels:
                goal = experiment.dataset.goal.value
                raise ScenarioError("has no accuracy to show around a model", key="data.name", found=goal)
        found += [StoredModel(folder, v, files[v.name, v.scenario.seed], v is ours[0]) for v in ours]
    return found


def _parts(experiment: Experiment) -> list[Replica]:
    """Return the parts of the model. Raises ScenarioError if a part has several versions, each with its landscape."""
    model = experiment.method.model()
    parts = [part for part in model if isinstance(part, Replica)]
    if len(parts) < len(model):
        raise ScenarioError(
            "the clients keep parts of their own, so there is no single model to look around",
            key="method.name",
            found=experiment.scenario.method.name,
        )
    return parts


def _look(stored: StoredModel, extent: Extent, device: torch.device) -> Iterator[dict[str, object]]:
    """Generate the loss of the model at every point, as rows of the table."""
    scenario = stored.trained.scenario
    PRECISIONS[scenario.train.precision].activate()
    experiment = Experiment(scenario, device)
    model = _parts(experiment)
    _fill(model, stored.checkpoint)
    surroundings = Surroundings(model, scenario.seed)
    dataset, images, coded = experiment.dataset, experiment.method.data.images, experiment.evaluator.coded
    assert images is not None
    if extent.samples < len(dataset.y_test):
        dataset = dataset.subset(None, extent.samples)
    x, y = dataset.x_test.to(device), dataset.y_test.to(device)
    for name, points in stored.slices(extent).items():
        for alpha, beta in points:
            surroundings.move(alpha, beta)
            found = evaluate(
                model, x, y, dataset.n_labels, images.prepare, coded=coded, targets=images.targets, goal=dataset.goal
            )
            yield {
                "run": str(stored.run), "variant": stored.trained.name, "seed": scenario.seed,
                "slice": name, "alpha": alpha, "beta": beta, "loss": found.loss, "accuracy": found.accuracy,
                "samples": len(y),
            }  # fmt: skip


def _fill(model: Sequence[Replica], checkpoint: Path) -> None:
    """Load a checkpoint's weights into the model. Raises ScenarioError if it is damaged, or another model's."""
    tensors = stored_weights(checkpoint, "run")
    views = {
        f"{part}.{given_name(replica.weights.part.skeleton, name)}": view
        for part, replica in replicas_by_name(model).items()
        for name, view in replica.weights.named_tensors()
    }
    if {name: view.shape for name, view in views.items()} != {name: found.shape for name, found in tensors.items()}:
        raise ScenarioError("is not of the model that the run's scenario describes", found=str(checkpoint))
    for name, view in views.items():
        view.copy_(tensors[name])
