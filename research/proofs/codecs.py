"""Speed of codecs, compared with copying the same tensor; and what the wire costs where there is no codec.

    python -m research.proofs.codecs [--quick]

Activations of ResNet-18 after the stem and two blocks, 64 samples of 64x32x32 after a ReLU (16.8 MB), on one thread.
Goal:
coding and decoding each at 0.5 or more of the speed of a copy for fp16, int8 and top-k. The last row compares how long
it takes without codecs to issue a mini-batch's operations, by a flow that asks the wire and by one that does not.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.options import options
from benchmarks.pairs import alternate, ratio
from benchmarks.workload import Simulated, Workload
from sfl_sim.methods.split import SplitStep
from sfl_sim.methods.splitfed_v2 import SplitFedV2
from sfl_sim.ops import SERVER, Flow, On, on, send
from sfl_sim.rng import stream
from sfl_sim.training.codecs import Bf16, Codec, Fp16, Int, RandTopK, SplitFC, TopK
from sfl_sim.training.hardware import keep_freed_memory

CODECS: dict[str, Codec] = {
    "fp16": Fp16(), "bf16": Bf16(), "int8": Int(), "int8 per channel": Int(per="channel"), "int4": Int(bits=4),
    "int8 stochastic": Int(rounding="stochastic"), "topk 0.01": TopK(keep=0.01), "topk 0.1": TopK(keep=0.1),
    "randtopk 0.01": RandTopK(keep=0.01), "splitfc 16": SplitFC(ratio=16.0),
}  # fmt: skip


def measure(name: str, pairs: int) -> dict[str, object]:
    codec, draw = CODECS[name], stream(0, "benchmark")
    x = torch.randn(64, 64, 32, 32, generator=torch.Generator().manual_seed(0)).relu()
    into, shape, code = torch.empty_like(x), tuple(x.shape), codec.encode(x, draw)

    def copies_per(work: Callable[[], object]) -> float:
        copy_s, work_s = alternate(lambda: into.copy_(x), work, pairs)
        return float(ratio(copy_s, work_s)["median"])

    return {
        "codec": name,
        "share of the bytes": round(codec.size_bytes(shape, x.dtype) / x.nbytes, 4),
        "time of a copy / of coding": copies_per(lambda: codec.encode(x, draw)),
        "time of a copy / of decoding": copies_per(lambda: codec.decode(code, shape, x.dtype)),
    }


class Plain(SplitFedV2):
    """SplitFedV2 whose mini-batches do not know the wire."""

    def minibatch(self, c, part1, part2, batch, round) -> Flow:  # type: ignore[no-untyped-def]
        smashed = yield on(c, self.forward, part1, batch)
        smashed = yield send(smashed, c, SERVER)
        gradient = yield on(SERVER, self.server_step(round), part2, smashed)
        gradient = yield send(gradient, SERVER, c)
        yield on(c, self.backward(round, c), part1, gradient)


def issue(method: SplitStep, times: int) -> Callable[[], None]:
    """Drive a mini-batch's flow without a clock."""
    part1, part2 = method.task.split(method.task.cut)
    batch = next(method.data.batches(0, 1))

    def drive() -> None:
        for _ in range(times):
            flow, result = method.minibatch(0, part1, part2, batch, 1), None
            try:
                while True:
                    op = flow.send(result)
                    result = op.step.out(op.state, *op.args) if isinstance(op, On) else op.payload
            except StopIteration:
                pass

    return drive


def without_codecs(pairs: int, quick: bool) -> dict[str, object]:
    task = Simulated(Workload("lenet5", "splitfed_v2", quick), train=False).method.task
    times = 10 if quick else 2000
    ours_s, plain_s = alternate(issue(SplitFedV2(task), times), issue(Plain(task), times), pairs)
    return {
        "codec": "none: issuing the operations of a mini-batch, with the wire / without",
        "share of the bytes": 1.0,
        "time of a copy / of coding": ratio(ours_s, plain_s)["median"],
        "time of a copy / of decoding": f"{1e6 * (sum(ours_s) - sum(plain_s)) / len(ours_s) / times:.2f} us more",
    }


def main() -> None:
    given = options(__doc__, CODECS)
    keep_freed_memory()  # as every run does
    torch.set_num_threads(1)
    pairs = given.pairs()
    rows = [measure(name, pairs) for name in (["fp16"] if given.quick else given.chosen)]
    given.publish("codecs", [*rows, without_codecs(pairs, given.quick)], Path(__file__).parent / "results")


if __name__ == "__main__":
    main()
