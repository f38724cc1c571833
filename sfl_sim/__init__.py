"""Simulate split federated learning: real PyTorch training in simulated-time order.

results = sfl_sim.run("heterogeneous_bw", overrides=["train.rounds=5"])
results.rounds.groupby(["variant", "seed"])["accuracy"].last()
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfl_sim.api import Results, Served, WhatIf, advise, load, privacy, reprice, run, serve, whatif
    from sfl_sim.errors import ScenarioError
    from sfl_sim.scenario.sections import Scenario
    from sfl_sim.studies.advise import Advice
    from sfl_sim.studies.launch import TrialsFailed

__all__ = [
    "Advice",
    "Results",
    "Scenario",
    "ScenarioError",
    "Served",
    "TrialsFailed",
    "WhatIf",
    "advise",
    "load",
    "privacy",
    "reprice",
    "run",
    "serve",
    "whatif",
]


def __getattr__(name: str) -> Any:
    """Import on first use: the command line answers `--help` without waiting for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'sfl_sim' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("sfl_sim.errors" if name == "ScenarioError" else "sfl_sim.api"), name)
