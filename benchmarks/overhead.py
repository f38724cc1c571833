"""Overhead of the simulator over a hand-written loop, and of both over bare training steps.

    python -m benchmarks.overhead [--quick] [MODEL ...]

Both sides train the same model on the same random images in the same order, with channels_last, a fused optimiser and
data gathered once an epoch; two rounds of each are asserted equal to the bit. What remains is the price of the flows,
the clock, the records and the bookkeeping of states. `of the step limit` is the time of the round's steps run on one
batch that lies ready, whole network and nothing else, over the time of the simulated round.

Goals: simulated / plain at most 1.02 (cnn8, mobilenet_v1) and 1.10 (lenet5); at least 0.9 of the step limit.
"""

import statistics
import sys

import torch

from benchmarks.options import options
from benchmarks.pairs import alternate, ratio
from benchmarks.plain import Plain, gathered, initial_model, step
from benchmarks.workload import LR, MODELS, MOMENTUM, Simulated, Workload
from sfl_sim.training.hardware import keep_freed_memory

METHODS = ("fedavg", "splitfed_v1", "splitfed_v2")
SHORT_ROUNDS = {"lenet5": 16}  # pairs: more where a round takes a fraction of a second


class Steps:
    """Bare steps, as many as in a round."""

    def __init__(self, workload: Workload) -> None:
        self.model = initial_model(workload.model, workload.network).to(memory_format=torch.channels_last)
        self.optimiser = torch.optim.SGD(self.model.parameters(), LR, MOMENTUM, fused=True)
        self.batch = next(gathered(workload, 0, 1))
        self.count = workload.clients * workload.steps

    def round(self) -> None:
        for _ in range(self.count):
            step(self.model, self.optimiser, *self.batch)


def assert_equal_to_the_bit(workload: Workload) -> None:
    simulated = Simulated(workload)
    # torch's fused kernel rounds the odd tails of tensors in its own way; the simulator's flat vectors have none.
    plain = Plain(workload, workload.schedule(2), gathered, fused=False)
    for _ in range(2):
        simulated.round()
        plain.round()
    expected = plain.model.state_dict()
    for name, tensor in simulated.weights().items():
        assert torch.equal(tensor, expected[name]), f"{workload.model} {workload.method}: {name} differs"


def measure(workload: Workload, pairs: int) -> dict[str, object]:
    assert_equal_to_the_bit(workload)
    simulated, plain, steps = (
        Simulated(workload),
        Plain(workload, workload.schedule(pairs + 1), gathered),
        Steps(workload),
    )
    ours_s, plain_s = alternate(simulated.round, plain.round, pairs)
    steps_s, rounds_s = alternate(steps.round, simulated.round, pairs)
    over_plain, of_limit = ratio(ours_s, plain_s), ratio(steps_s, rounds_s)
    return {
        "model": workload.model,
        "method": workload.method,
        "simulated / plain": over_plain["median"],
        "quartiles": over_plain["quartiles"],
        "of the step limit": of_limit["median"],
        "its quartiles": of_limit["quartiles"],
        "bare ms/step": round(1e3 * statistics.median(steps_s) / steps.count, 2),
        "weights": "equal to the bit",
    }


def main() -> None:
    given = options(__doc__, MODELS)
    keep_freed_memory()  # as every run does, for both sides
    rows = []
    for model in given.chosen:
        for method in METHODS:
            rows.append(measure(Workload(model, method, given.quick), given.pairs(SHORT_ROUNDS.get(model, 8))))
            print(rows[-1], file=sys.stderr)
    given.publish("overhead", rows)


if __name__ == "__main__":
    main()
