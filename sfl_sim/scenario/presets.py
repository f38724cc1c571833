"""Presets: values of `server.order` that stand for several settings at once (docs/methods/orders.md#readings-of-hydra).

A stored scenario keeps a preset's name; `expand` puts the settings in its place where a scenario is put to use.
"""

from __future__ import annotations

from collections.abc import Callable

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import Section
from sfl_sim.scenario.sections import Scenario


def expand(scenario: Scenario) -> Scenario:
    """Replace a preset by its settings; gives the scenario itself if its order is no preset.

    Raises ScenarioError if the scenario sets a key that the preset sets, or lacks one that the preset needs.
    """
    preset = PRESETS.get(scenario.server.order)
    return preset(scenario) if preset else scenario


def hydra_code(scenario: Scenario) -> Scenario:
    """Hydra's released code: one client per label in cyclic order, the partition's phi as its burst, uniform averages.

    A scenario that was stored names `train.agg_weights` in any case, so this key is not refused but replaced.
    """
    partition = scenario.data.partition
    phi = getattr(partition, "phi", None)
    if phi is None:
        raise ScenarioError("has no phi, which is the burst of server.order hydra_code", key="data.partition.kind",
                            found=partition.kind, allowed=["dominant_label", "sharding"])  # fmt: skip
    _check_left_to("hydra_code", "clients.count", scenario.clients.count)
    changes: dict[str, Section] = {
        "data": scenario.data.model_copy(update={"partition": partition.model_copy(update={"phi": 1})}),
        "train": scenario.train.model_copy(update={"agg_weights": "uniform"}),
    }
    if scenario.method.name == "hydra":
        if (found := scenario.method.options.get("head_weights")) != "uniform":
            _check_left_to("hydra_code", "method.head_weights", found)
        changes["method"] = scenario.method.model_copy(update={"head_weights": "uniform"})
    return _cyclic(scenario.model_copy(update=changes), phi)


def client_level(scenario: Scenario) -> Scenario:
    """Whole rounds of one client after another in cyclic order: `cyclic` with burst `all`."""
    return _cyclic(scenario, "all")


PRESETS: dict[str, Callable[[Scenario], Scenario]] = {"hydra_code": hydra_code, "client_level": client_level}
"""The presets by the name that a scenario gives them."""


def _cyclic(scenario: Scenario, burst: int | str) -> Scenario:
    _check_left_to(scenario.server.order, "server.burst", scenario.server.burst)
    _check_left_to(scenario.server.order, "server.max_wait_s", scenario.server.max_wait_s)
    server = scenario.server.model_copy(update={"order": "cyclic", "burst": burst})
    return scenario.model_copy(update={"server": server})


def _check_left_to(preset: str, key: str, found: object) -> None:
    if found is not None:
        raise ScenarioError(f"cannot be given together with server.order {preset}, which sets it", key=key, found=found)
