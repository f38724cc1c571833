"""Runs a scenario on real processes, on this machine or on others, and writes the folder of a run whose time is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from sfl_sim.engine.news import Failed, Notify, Warned
from sfl_sim.engine.setup import setup_of
from sfl_sim.engine.trial import Settings, attempt
from sfl_sim.errors import ScenarioError
from sfl_sim.live.links import Key
from sfl_sim.live.local import LocalNodes
from sfl_sim.live.machines import Machines
from sfl_sim.live.run import Live, OfScenario, check_live
from sfl_sim.ops import SERVER
from sfl_sim.scenario.load import Study, Variant
from sfl_sim.scenario.sections import Scenario
from sfl_sim.store import RunFolder, read_failure
from sfl_sim.studies.launch import Outcome
from sfl_sim.studies.train import run_study

LOCAL = "tcp://127.0.0.1"
START_S = 120.0
"""How long processes of this machine may take to begin."""


@dataclass(frozen=True)
class Nodes:
    """Where the nodes of a live run are.

    Attributes:
        listen: `host:port` at which the driver waits for agents; None: nodes are processes of this machine.
        key: file of the key that agents show; it is written if it is not there.
        wait_s: how long the driver waits for them.
        ray: address of a Ray cluster that places the agents; None: they are started by hand.
    """

    listen: str | None = None
    key: Path | None = None
    wait_s: float = 600.0
    ray: str | None = None


def live(
    study: Study,
    out: Path | None,
    *,
    nodes: Nodes = Nodes(),
    emulate: bool = True,
    threads: int = 1,
    notify: Notify,
) -> Outcome:
    """Run all trials of `study` on nodes, one after another, into the folder `out` (default: `reports/<name>_live`).

    Args:
        emulate: let devices and links of this machine seem as slow as the scenario's.
        threads: of a node.

    Raises ScenarioError for what cannot be part of a live run, and TrialsFailed after the finished trials have been
    published.
    """
    for variant in study.variants:
        with variant.places.locating():
            check_live(variant.scenario)
            if (
                nodes.listen
                and nodes.ray is None
                and len(setup_of(variant.scenario, pixels=True).shares)
                != len(setup_of(study.variants[0].scenario, pixels=True).shares)
            ):
                raise ScenarioError("must be the same in all variants, whose nodes are the same", key="clients.count")
    settings = Settings(device="cpu", threads=threads, backend="live", jobs=1)
    trials = partial(_one_by_one, nodes=nodes, emulate=emulate)
    renamed = replace(study, name=f"{study.name}_live")
    return run_study(renamed, out, settings, notify, trials)


def _one_by_one(
    variants: Mapping[int, Variant], folder: RunFolder, settings: Settings, notify: Notify, nodes: Nodes, emulate: bool
) -> None:
    for number, variant in variants.items():
        scenario = variant.scenario
        with gathered(scenario, nodes, settings.threads) as machines:
            trial = Live(machines)
            measured = trial.rehearse(scenario)
            if emulate:
                trial.emulate(scenario, measured)
                if trial.slowdown > 1:
                    seen = f"{trial.slowdown:.3g} times as slow as in the scenario"
                    notify(Warned(number, f"this machine emulates it {seen}; its seconds are told as the scenario's"))
            attempt(number, variant, folder.trial_folder(number), settings, notify, trial.experiment)
        if failure := read_failure(folder.trial_folder(number)):
            notify(Failed(number, failure))


@contextmanager
def gathered(scenario: Scenario, nodes: Nodes, threads: int = 1) -> Iterator[Machines]:
    """Have the nodes of a scenario, ready to run it; those of this machine end with the block."""
    setup = setup_of(scenario, pixels=True)
    n, recipe = len(setup.shares), OfScenario(setup.scenario)
    machines = Machines(Key.new(), n)
    local = LocalNodes(machines.nodes, machines.listen(LOCAL), machines.key, recipe, LOCAL)
    try:
        machines.gather(START_S, local.why_gone)
        machines.begin(recipe, threads=threads, skip_nan=False, host="127.0.0.1")
        yield machines
    finally:
        machines.close()
        local.end()


__all__ = ["SERVER", "Nodes", "gathered", "live", "torch"]
