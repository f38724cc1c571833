"""Valid scenarios drawn from everything that shapes a timeline: methods, orders, servers, links, fleets, choices."""

import random

from sfl_sim.methods import METHODS

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
PARTITIONS = [{"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.5}, {"kind": "quantity_skew", "beta": 2.0},
              {"kind": "dominant_label", "p": 0.8, "phi": 1}]  # fmt: skip
AVAILABILITY = [None, None, AWAY | {"lost": "wait"}, AWAY | {"lost": "drop"},
                AWAY | {"lost": "deadline", "deadline_s": 20.0}]  # fmt: skip


def draw_scenario(rng: random.Random) -> dict:
    """Draw a scenario of few rounds; it may be refused, as not everything goes with everything."""
    pick, name = rng.choice, rng.choice([*METHODS])
    n, share = rng.randint(3, 12), pick([0.4, 0.7, 1.0])
    availability = pick(AVAILABILITY)
    clients = {
        "count": n if availability is None else 5 * n,
        "participation": share,
        "overcommit": pick([0, 0, 0, 1]),
        "choice": pick([None, None, None, "tiers"]),
        "compute": {"profile": "ai_benchmark", "scale": pick([1e-5, 1e-4]), "jitter": pick([0.0, 0.2])},
        "network": {"profile": "mobiperf", "scale": pick([0.003, 0.05]), "latency_s": pick([0.0, 0.03]),
                    "trace": pick([None, "hsdpa_bus"]), "shared": pick(SHARED),
                    "overhead": pick([None, {"share": 0.05, "message_bytes": 40}])},
        "power": pick([None, {"compute_w": 2.0, "radio": "wifi", "idle_w": 0.1}]),
        "availability": availability,
    }  # fmt: skip
    return {
        "name": "drawn",
        "seed": rng.randint(0, 10**6),
        "data": {"name": "synthetic", "shape": [1, 8, 8], "samples": 40 * clients["count"], "test_samples": 20,
                 "partition": pick(PARTITIONS)},
        "model": {"name": "cnn_small", "cut": 1},
        "clients": clients,
        "server": {"speedup": pick([1.0, 20.0]), "workers": pick([1, 1, 2, "unlimited"]), **pick(ORDERS),
                   "include_model_exchange": pick([True, True, False])},
        "servers": pick(SERVERS),
        "method": {"name": name},
        "train": {"rounds": 2, "batch_size": pick([8, 16]), "local_epochs": pick([1, 2]), "momentum": pick([0.0, 0.9]),
                  "batches": pick(["epochs", "full"])},
        "wire": pick([{}, {}, {"up": {"kind": "int", "bits": 8}}]),
    }  # fmt: skip
