"""Presets: names that stand for several settings at once, in `method` and in `server.order`.

Those of a method are replaced when a scenario is read, so that a run with the name and one with its settings are the
same. Those of an order (docs/methods/orders.md#readings-of-hydra) follow keys that a grid may vary: a stored scenario
keeps the name, and `expand` puts the settings in its place where a scenario is put to use.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import Section
from sfl_sim.scenario.sections import Scenario


class MethodPreset(NamedTuple):
    """A method with settings, such as SplitLoRA: SplitFedV2 with adapters.

    Attributes:
        about, paper: what it is, and where it comes from.
        host: the method.
        settings: of sections, where the scenario does not give any itself.
    """

    about: str
    paper: str
    host: str
    settings: Mapping[str, Mapping[str, Any]]


METHOD_PRESETS = {
    "local_loss": MethodPreset(
        "cse_fsl whose clients send all activations, with a copy of part-2 for each, averaged every round.",
        'Han et al., "Accelerating Federated Learning with Split Learning on Locally Generated Losses", 2021',
        "cse_fsl",
        {"method": {"server": "copies"}},
    ),
    "splitlora": MethodPreset(
        "splitfed_v2 with adapters of rank 8 on q and v, uniform averages and AdamW.",
        'Lin et al., "SplitLoRA: A Split Parameter-Efficient Fine-Tuning Framework for Large Language Models", 2024',
        "splitfed_v2",
        {
            "lora": {"rank": 8, "alpha": 128.0, "targets": ["q", "v"], "aggregate": "separate"},
            "train": {"agg_weights": "uniform", "optimizer": "adamw"},
        },
    ),
}
"""Presets by the name that `method` takes."""
USUAL = {"agg_weights": "samples", "optimizer": "sgd"}
"""Defaults that a preset replaces even where they are written, as a stored scenario writes them all."""


def with_method_preset(values: Any) -> Any:
    """Return a scenario's values with a preset of a method replaced by its settings; all others as they are."""
    method = values.get("method") if isinstance(values, Mapping) else None
    name = method.get("name") if isinstance(method, Mapping) else method
    if not (isinstance(name, str) and name in METHOD_PRESETS):
        return values
    named = METHOD_PRESETS[name]
    result = {**values, "method": {**(method if isinstance(method, Mapping) else {}), "name": named.host}}
    for section, wanted in deepcopy(dict(named.settings)).items():
        own = result.get(section) or {}
        if isinstance(own, Mapping):
            given = {key: value for key, value in own.items() if key not in wanted or USUAL.get(key) != value}
            result[section] = {**own, **wanted, **given}
    return result


def expand(scenario: Scenario) -> Scenario:
    """Return the scenario with the preset of its order replaced by its settings; itself if its order is no preset.

    Raises ScenarioError if the scenario sets a key that the preset sets, or lacks one that the preset needs.
    """
    preset = ORDER_PRESETS.get(scenario.server.order)
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


ORDER_PRESETS: dict[str, Callable[[Scenario], Scenario]] = {"hydra_code": hydra_code, "client_level": client_level}
"""Presets by the name that `server.order` takes."""


def _cyclic(scenario: Scenario, burst: int | str) -> Scenario:
    _check_left_to(scenario.server.order, "server.burst", scenario.server.burst)
    _check_left_to(scenario.server.order, "server.max_wait_s", scenario.server.max_wait_s)
    server = scenario.server.model_copy(update={"order": "cyclic", "burst": burst})
    return scenario.model_copy(update={"server": server})


def _check_left_to(preset: str, key: str, found: object) -> None:
    if found is not None:
        raise ScenarioError(f"cannot be given together with server.order {preset}, which sets it", key=key, found=found)
