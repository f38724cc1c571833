"""Measures the constants of AdaptSFL's bound while a network learns, and the longest interval that the bound allows.

    python -m research.controllers.interval [SCENARIO.yaml] [RATE ...]     (benchmark/images, 0.1 0.01 0.0005)

Run it from the root of the repository. Mini-batches of ten clients, plain SGD on their mean gradient, float32; what
came out: research/results/controllers.md.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sfl_sim.engine.experiment import Experiment
from sfl_sim.models.on_nan import differentiate
from sfl_sim.models.replica import Replica
from sfl_sim.scenario.load import load

CLIENTS, STEPS = 10, (1, 20, 100, 399)
CPU = torch.device("cpu")


def gradients(layers: Sequence[Replica], x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the gradient of each layer (P_l,) of the mean loss of a mini-batch."""
    for layer in layers:
        layer.weights.grad.zero_()
        x = layer.weights(x, training=True)
    differentiate(layers[-1].part.loss(x, y))
    return [layer.weights.grad.clone() for layer in layers]


def longest(eps: float, floor: float, k: float) -> float:
    """Return the largest I with K I^2 < eps - floor; 0 if there is none but 1, if that."""
    return (max(0.0, eps - floor) / k) ** 0.5


def measure(experiment: Experiment, rate: float) -> None:
    """Print a row for each of `STEPS` and way to estimate the smoothness beta."""
    task = experiment.method.task
    network, clients = task.network, range(min(CLIENTS, len(task.data)))
    layers = network.split(*range(1, len(network)), seed=task.seed, device=CPU)

    def found(step: int) -> tuple[list[list[Tensor]], list[Tensor], Tensor]:
        each = [gradients(layers, *next(iter(task.data.batches(c, step))).load()) for c in clients]
        mean = [torch.stack(of_layer).mean(0) for of_layer in zip(*each, strict=True)]
        return each, mean, torch.cat(mean)

    for step in range(1, STEPS[-1] + 1):
        each, mean, whole = found(step)
        for layer, gradient in zip(layers, mean, strict=True):
            layer.weights.flat.sub_(rate * gradient)
        if step not in STEPS:
            continue
        moved = rate * whole.norm()
        variance = sum(float((g - m).square().sum()) for of in each for g, m in zip(of, mean, strict=True)) / len(each)
        second = [sum(float(of[layer].square().sum()) for of in each) / len(each) for layer in range(len(layers))]
        norm2 = float(whole.square().sum())
        for how, other in (("other mini-batches", step + 1), ("same mini-batches", step)):
            beta_rate = rate * float((found(other)[2] - whole).norm() / moved)
            floor = beta_rate / len(each) * variance
            bounds = [4 * beta_rate**2 * sum(second[:cut]) for cut in (1, len(layers) - 1)]
            intervals = [f"{longest(norm2 * share, floor, k):.1f}" for share in (0.1, 1.0) for k in bounds]
            print(f"| {rate} | {step} | {how} | {beta_rate:.3f} | {floor / norm2:.2f} | {' | '.join(intervals)} |")


def main() -> None:
    """Print a Markdown table."""
    name, *rates = sys.argv[1:] or ["scenarios/benchmark/images.yaml"]
    print(
        "| rate | step | beta from | beta x rate | noise | first cut, eps .1 | last cut | first cut, eps 1 | last cut |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for rate in map(float, rates or (0.1, 0.01, 0.0005)):
        measure(Experiment(load(Path(name)).variants[0].scenario, CPU), rate)


if __name__ == "__main__":
    main()
