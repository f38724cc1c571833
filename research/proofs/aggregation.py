"""Speed of averaging replicas, compared with copying them and with the usual code of papers.

    python -m research.proofs.aggregation [--quick]

ResNet-18's weights (122 tensors, 45 MB). Bandwidth counts what has to be moved: an average of n replicas reads n and
writes one, n copies read and write n. Goal: an average at 0.5 or more of the bandwidth of a copy.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.options import options
from benchmarks.pairs import alternate, ratio
from benchmarks.workload import CPU
from sfl_sim.models.averages import average
from sfl_sim.models.weights import Weights
from sfl_sim.models.zoo import network
from sfl_sim.training.hardware import keep_freed_memory

SIZES = ("10", "100")


class Averages:
    """Ways to handle `n` replicas of ResNet-18."""

    def __init__(self, n: int) -> None:
        (whole,) = network("resnet18", (3, 32, 32), 10).split(seed=0, device=CPU)
        self.target = whole.weights
        self.replicas: list[Weights] = [self.target.copy() for _ in range(n)]
        for number, weights in enumerate(self.replicas):
            weights.flat.add_(number)
        self.states = [dict(weights.named_tensors()) for weights in self.replicas]
        self.shares = [1 / n] * n
        self.bytes = sum(vector.nbytes for vector in (self.target.flat, self.target.buffers))

    def ours(self) -> None:
        average(self.target, self.replicas, self.shares)

    def copies(self) -> None:
        for weights in self.replicas:
            self.target.flat.copy_(weights.flat)
            self.target.buffers.copy_(weights.buffers)

    def per_key(self) -> dict[str, torch.Tensor]:
        """Average as the FedAvg function of many repositories does."""
        mean = {name: tensor.clone() for name, tensor in self.states[0].items()}
        for name in mean:
            for state in self.states[1:]:
                mean[name] += state[name]
            mean[name] = torch.div(mean[name], len(self.states))
        return mean

    def stack_mean(self) -> dict[str, torch.Tensor]:
        return {name: torch.stack([state[name] for state in self.states]).mean(0) for name in self.states[0]}

    def assert_equal(self) -> None:
        self.ours()
        for other in (self.per_key(), self.stack_mean()):
            for name, tensor in self.target.named_tensors():
                torch.testing.assert_close(tensor, other[name], rtol=1e-4, atol=1e-4)


def measure(n: int, pairs: int) -> list[dict[str, object]]:
    averages = Averages(n)
    averages.assert_equal()

    def against(name: str, other: Callable[[], object]) -> dict[str, object]:
        other_s, ours_s = alternate(other, averages.ours, pairs)
        found = ratio(other_s, ours_s)
        return {
            "replicas": n,
            "against": name,
            "its time / ours": found["median"],
            "quartiles": found["quartiles"],
            "our ms": round(1e3 * statistics.median(ours_s), 1),
            "our bandwidth / that of copies": "",
        }

    copies = against("copies", averages.copies)
    copies["our bandwidth / that of copies"] = round(copies["its time / ours"] * (n + 1) / (2 * n), 3)
    return [copies, against("loop per key", averages.per_key), against("stack and mean", averages.stack_mean)]


def main() -> None:
    given = options(__doc__, SIZES)
    keep_freed_memory()  # as every run does
    sizes = [3] if given.quick else map(int, given.chosen)
    rows = [row for n in sizes for row in measure(n, given.pairs(20))]
    given.publish("aggregation", rows, Path(__file__).parent / "results")


if __name__ == "__main__":
    main()
