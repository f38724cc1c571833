"""Folders of served requests as `sfl-sim serve` leaves them, made up: a FIFO server behind devices and links."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from stored import assert_described, untold, write_table

from sfl_sim.metrics.serving import summary
from sfl_sim.store.schema import tables

CLIENTS, SAMPLES = 6, 120
FLEET = pd.DataFrame(
    {
        "client": range(CLIENTS), "group": ["slow", "middle", "fast"] * 2, "cut": [1, 2, 3] * 2,
        "front_parameters": [20_000, 90_000, 380_000] * 2, "device_parameters": [26_000, 100_000, 400_000] * 2,
        "server_parameters": [3_800_000, 3_700_000, 3_400_000] * 2, "feature_channels": [64, 128, 256] * 2,
    }
)  # fmt: skip
DEVICE_S, UPLINK_S, SERVER_S = np.array([0.02, 0.012, 0.006] * 2), np.array([0.03, 0.02, 0.01] * 2), 0.02


@dataclass(frozen=True)
class Rule:
    """A threshold: its kind, and its number (None for the oracle)."""

    kind: str
    value: float | None = None


@dataclass(frozen=True)
class Method:
    """A trained method: accuracies of its devices and its server."""

    name: str
    device: float
    server: float


@dataclass(frozen=True)
class World:
    """Served methods: each with each rule at each rate (requests per second of the fleet) with each seed."""

    name: str = "Doors & <windows>"
    methods: tuple[Method, ...] = (Method("splitgp", 0.8, 0.7), Method("harmony <b>", 0.86, 0.82))
    rules: tuple[Rule, ...] = (Rule("oracle"), Rule("offload_rate", 0.3))
    rates: tuple[float, ...] = (20.0, 80.0, 320.0)
    seeds: tuple[int, ...] = (0, 1)
    requests: int = 600
    trained: bool = True
    status: str = "complete"


def write_served(folder: Path, world: World) -> Path:
    """Write the folder of a world."""
    folder.mkdir(parents=True)
    answers = pd.concat([_answers(method, seed) for method in world.methods for seed in world.seeds])
    trials, requests_of = [], []
    for method in world.methods:
        for rule in world.rules:
            series = f"{method.name}, {rule.kind}{'' if rule.value is None else f' {rule.value:g}'}"
            for rate_per_s in world.rates:
                variant = f"{series}, {rate_per_s:g}"
                for seed in world.seeds:
                    own = answers[(answers["variant"] == method.name) & (answers["seed"] == seed)]
                    requests = _requests(world, rule, rate_per_s, own, seed)
                    requests_of.append(requests.assign(variant=variant, seed=seed))
                    trials.append(
                        {
                            "variant": variant, "seed": seed, "series": series, "method": method.name,
                            "trained": method.name if world.trained else None, "threshold": rule.kind,
                            "threshold_value": rule.value, "n_labels": 10, "rho": 0.8 if world.trained else None,
                            "requests": world.requests, "rate_per_s": rate_per_s, "warm_up": 0.1,
                            "capacity_per_s": 1 / SERVER_S, **summary(requests, FLEET, 0.1, workers=1),
                        }
                    )  # fmt: skip
    table = pd.concat(requests_of, ignore_index=True).astype({"variant": "category"})
    write_table(folder, "serving", "requests", table)
    write_table(folder, "serving", "fleet", FLEET.head(0))
    if world.trained:
        write_table(folder, "serving", "answers", answers.astype({"variant": "category"}))
    for trial in trials:
        trial |= untold(tables("serving")["trials"], trial)
        assert_described(tables("serving")["trials"], trial)
    (folder / "serving.json").write_text(json.dumps({"scenario": world.name, "trials": trials}, allow_nan=False))
    (folder / "scenario.yaml").write_text(json.dumps({"name": world.name}))
    (folder / "manifest.json").write_text(json.dumps({"status": world.status}))
    return folder


def _answers(method: Method, seed: int) -> pd.DataFrame:
    """Devices are surer of what they get right; the labels that a client has not seen they get wrong."""
    rng = np.random.default_rng([seed, len(method.name)])
    n = CLIENTS * SAMPLES
    seen = rng.random(n) < 0.6
    label = np.where(seen, 0, rng.integers(1, 10, n))
    right = seen & (rng.random(n) < method.device + 0.1)
    return pd.DataFrame(
        {
            "variant": method.name, "seed": seed, "client": np.repeat(range(CLIENTS), SAMPLES),
            "sample": np.tile(range(SAMPLES), CLIENTS), "label": label, "seen": seen,
            "entropy": np.minimum(rng.exponential(np.where(right, 0.25, 1.1)), 2.3).astype(np.float32),
            "device_correct": right, "server_correct": rng.random(n) < method.server,
        }
    )  # fmt: skip


def _requests(world: World, rule: Rule, rate_per_s: float, answers: pd.DataFrame, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng([seed, round(rate_per_s)])
    n = world.requests
    arrived_s = rng.exponential(1 / rate_per_s, n).cumsum()
    client = rng.integers(0, CLIENTS, n)
    sample = rng.integers(0, SAMPLES, n)
    drawn = answers.iloc[client * SAMPLES + sample]
    threshold, offloaded = _decide(rule, drawn["entropy"].to_numpy(float))
    device_s, uplink_s = DEVICE_S[client] * rng.uniform(1, 2, n), offloaded * UPLINK_S[client] * rng.uniform(1, 3, n)
    queue_s, server_s, downlink_s = np.zeros(n), offloaded * SERVER_S, offloaded * 0.002
    free_s = 0.0
    came_s = arrived_s + device_s + uplink_s
    for i in np.flatnonzero(offloaded)[np.argsort(came_s[offloaded])]:
        queue_s[i] = max(free_s - came_s[i], 0.0)
        free_s = came_s[i] + queue_s[i] + SERVER_S
    correct = np.where(offloaded, drawn["server_correct"], drawn["device_correct"]) if world.trained else [None] * n
    return pd.DataFrame(
        {
            "request": range(n), "client": client, "arrived_s": arrived_s,
            "ended_s": came_s + queue_s + server_s + downlink_s, "offloaded": offloaded,
            "sample": sample if world.trained else -1, "correct": pd.array(correct, "boolean"),
            "threshold": threshold, "device_s": device_s, "uplink_s": uplink_s, "queue_s": queue_s,
            "server_s": server_s, "downlink_s": downlink_s,
        }
    )  # fmt: skip


def _decide(rule: Rule, entropy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The threshold in force at each request, and whether it is offloaded."""
    if rule.kind not in ("offload_rate", "latency_budget"):
        fixed = 0.4 if rule.value is None else rule.value
        return np.full(len(entropy), fixed), entropy >= fixed
    target = rule.value if rule.kind == "offload_rate" else 0.2
    threshold, now = np.empty(len(entropy)), 1.8
    for i, one in enumerate(entropy):
        threshold[i] = now
        now += 0.03 * ((one >= now) - target)
    return threshold, entropy >= threshold
