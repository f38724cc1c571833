"""Names that stand for a method with settings of its own, such as SplitLoRA for SplitFedV2 with adapters."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple


class NamedSettings(NamedTuple):
    """What a name stands for.

    Attributes:
        about, paper: what it is, and where it comes from.
        host: the method.
        settings: of sections, where the scenario does not give any itself.
    """

    about: str
    paper: str
    host: str
    settings: Mapping[str, Mapping[str, Any]]


NAMES = {
    "local_loss": NamedSettings(
        "cse_fsl whose clients send all activations, with a copy of part-2 for each, averaged every round.",
        'Han et al., "Accelerating Federated Learning with Split Learning on Locally Generated Losses", 2021',
        "cse_fsl",
        {"method": {"server": "copies"}},
    ),
    "splitlora": NamedSettings(
        "splitfed_v2 with adapters of rank 8 on q and v, uniform averages and AdamW.",
        'Lin et al., "SplitLoRA: A Split Parameter-Efficient Fine-Tuning Framework for Large Language Models", 2024',
        "splitfed_v2",
        {
            "lora": {"rank": 8, "alpha": 128.0, "targets": ["q", "v"], "aggregate": "separate"},
            "train": {"agg_weights": "uniform", "optimizer": "adamw"},
        },
    ),
}
"""The names, which `method` takes. The resolved scenario has what they stand for."""
USUAL = {"agg_weights": "samples", "optimizer": "sgd"}
"""Defaults that a name replaces even where they are written, as a stored scenario writes them all."""


def with_named_method(values: Any) -> Any:
    """Return a scenario's values with such a name replaced by what it stands for; all others as they are."""
    method = values.get("method") if isinstance(values, Mapping) else None
    name = method.get("name") if isinstance(method, Mapping) else method
    if not (isinstance(name, str) and name in NAMES):
        return values
    named = NAMES[name]
    result = {**values, "method": {**(method if isinstance(method, Mapping) else {}), "name": named.host}}
    for section, wanted in deepcopy(dict(named.settings)).items():
        own = result.get(section) or {}
        if isinstance(own, Mapping):
            given = {key: value for key, value in own.items() if key not in wanted or USUAL.get(key) != value}
            result[section] = {**own, **wanted, **given}
    return result
