"""Cost of SMoFi's fusion of 20 surrogates' momentum buffers, against the step before it and a naive average.

    python -m research.proofs.smofi [--quick] [MODEL ...]

The step is that of all surrogates, each with a mini-batch of 50 (SMoFi's); one is timed. The naive average stacks every
parameter's buffers, takes their mean and copies it to each surrogate, as a loop over `optimizer.state` does.
Goal: a fusion takes at most 5 % of the step.
"""

import statistics
from pathlib import Path

import torch

from benchmarks.options import options
from benchmarks.pairs import alternate, ratio
from benchmarks.workload import CPU
from sfl_sim.methods.smofi import Fuse, Fusion, TrainFused
from sfl_sim.models.replica import Replica
from sfl_sim.models.zoo import network
from sfl_sim.ops import Value
from sfl_sim.training.hardware import keep_freed_memory
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import Train

SURROGATES, BATCH = 20, 50
CUTS = {"resnet8": "block1", "resnet18": "block2", "mobilenet_v1": 4}


class Server:
    """The server's copies after a step, with their buffers as rows of one matrix, and as tensors apart."""

    def __init__(self, model: str) -> None:
        net = network(model, (3, 32, 32), 10)
        part1, self.part2 = net.split(net.cut_at(CUTS[model]), seed=0, device=CPU)
        self.sgd = Sgd(0.05, 0.9, weight_decay=5e-4)
        self.fusion = Fusion(self.part2, SURROGATES, self.sgd, None)
        self.surrogates: list[Replica] = [self.part2.snapshot() for _ in range(SURROGATES)]
        self.fusion.lend(self.surrogates[0].weights, 0)
        self.own, self.fused = self.fusion.buffers
        self.own.normal_()
        self.apart = [[view.clone() for view in self.part2.part.views(row)] for row in self.own[0]]
        smashed = part1.weights(torch.randn(BATCH, 3, 32, 32), training=False)
        self.data = Value("smashed", samples=BATCH, content=(smashed, torch.randint(10, (BATCH,))))

    def fuse(self) -> None:
        Fuse().run(self.fusion, [1 / SURROGATES] * SURROGATES)

    def naive(self) -> None:
        for buffers in zip(*self.apart, strict=True):
            mean = torch.stack(buffers).mean(0)
            for buffer in buffers:
                buffer.copy_(mean)

    def step(self) -> None:
        TrainFused(self.sgd, 0).run(self.surrogates[0], self.data, self.fusion)

    def usual_step(self) -> None:
        Train(self.sgd).run(self.surrogates[1], self.data)

    def assert_equal(self) -> None:
        self.fuse()
        self.naive()
        views = self.part2.part.views(self.fused[0])
        for ours, theirs in zip(views, self.apart[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def measure(model: str, pairs: int) -> dict[str, object]:
    server = Server(model)
    server.assert_equal()
    naive_s, fuse_s = alternate(server.naive, server.fuse, pairs)
    step_s, usual_s = alternate(server.step, server.usual_step, pairs)
    of_step = statistics.median(fuse_s) / (SURROGATES * statistics.median(usual_s))
    return {
        "model": model,
        "parameters of part-2": server.part2.part.n_parameters,
        "ms to fuse": round(1e3 * statistics.median(fuse_s), 2),
        "of the step that it follows": round(of_step, 5),
        "naive / ours": ratio(naive_s, fuse_s)["median"],
        "GB/s read": round(server.own.nbytes / statistics.median(fuse_s) / 1e9, 1),
        "step from fused buffers / usual step": ratio(step_s, usual_s)["median"],
    }


def main() -> None:
    given = options(__doc__, CUTS)
    keep_freed_memory()  # as every run does
    models = ["resnet8"] if given.quick else given.chosen
    given.publish("smofi", [measure(model, given.pairs(8)) for model in models], Path(__file__).parent / "results")


if __name__ == "__main__":
    main()
