"""Valid scenarios drawn from everything that shapes a timeline: methods, orders, servers, links, fleets, choices."""

import random

from sfl_sim.build.checks import check_effects
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.scenario.load import Study, parse
from sfl_sim.studies.train import check

AWAY = {"profile": "flash", "begins_at_h": 12}
ORDERS = [
    {"order": "fcfs"}, {"order": "shortest_job"}, {"order": "label_aware"}, {"order": "cyclic"},
    {"order": "cyclic", "burst": 2}, {"order": "cyclic_reverse"}, {"order": "random_job"}, {"order": "random_sweep"},
    {"order": "random_client"}, {"order": "bounded_wait", "max_wait_s": 0.3},
]  # fmt: skip
SHARED = [
    None,
    None,
    {"access_points": 2, "capacity_bps": 1e6},
    {"access_points": 2, "capacity_bps": 1e6, "duplex": "half"},
]
SERVERS = [{}, {}, {"edge": {"count": 2}}, {"edge": {"count": 2, "order": "cyclic"}},
           {"edge": {"count": 2, "cut": 2}}, {"edge": {"count": 3, "outages": AWAY}}]  # fmt: skip
AVAILABILITY = [None, None, AWAY | {"lost": "wait"}, AWAY | {"lost": "drop"},
                AWAY | {"lost": "deadline", "deadline_s": 20.0}]  # fmt: skip
CHOICES = [None, "tiers", {"kind": "tiers", "by": "observed"}]
LOSSES = [{}, {"class_weights": "balanced"}, {"label_smoothing": 0.1},
          {"class_weights": [1.0, 2.0, 3.0], "label_smoothing": 0.1}]  # fmt: skip
LABELS = 3
NEEDS = {"korea": {"participation": 0.7}, "fednag": {"momentum": 0.9}}
"""What a method cannot do without."""
KEYS = 20
"""Keys that may be refused before a scenario is accepted; it has fewer."""


def draw_scenario(rng: random.Random, is_trained: bool) -> dict:
    """Draw a scenario of few rounds; it may be refused, as not everything goes with everything."""
    pick, name = rng.choice, rng.choice([*METHODS])
    needs, options = NEEDS.get(name, {}), pick(METHODS[name].examples or [None])
    availability = pick(AVAILABILITY)
    n = LABELS * rng.randint(1, 3) * (1 if availability is None else 4)
    clients = {
        "count": n,
        "participation": needs.get("participation", pick([0.4, 0.7, 1.0])),
        "overcommit": pick([0, 0, 1]),
        "choice": pick([*CHOICES, "oort"] if is_trained else CHOICES),
        "compute": {"profile": "ai_benchmark", "scale": pick([1e-5, 1e-4]), "jitter": pick([0.0, 0.2])},
        "network": {"profile": "mobiperf", "scale": pick([0.003, 0.05]), "latency_s": pick([0.0, 0.03]),
                    "trace": pick([None, "hsdpa_bus"]), "shared": pick(SHARED),
                    "overhead": pick([None, {"share": 0.05, "message_bytes": 40}])},
        "power": pick([None, {"compute_w": 2.0, "radio": "wifi", "idle_w": 0.1}]),
        "availability": availability,
    }  # fmt: skip
    partitions = [{"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.5, "min_size": 2},
                  {"kind": "quantity_skew", "beta": 2.0, "min_size": 2},
                  {"kind": "dominant_label", "p": 0.8, "phi": n // LABELS}]  # fmt: skip
    return {
        "name": "drawn",
        "seed": rng.randint(0, 10**6),
        "data": {"name": "synthetic", "shape": [1, 8, 8], "n_labels": LABELS, "samples": 24 * n, "test_samples": 20,
                 "partition": pick(partitions)},
        "model": {"name": "cnn_small", "cut": 1},
        "clients": clients,
        "server": {"speedup": pick([1.0, 20.0]), "workers": pick([1, 1, 2, "unlimited"]), **pick(ORDERS),
                   "include_model_exchange": pick([True, True, False])},
        "servers": pick(SERVERS),
        "method": {"name": name, **(options.model_dump(exclude_unset=True) if options else {})},
        "train": {"rounds": 2, "batch_size": pick([8, 16]), "local_epochs": pick([1, 2]), "on_nan": "skip",
                  "momentum": needs.get("momentum", pick([0.0, 0.9])), "batches": pick(["epochs", "full"]),
                  **pick(LOSSES)},
        "wire": pick([{}, {}, {"up": {"kind": "int", "bits": 8}}]),
    }  # fmt: skip


def accepted(scenario: dict) -> Study:
    """Return the study of a scenario, from which every key that is refused is taken away."""
    for _ in range(KEYS):
        try:
            study = parse(scenario)
            check_effects(study.variants)
            check(study)
        except ScenarioError as error:
            take_away(scenario, error)
        else:
            return study
    raise AssertionError(f"refused without end: {scenario}")


def take_away(scenario: dict, error: ScenarioError) -> None:
    """Take the key that an error names away, or the section that has it where the key has its default."""
    path = "servers" if error.key == "method.name" else str(error.key)
    while path:
        *sections, last = path.split(".")
        holder = scenario
        for name in sections:
            holder = holder.get(name) or {}
        if holder.pop(last, None) is not None:
            return
        path = ".".join(sections)
    raise AssertionError(f"nothing to take away: {error}")
