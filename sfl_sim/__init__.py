"""Simulate split federated learning: real PyTorch training in simulated-time order.

>>> import sfl_sim
>>> results = sfl_sim.run("heterogeneous_bw", overrides=["train.rounds=1", "repeats=1"], timing_only=True,
...                       out="/tmp/sfl-sim-doctest")
>>> sorted(results.rounds["variant"])
['splitfed_v1', 'splitfed_v2, cyclic', 'splitfed_v2, fcfs']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfl_sim.api import Results, Scenario, run
    from sfl_sim.errors import ScenarioError

__all__ = ["Results", "Scenario", "ScenarioError", "run"]

_HOMES = {"Results": "api", "Scenario": "api", "run": "api", "ScenarioError": "errors"}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line answers `--help` without waiting for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sfl_sim' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"sfl_sim.{_HOMES[name]}"), name)
