"""Measurement of a scenario's own network on this machine: the whole and its parts, forward passes and whole steps."""

import csv
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TextIO

import torch

from sfl_sim.build.setup import Setup
from sfl_sim.features.devices.fit import UNKNOWN, work_cells
from sfl_sim.features.devices.runtimes import OTHER, RUNTIMES, TORCH, CannotRun, check, described, exported, loaded
from sfl_sim.methods import Task
from sfl_sim.models.replica import Replica
from sfl_sim.ops import SERVER, Node, Value, Work, priced
from sfl_sim.scenario.sections import Scenario
from sfl_sim.system.cost import WORK_COLUMNS
from sfl_sim.training.hardware import PRECISIONS, keep_freed_memory
from sfl_sim.training.steps import Backward, Forward, Train

BATCHES = (1, 16)
MIN_RUNS, MAX_RUNS = 5, 200
KNOWN = 0.01
"""Standard error of a median, relative to it, from which on a time is known."""
MAX_S = 0.7
"""Seconds after which, in a sweep, a time that spreads more is taken as it is."""
SWEEPS = 3
"""How often all is measured, in turn."""
SMALL_LR = 1e-9
"""Learning rate, so small that weights stay what they are however often a step runs."""

COLUMNS = ["device", "network", "runtime", "version", "processor", "threads", "part", "cut", "batch", "forward_ms",
           "step_ms", "spread", "runs", *WORK_COLUMNS]  # fmt: skip


def measure(
    scenario: Scenario,
    out: TextIO,
    *,
    machine: str | None = None,
    cuts: Sequence[int | str] | None = None,
    batches: Sequence[int] = BATCHES,
    runtime: str = TORCH,
    device: torch.device,
    notify: Callable[[str], None] = lambda row: None,
) -> None:
    """Measure the network as a whole, and its parts at each cut, with mini-batches of each size; writes a table.

    These are the steps that a simulation runs. A step is the forward pass in training mode, the backward pass and the
    optimiser's step; that of part-1 gets its gradient from the cut. Other runtimes than torch run the forward passes of
    what is exported to them. All is measured in turn, `SWEEPS` times, so that a machine that slows down is slower for
    all parts alike. What is interrupted keeps the rows of what has been timed. Rows of several machines may be joined
    to one table.

    Args:
        out: CSV file.
        machine: what the rows call this machine; by default its name in the network.
        cuts: layers after which to cut; None for all.
        runtime: one of `NAMES`; `OTHER`: rows without times, to be filled in with what another runtime took.
        device: what computes, if it is torch.

    Raises ScenarioError if the scenario cannot be used, or has no such cut, or the runtime is not there.
    """
    check(runtime)
    setup = Setup(scenario, pixels=False)
    task = setup.method(device).task
    task = replace(task, lr=SMALL_LR, lr_schedule=None, client_lr=(), server={**task.server, "lr": SMALL_LR})
    network = task.network
    places = range(1, len(network)) if cuts is None else [network.cut_at(cut, "--cuts") for cut in cuts]
    keep_freed_memory()
    PRECISIONS[setup.scenario.train.precision].activate()
    exports = Exports(runtime, torch.get_num_threads(), notify) if runtime in RUNTIMES else None
    rows: dict[tuple[str, str, str, str], dict[str, str]] = {}
    taken_s: defaultdict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    try:
        for sweep, cut, batch in product(range(1 if runtime == OTHER else SWEEPS), [None, *places], batches):
            if batch == 1 and network.needs_batches_of_two:
                if (sweep, cut) == (0, None):
                    notify("a mini-batch of 1 is left out: batch norm cannot train on it")
                continue
            parts = network.split(*([] if cut is None else [cut]), seed=task.seed, device=device)
            for timed in _timed(task, parts, batch):
                named = timed.part, "" if cut is None else str(cut), str(batch), timed.kind
                run = exports.run(timed, "_".join(filter(None, named[:3]))) if exports else timed.run
                if run is None:
                    continue
                rows[named] = work_cells(timed.work)
                if runtime != OTHER:
                    taken_s[named] += _seconds(run, device)
                    middle_ms = 1000 * statistics.median(taken_s[named])
                    what = f"{timed.part}{'' if cut is None else f' at cut {cut} {network.layers[cut - 1].name}'}"
                    notify(f"{sweep + 1} of {SWEEPS}: {what}, {timed.kind} of {batch}: {middle_ms:.3g} ms")
    finally:
        same = {"device": machine or platform.node(), "network": network.name, **described(runtime)}
        table = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
        table.writeheader()
        for named, work in rows.items():
            where, kind = dict(zip(("part", "cut", "batch"), named, strict=False)), named[-1]
            table.writerow(same | where | work | _cells(kind, taken_s[named]))
        if exports:
            exports.close()


def _cells(kind: str, taken_s: Sequence[float]) -> dict[str, str]:
    if not taken_s:
        return {f"{kind}_ms": UNKNOWN}
    middle_ms = 1000 * statistics.median(taken_s)
    return {f"{kind}_ms": f"{middle_ms:.6g}", "spread": f"{_spread(taken_s):.3f}", "runs": str(len(taken_s))}


class TimedCall(NamedTuple):
    """What is timed: a part's name, `forward` or `step`, what runs it once, its work, and the part with its input."""

    part: str
    kind: str
    run: Callable[[], object]
    work: Work
    replica: Replica
    x: torch.Tensor


class Exports:
    """Parts as a runtime runs them; exported once, and told once if the runtime cannot run them."""

    def __init__(self, runtime: str, threads: int, notify: Callable[[str], None]) -> None:
        self.runtime, self.threads, self.notify = runtime, threads, notify
        self._folder = TemporaryDirectory()
        self._left_out: set[str] = set()
        self.close = self._folder.cleanup

    def run(self, timed: TimedCall, name: str) -> Callable[[], object] | None:
        """Make the forward pass of a part; None for a step, and for what the runtime cannot run, which is told."""
        file = Path(self._folder.name) / f"{name}.pt"
        if timed.kind != "forward" or name in self._left_out:
            return None
        try:
            if not file.exists():
                exported(self.runtime, timed.replica, timed.x, file, self.threads)
            return loaded(self.runtime, timed.x, file, self.threads)
        except CannotRun as error:
            self._left_out.add(name)
            self.notify(f"{name} is left out: {error}")
            return None


def _timed(task: Task, parts: Sequence[Replica], batch: int) -> Iterator[TimedCall]:
    """Generate what is measured: the whole, or part-1 and part-2, on the first `batch` samples, repeated if too few."""
    images = task.data.images
    assert images is not None, "a task with a device has samples"
    numbers = torch.arange(batch, device=images.x.device) % len(images.x)
    raw, y = images.x[numbers], images.y[numbers]
    x, labels = images.prepare(raw), images.targets(raw, y)
    for name, replica in zip(["part-1", "part-2"] if len(parts) > 1 else ["whole"], parts, strict=True):
        yield TimedCall(name, "forward", _inference(replica, x), replica.part.work(batch, passes=1), replica, x)
        node: Node = SERVER if name == "part-2" else 0
        optimiser = task.optimiser(1, node)
        value = Value("batch", samples=batch, content=(x, labels))
        if name == "part-1":
            forward, backward = Forward(), Backward(optimiser)
            work = Work.total([forward.work(replica, value), priced(backward, replica, value)])
            yield TimedCall(name, "step", _client_step(replica, x, forward, backward), work, replica, x)
            x = replica.weights.without_graph(x)
        else:
            train = Train(optimiser)
            yield TimedCall(name, "step", partial(train.run, replica, value), priced(train, replica, value), replica, x)


def _inference(replica: Replica, data: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return replica.weights(data, training=False)

    return run


def _client_step(replica: Replica, data: torch.Tensor, forward: Forward, backward: Backward) -> Callable[[], object]:
    batch = Value("batch", samples=len(data), content=(data, None))
    gradients = Value("gradients", samples=len(data))

    def run() -> None:
        activations, _ = forward.run(replica, batch)
        if gradients.content is None:
            gradients.content = torch.full_like(activations, 1e-3)
        backward.run(replica, gradients)

    return run


def _seconds(run: Callable[[], object], device: torch.device) -> list[float]:
    """Time runs until their median is known to `KNOWN`, after one that loads libraries and memory."""
    taken_s: list[float] = []
    run()
    began_s = time.perf_counter()
    while len(taken_s) < MAX_RUNS:
        started_s = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now_s = time.perf_counter()
        taken_s.append(now_s - started_s)
        enough = len(taken_s) >= MIN_RUNS and (
            now_s - began_s > MAX_S or _spread(taken_s) / len(taken_s) ** 0.5 < KNOWN
        )
        if enough:
            break
    return taken_s


def _spread(taken_s: Sequence[float]) -> float:
    """Half of the distance between the quartiles, over the median."""
    low, middle, high = statistics.quantiles(taken_s, n=4)
    return (high - low) / 2 / middle
