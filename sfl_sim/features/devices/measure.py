"""Measurement of a scenario's own network on this machine: the whole and its parts, forward passes and whole steps."""

from __future__ import annotations

import csv
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TextIO

import torch

from sfl_sim.build.setup import Setup
from sfl_sim.features.devices.fit import UNKNOWN, work_cells
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
MAX_S = 2.0
"""Seconds after which a time that spreads more is taken as it is."""
SMALL_LR = 1e-9
"""Learning rate, so small that weights stay what they are however often a step runs."""

TimedCall = tuple[str, str, Callable[[], object], Work]
"""A part's name, `forward` or `step`, what runs it once, and its work."""


def measure(
    scenario: Scenario,
    out: TextIO,
    *,
    machine: str | None = None,
    cuts: Sequence[int | str] | None = None,
    batches: Sequence[int] = BATCHES,
    blank: bool = False,
    device: torch.device,
    notify: Callable[[str], None] = lambda row: None,
) -> None:
    """Measure the network as a whole, and its parts at each cut, with mini-batches of each size; writes a table.

    These are the steps that a simulation runs. A step is the forward pass in training mode, the backward pass and the
    optimiser's step; that of part-1 gets its gradient from the cut. A row is written as soon as it is known, so that
    what is interrupted keeps its rows. Rows of several machines may be joined to one table.

    Args:
        out: CSV file.
        machine: what the rows call this machine; by default its name in the network.
        cuts: layers after which to cut; None for all.
        blank: write rows without times, to be filled in with what another runtime took.
        device: what computes.

    Raises:
        ScenarioError: the scenario cannot be used, or has no such cut.
    """
    setup = Setup(scenario, pixels=False)
    task = setup.method(device).task
    task = replace(task, lr=SMALL_LR, lr_schedule=None, client_lr=(), server={**task.server, "lr": SMALL_LR})
    network = task.network
    places = range(1, len(network)) if cuts is None else [network.cut_at(cut, "--cuts") for cut in cuts]
    keep_freed_memory()
    PRECISIONS[setup.scenario.train.precision].activate()
    columns = ["device", "network", "part", "cut", "batch", "forward_ms", "step_ms", "spread", "runs", *WORK_COLUMNS]
    table = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    table.writeheader()
    for cut in [None, *places]:
        parts = network.split(*([] if cut is None else [cut]), seed=task.seed, device=device)
        for batch in batches:
            if batch == 1 and network.needs_batches_of_two:
                notify("a mini-batch of 1 is left out: batch norm cannot train on it")
                continue
            for part, kind, run, work in _timed(task, parts, batch):
                row = {
                    "device": machine or platform.node(), "network": network.name, "part": part,
                    "cut": "" if cut is None else cut, "batch": batch,
                    **work_cells(work),
                }  # fmt: skip
                what = f"{part}{'' if cut is None else f' at cut {cut} {network.layers[cut - 1].name}'}, {kind}"
                if blank:
                    table.writerow(row | {f"{kind}_ms": UNKNOWN})
                    continue
                taken_s = _seconds(run, device)
                middle_ms = 1000 * statistics.median(taken_s)
                told = {f"{kind}_ms": f"{middle_ms:.6g}", "spread": f"{_spread(taken_s):.3f}", "runs": len(taken_s)}
                table.writerow(row | told)
                out.flush()
                notify(f"{what} of {batch}: {middle_ms:.3g} ms")


def _timed(task: Task, parts: Sequence[Replica], batch: int) -> Iterator[TimedCall]:
    """Generate what is measured: the whole, or part-1 and part-2, on the first `batch` samples, repeated if too few."""
    images = task.data.images
    assert images is not None, "a task with a device has samples"
    numbers = torch.arange(batch, device=images.x.device) % len(images.x)
    raw, y = images.x[numbers], images.y[numbers]
    data, labels = images.prepare(raw), images.targets(raw, y)
    for name, replica in zip(["part-1", "part-2"] if len(parts) > 1 else ["whole"], parts, strict=True):
        yield name, "forward", _inference(replica, data), replica.part.work(batch, passes=1)
        node: Node = SERVER if name == "part-2" else 0
        optimiser = task.optimiser(1, node)
        value = Value("batch", samples=batch, content=(data, labels))
        if name == "part-1":
            forward, backward = Forward(), Backward(optimiser)
            work = Work.total([forward.work(replica, value), priced(backward, replica, value)])
            yield name, "step", _client_step(replica, data, forward, backward), work
            data = replica.weights.without_graph(data)
        else:
            train = Train(optimiser)
            yield name, "step", lambda: train.run(replica, value), priced(train, replica, value)  # noqa: B023  (run at once)


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
