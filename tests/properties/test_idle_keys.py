"""No key in silence: with every method, a key that a section accepts changes what is learned or when, or is refused, or
a warning names it.

It is tried in a world of four clients, of which three take part in a round, with each key set as `CHANGED` says.
"""

import json
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from drawn import drawn

from sfl_sim.build.checks import check_effects
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.schema import json_schema, members
from sfl_sim.studies.train import check

WORLD = {
    "data.name": "synthetic",
    "data.shape": [1, 4, 4],
    "data.n_labels": 3,
    "data.samples": 80,
    "data.separation": 2.0,
    "data.partition": {"kind": "dirichlet", "alpha": 1.0},
    "clients.count": 4,
    "clients.participation": 0.75,
    "clients.compute.macs_per_s": [1e5, 3e5, 2e5, 4e5],
    "clients.network": {"uplink_bps": [1e6, 2e6, 3e6, 4e6], "downlink_bps": [2e5, 2e6, 1e6, 4e6]},
    "server.speedup": 0.5,
    "train.rounds": 3,
    "train.batch_size": 4,
    "train.momentum": 0.5,
    "train.lr": 0.01,
    "train.on_nan": "skip",
}
POWER = {"clients.power": {"compute_w": 2.0, "uplink_w": 1.0, "downlink_w": 1.0}}
RADIO = {"clients.power": {"compute_w": 2.0, "radio": "lte"}}
SHARED = {"clients.network.shared": {"access_points": 1, "capacity_bps": 1e6}, "clients.compute.macs_per_s": 1e9}
AWAY = {"clients.availability": {"profile": "flash", "lost": "wait"}, "clients.participation": 1.0}
DRAWN_LINKS = {"clients.network": {"profile": "mobiperf"}, "clients.compute": {"profile": "ai_benchmark"}}
HOT = {"clients.compute.throttling": {"floor": 0.5, "warm_up_s": 1.0, "cool_down_s": 100.0}}
EDGE = {"servers": {"edge": {"count": 2, "speedup": 0.5}}}
CHAIN = {"servers": {"edge": {"count": 2, "cut": 3}}}
BACKBONE = {"servers": {"edge": {"count": 2, "backbone": {"uplink_bps": 1e6, "downlink_bps": 1e6}}}}
ADAPTERS = {"lora": {"rank": 2, "targets": ["conv2", "fc"]}}

CHANGED: dict[str, Any] = {
    "seed": 1,
    "model.name": "cnn_full",
    "model.init.seed": 3,
    "model.cut": 2,
    "clients.count": (5, {"clients.compute.macs_per_s": 1e5, "clients.network.uplink_bps": 1e6}),
    "clients.participation": 0.5,
    "clients.choice": {"kind": "tiers", "tiers": 2},
    "clients.overcommit": 1,
    "clients.compute.profile": ({"profile": "ai_benchmark"}, {}, "clients.compute"),
    "clients.compute.macs_per_s": 1e5,
    "clients.compute.scale": 0.5,
    "clients.compute.cost": "phones",
    "clients.compute.training_factor": 2.0,
    "clients.compute.sample_s": 0.01,
    "clients.compute.jitter": 0.5,
    "clients.compute.throttling.floor": (0.2, HOT),
    "clients.compute.throttling.warm_up_s": (0.1, HOT),
    "clients.compute.throttling.cool_down_s": (0.1, HOT),
    "clients.network.profile": ({"profile": "mobiperf"}, {}, "clients.network"),
    "clients.network.uplink_bps": 1e5,
    "clients.network.downlink_bps": 1e5,
    "clients.network.trace": "hsdpa_bus",
    "clients.network.latency_s": 0.1,
    "clients.network.scale": 0.5,
    "clients.network.up_down_correlation": (0.5, DRAWN_LINKS),
    "clients.network.compute_correlation": (1.0, DRAWN_LINKS),
    "clients.network.overhead.share": 0.5,
    "clients.network.overhead.message_bytes": 100.0,
    "clients.network.shared.access_points": (3, SHARED),
    "clients.network.shared.capacity_bps": (1e5, SHARED),
    "clients.network.shared.duplex": ("full", SHARED),
    "clients.network.shared.backhaul_bps": (1e5, SHARED),
    "clients.power.compute_w": (3.0, POWER),
    "clients.power.radio": ("wifi", RADIO),
    "clients.power.uplink_w": (3.0, POWER),
    "clients.power.downlink_w": (3.0, POWER),
    "clients.power.idle_w": (3.0, POWER),
    "clients.availability.profile": ("fedscale", AWAY | {"clients.availability.begins_at_h": 5.0}),
    "clients.availability.lost": ({"lost": "deadline", "deadline_s": 0.5}, {}, "clients.availability"),
    "clients.availability.deadline_s": (0.01, {"clients.availability": {"lost": "deadline", "deadline_s": 0.5}}),
    "clients.availability.begins_at_h": (7.0, AWAY),
    "server.speedup": 0.25,
    "server.macs_per_s": ({"macs_per_s": 1e4}, {}, "server"),
    "server.cost": "phones",
    "server.call_s": 0.5,
    "server.workers": 3,
    "server.order": "cyclic_reverse",
    "server.order: client_level": "client_level",
    "server.burst": (2, {"server.order": "cyclic"}),
    "server.max_wait_s": (10.0, {"server.order": "bounded_wait", "server.max_wait_s": 0.0}),
    "server.include_model_exchange": False,
    "servers.edge.count": (1, EDGE),
    "servers.edge.clients": ([1, 1, 1, 2], EDGE),
    "servers.edge.cut": (4, CHAIN),
    "servers.edge.average_every": (2, EDGE),
    "servers.edge.speedup": (0.1, EDGE),
    "servers.edge.macs_per_s": ({"count": 2, "macs_per_s": 1e4}, EDGE, "servers.edge"),
    "servers.edge.cost": ("phones", EDGE),
    "servers.edge.call_s": (0.5, EDGE),
    "servers.edge.workers": (3, EDGE),
    "servers.edge.order": ("cyclic_reverse", EDGE),
    "servers.edge.burst": (2, {"servers": {"edge": {"count": 2, "order": "cyclic"}}}),
    "servers.edge.max_wait_s": (9.0, {"servers": {"edge": {"count": 2, "order": "bounded_wait", "max_wait_s": 0.0}}}),
    "servers.edge.backbone.uplink_bps": (1e4, BACKBONE),
    "servers.edge.backbone.downlink_bps": (1e4, BACKBONE),
    "servers.edge.backbone.latency_s": (0.5, BACKBONE),
    "servers.edge.backbone.scale": (0.5, BACKBONE),
    "train.rounds": 2,
    "train.stop.time_s": 0.001,
    "train.batch_size": 3,
    "train.local_epochs": 2,
    "train.class_weights": [1.0, 2.0, 3.0],
    "train.label_smoothing": 0.2,
    "train.lr": 0.005,
    "train.schedule": "cosine",
    "train.lr_decay": 0.5,
    "train.lr_min": (0.008, {"train.lr_decay": 0.5}),
    "train.optimizer": "nag",
    "train.momentum": 0.9,
    "train.weight_decay": 0.1,
    "train.clip_norm": 0.01,
    "train.server.lr": 0.005,
    "train.server.optimizer": "nag",
    "train.server.momentum": 0.9,
    "train.server.weight_decay": 0.1,
    "train.batches": ("full", {"train.local_epochs": 2}),
    "train.drop_last": True,
    "train.agg_weights": "uniform",
    "train.precision": "float64",
    "wire.up": "int4",
    "wire.down": "int4",
    "wire.update": "int4",
    "wire.error_feedback": (True, {"wire.update": {"kind": "topk", "keep": 0.1}}),
    "lora.rank": (1, ADAPTERS),
    "lora.alpha": (1.0, ADAPTERS),
    "lora.targets": (["fc"], ADAPTERS),
    "lora.aggregate": ("ffa", ADAPTERS),
    "lora.preinstalled": (True, ADAPTERS),
    "privacy.noise.clip": 0.01,
    "privacy.noise.sigma": 1.0,
    "privacy.gradient_noise.clip": 1e-4,
    "privacy.gradient_noise.sigma": 1.0,
    "privacy.nopeek": 0.5,
}
"""A value of each key other than that in `WORLD`, and what else is set with and without it."""


ELSEWHERE = {
    "data": "decides who holds what before a method is asked",
    "name": "is a name",
    "repeats": "counts runs",
    "grid": "makes variants",
    "report": "shows",
    "serving": "is asked of a trained model",
    "benchmark": "compares",
    "method": "is what everything here is tried with; its options are in tests/methods",
    "clients.choice": "has the options of its kind",
    "clients.availability.lost": "is tried as a section",
    "model.factory": "is code of a user's own",
    "model.path": "is a file",
    "model.init.run": "is a file",
    "model.cut": "is one for all here",
    "train.on_round_end": "is code of a user's own",
    "train.loss": "is what fits the data",
    "train.ignore_index": "is of tokens and pixels",
    "train.stop": "is tried by one of its rules",
    "train.on_nan": "matters where a loss is not finite",
    "train.max_graphs": "decides how this machine computes",
    "train.schedule": "has the options of its kind",
    "train.batch_size": "is one for all here",
    "train.local_epochs": "is one for all here",
    "train.lr": "is one for all here",
    "server.recorded": "is a file",
    "servers.edge.recorded": "is a file",
    "servers.edge.reach_s": "is a file",
    "servers.edge.outages": "is in tests/methods/test_several_servers.py",
    "servers.edge.backbone": "is a section as of clients",
    "clients.network.shared": "may have two directions",
    "wire": "has the options of its codecs",
    "wire.at_inference": "matters to accuracy alone",
}
"""Keys, or sections, of which other tests ask, and why."""


def outcome(method: str, beside: dict[str, Any]) -> Any:
    """What a run has learned, when, and for how many joules; a text with the refusal if it is refused."""
    values: dict[str, Any] = {}
    for key, given in [*WORLD.items(), ("method.name", method), *beside.items()]:
        *sections, last = key.split(".")
        section = values
        for step in sections:
            section = section.setdefault(step, {})
        section[last] = deepcopy(given)
    try:
        study = parse(values)
        check_effects(study.variants)
        run = Experiment(study.variants[0].scenario, torch.device("cpu"))
        for _ in run.rounds():
            pass
    except ScenarioError as error:
        return f"refused: {error}"
    warnings = [line for line in check(study, None, Settings(timing_only=True)) if "no effect" in line]
    return run.timeline_digest, run.weights_digest(), None if run.joule is None else run.joule.tobytes(), warnings


@cache
def usual(method: str, beside: str) -> Any:
    """The outcome without the key."""
    return outcome(method, json.loads(beside))


def is_silent(method: str, entry: str) -> bool:
    """Whether a method accepts a key, and nothing comes of it."""
    value, beside, *at = CHANGED[entry] if isinstance(CHANGED[entry], tuple) else (CHANGED[entry], {})
    key = at[0] if at else entry.partition(":")[0]
    without = usual(method, json.dumps(beside))
    assert beside or not isinstance(without, str), without
    return not isinstance(without, str) and outcome(method, {**beside, key: value}) == without


IN_STEP = ("cyclesl", "epsl", "locfedmix", "mergesfl", "s2fl", "splitfrozen")
SAME = {
    **{(name, "clients.network.shared.duplex"): "all uploads have ended when a download begins" for name in IN_STEP},
    ("fednag", "train.optimizer"): "its steps are Nesterov's anyway",
}
"""Cases in which the value of `CHANGED` comes to the same, and why."""
CASES = [(method, entry) for method in METHODS for entry in CHANGED if (method, entry) not in SAME]
TONIGHT = set(drawn(CASES, 12, "idle keys"))


@pytest.mark.night
@pytest.mark.parametrize(
    ("method", "entry"), [pytest.param(*case, marks=[pytest.mark.drawn] if case in TONIGHT else []) for case in CASES]
)
def test_no_method_accepts_a_key_in_silence(method, entry):
    assert not is_silent(method, entry)


SILENT_ONCE = [
    *((name, "clients.choice") for name in ("fedbuff", "fedasync", "gas")),
    *((name, "server.order: client_level") for name in ("fedavg", "splitfed_v1")),
    ("fedavg", "server.call_s"),
    ("fedavg", "server.workers"),
    ("fedavg", "model.cut"),
    *((name, "train.agg_weights") for name in ("ho_sfl", "mu_splitfed", "korea", "splitnn", "splitfrozen", "fedbuff")),
    ("s2fl", "train.server.momentum"),
    ("ho_sfl", "server.include_model_exchange"),
]


@pytest.mark.parametrize(("method", "entry"), SILENT_ONCE)
def test_keys_that_were_accepted_in_silence_are_no_more(method, entry):
    assert not is_silent(method, entry)


def keys_of(schema: dict[str, Any], node: dict[str, Any], name: str = "") -> list[str]:
    """The dotted keys of a scenario that are no sections, with the tier `edge` for all."""
    found = []
    for key, child in node.get("properties", {}).items():
        path = f"{name}.{key}".lstrip(".")
        sections = [one for one in members(child, schema) if "properties" in one]
        if key == "servers":
            path, sections = "servers.edge", [schema["$defs"]["TierSection"]]
        found += [below for one in sections for below in keys_of(schema, one, path)] or [path]
    return found


def test_every_key_of_a_scenario_is_tried_or_said_to_be_tried_elsewhere():
    schema = json_schema({}, {})
    keys = set(keys_of(schema, schema))
    tried = {entry.partition(":")[0] for entry in CHANGED}
    beyond = tuple(f"{key}." for key in ELSEWHERE)
    assert {key for key in keys - tried if key not in ELSEWHERE and not key.startswith(beyond)} == set()
