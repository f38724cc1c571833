"""Gain of the batched executor: time of rounds of the eager executor over the same rounds batched, and memory of both.

    python -m benchmarks.batched [--quick] [MODEL ...]

A client has four mini-batches a round. One round in float64 is asserted equal but for rounding. Memory is what a
process of its own takes for two rounds; freed memory stays in the process, so it is the most that was ever taken.
"""

import multiprocessing
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import torch

from benchmarks.memory import MIB, resident
from benchmarks.options import options
from benchmarks.pairs import alternate, ratio
from benchmarks.workload import Simulated, Workload
from sfl_sim.training.batched import Batched
from sfl_sim.training.eager import Eager
from sfl_sim.training.hardware import keep_freed_memory, threads_for

MODELS = {"lenet5": (10, 50), "cnn8": (10,)}  # numbers of clients
METHODS = ("fedavg", "splitfed_v1", "splitfed_v2")
BATCHES = (8, 64)
STEPS = 4
THREADS = torch.get_num_threads()


@dataclass(frozen=True)
class Crowd(Workload):
    """Study of a number of clients with mini-batches of a size."""

    clients: int = 10
    batch: int = 8

    @property
    def samples(self) -> int:
        return STEPS * self.batch


class Executed(Simulated):
    """Rounds by a given executor."""

    def __init__(self, crowd: Crowd, executor: Eager) -> None:
        super().__init__(crowd, executor=executor)
        self.executor = executor

    def round(self) -> None:
        super().round()
        if isinstance(self.executor, Batched):
            self.executor.finish()


def assert_equal(crowd: Crowd) -> None:
    exact = replace(crowd, dtype=torch.float64)
    eager, batched = Executed(exact, Eager()), Executed(exact, Batched())
    eager.round()
    batched.round()
    expected = eager.weights()
    for name, tensor in batched.weights().items():
        assert (tensor - expected[name]).abs().max() < 1e-10, f"{crowd.model} {crowd.method}: {name} differs"


def measure(crowd: Crowd, pairs: int) -> dict[str, object]:
    assert_equal(crowd)
    threads = threads_for(crowd.network.macs * crowd.batch, THREADS)  # as a run would
    torch.set_num_threads(threads)
    eager, batched = Executed(crowd, Eager()), Executed(crowd, Batched())
    eager_s, batched_s = alternate(eager.round, batched.round, pairs)
    gain = ratio(eager_s, batched_s)
    return {
        "model": crowd.model,
        "method": crowd.method,
        "clients": crowd.clients,
        "batch": crowd.batch,
        "eager / batched": gain["median"],
        "quartiles": gain["quartiles"],
        "eager ms/step": round(1e3 * statistics.median(eager_s) / (crowd.clients * STEPS), 2),
        "threads": threads,
        "eager MiB": apart(resident_mib, replace(crowd), Eager),
        "batched MiB": apart(resident_mib, replace(crowd), Batched),
    }


def resident_mib(crowd: Crowd, executor: type[Eager]) -> int:
    """Measure the memory that two rounds add to this process, in MiB."""
    keep_freed_memory()
    executed = Executed(crowd, executor())
    before = resident()
    for _ in range(2):
        executed.round()
    return round((resident() - before) / MIB)


def apart(function: Callable[..., int], *args: object) -> int:
    """Run the function in a process of its own, and return its result."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def main() -> None:
    given = options(__doc__, MODELS)
    keep_freed_memory()
    rows = []
    for model in given.chosen:
        for method in METHODS:
            for clients in MODELS[model][:1] if given.quick else MODELS[model]:
                for batch in BATCHES[:1] if given.quick else BATCHES:
                    crowd = Crowd(model, method, clients=clients, batch=batch)
                    rows.append(measure(crowd, given.pairs()))
                    print(rows[-1], file=sys.stderr)
    given.publish("batched", rows)


if __name__ == "__main__":
    main()
