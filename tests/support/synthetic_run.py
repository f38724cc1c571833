"""A run folder as the store writes it, from a toy world in which times, queues and bytes add up."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from numpy.typing import ArrayLike
from stored import untold, write_table

from sfl_sim.metrics.breakdown import breakdown, traffic
from sfl_sim.metrics.scores import headline, way_to
from sfl_sim.report.frames import Frames
from sfl_sim.store.columns import BREAKDOWN, OP_COLUMNS, OP_DTYPE
from sfl_sim.store.schema import tables

LABELS = ["airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SMASHED_BYTES, MODEL_BYTES, FORWARD_MACS, SERVER_S, AGGREGATE_S = 1_050_000, 320_000, 2.4e9, 0.4, 0.5
TARGET = 0.7
LAYERS = pd.DataFrame(
    {
        "model": "cnn_small", "layer": [1, 2, 3, 4], "name": ["conv1", "conv2", "conv3", "fc"],
        "out_shape": ["16x8x8", "32x4x4", "64x4x4", "10"], "macs": [100, 300, 500, 100],
        "parameters": [160, 4640, 18496, 2570], "activation_bytes": [4096, 2048, 4096, 40],
        "pareto": [True, True, False, False],
    }
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """A variant: how its server takes turns, and how well its labels are learned and kept."""

    name: str
    method: str
    order: str
    ceiling: float
    forgetting: float


@dataclass(frozen=True)
class World:
    """A simulated world and its results."""

    name: str = "heterogeneous_bw"
    variants: tuple[Setting, ...] = (
        Setting("splitfed_v2, fcfs", "splitfed_v2", "fcfs", 0.84, 0.20),
        Setting("splitfed_v2, cyclic", "splitfed_v2", "cyclic", 0.86, 0.30),
        Setting("hydra, cyclic", "hydra", "cyclic", 0.83, 0.06),
    )
    seeds: tuple[int, ...] = (0, 1)
    clients: int = 10
    rounds: int = 30
    batches: int = 8
    trained: bool = True
    status: str = "complete"
    reference: str | None = None


FramesOf = Callable[[World], Frames]
"""Writes the run of a world, and reads its frames."""


ARRIVAL, CYCLIC, HYDRA = (variant.name for variant in World().variants)
NEVER = np.nan
"""The time to a target that is not reached."""


def retold(frames: Frames, **columns: Mapping[str, ArrayLike]) -> Frames:
    """The frames with these numbers in columns of the summary: by variant, one for each of its seeds."""
    summary = frames.summary.copy()
    for column, by_variant in columns.items():
        for name, numbers in by_variant.items():
            summary.loc[summary["variant"] == name, column] = numbers
    return replace(frames, summary=summary)


def write_run(folder: Path, world: World) -> Path:
    """Write a run of `world` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("rounds", "labels", "clients", "layers", "ops", "participants")
    frames_of: dict[str, list[pd.DataFrame]] = {name: [] for name in names}
    summaries = []
    for setting in world.variants:
        for seed in world.seeds:
            place = np.random.default_rng([seed, 0]).permutation(len(LABELS))
            clients = _fleet(world, seed)
            ops = _walk(world, setting, clients, place, seed)
            labels = _labels(world, setting, clients, place, seed)
            rounds = _rounds(world, ops, labels)
            summaries.append(_summary(world, setting, seed, rounds, labels))
            present = ops.loc[ops["client"] >= 0, ["round", "client"]].drop_duplicates()
            ours = {"rounds": rounds, "labels": labels, "clients": clients, "layers": LAYERS, "ops": ops,
                    "participants": present}  # fmt: skip
            for table, frame in ours.items():
                frames_of[table].append(frame.assign(variant=setting.name, seed=seed))
    for table, frames in frames_of.items():
        write_table(folder, "run", table, pd.concat(frames, ignore_index=True))
    _write_texts(folder, world, summaries)
    return folder


def _fleet(world: World, seed: int) -> pd.DataFrame:
    """Clients with log-normal speeds and rates, each with a dominant label."""
    rng = np.random.default_rng([seed, 1])
    uplink_bps = 9e6 * rng.lognormal(0, 0.5, world.clients)
    return pd.DataFrame(
        {
            "client": range(world.clients),
            "device": rng.choice(["Pixel 8", "Galaxy S21", "Redmi 9"], world.clients),
            "macs_per_s": 4e9 * rng.lognormal(0, 0.35, world.clients),
            "uplink_bps": uplink_bps,
            "downlink_bps": uplink_bps * rng.lognormal(1.0, 0.4, world.clients),
            "latency_s": 0.03,
            "samples": 500,
            "training_factor": 1.0,
            "dominant_label": np.arange(world.clients) % len(LABELS),
            "cut": 2,
            "cost": "macs",
        }
    )


def _walk(world: World, setting: Setting, clients: pd.DataFrame, place: np.ndarray, seed: int) -> pd.DataFrame:
    """Every operation of the run, one round after the other."""
    rng = np.random.default_rng([seed, 2])
    turns = sorted(range(world.clients), key=lambda c: place[clients["dominant_label"][c]])
    ops: list[tuple[object, ...]] = []
    now_s = 0.0
    for number in range(1, world.rounds + 1):
        slowness = rng.lognormal(0, 0.6, (world.batches + 1, world.clients))
        now_s = _walk_round(setting.order, clients, slowness, turns, number, now_s, ops)
    return pd.DataFrame(ops, columns=OP_COLUMNS).astype({"node": "category", "kind": "category"})


def _walk_round(
    order: str,
    clients: pd.DataFrame,
    slowness: np.ndarray,
    turns: list[int],
    number: int,
    start_s: float,
    ops: list[tuple[object, ...]],
) -> float:
    """Append the operations of one round to `ops` and return its end.

    Args:
        slowness: factor on the duration of what client c does in step s, [s, c]; the last row is for the models.
    """
    batches = len(slowness) - 1
    fleet = clients.to_dict("records")

    def compute(c: int, kind: str, step: int, macs: float, at_s: float) -> float:
        end_s = at_s + slowness[step, c] * macs / fleet[c]["macs_per_s"]
        ops.append(("client", kind, number, step, c, at_s, at_s, end_s, macs, 0))
        return end_s

    def move(c: int, link: str, kind: str, step: int, size_bytes: int, at_s: float) -> float:
        end_s = at_s + fleet[c]["latency_s"] + slowness[step, c] * 8 * size_bytes / fleet[c][f"{link}_bps"]
        ops.append((link, kind, number, step, c, at_s, at_s, end_s, 0.0, size_bytes))
        return end_s

    def bring(c: int, step: int, at_s: float) -> float:
        at_s = compute(c, "forward", step, FORWARD_MACS, at_s)
        return move(c, "uplink", "smashed", step, SMASHED_BYTES, at_s)

    arrivals = {c: (bring(c, 0, move(c, "downlink", "model", -1, MODEL_BYTES, start_s)), 0) for c in turns}
    turn, free_s, done_s = cycle(turns), start_s, start_s
    while arrivals:
        # One job per client is outstanding, so the earliest arrival is always known: no event queue is needed.
        c = min(arrivals, key=lambda c: (arrivals[c], c)) if order == "fcfs" else next(turn)
        if c not in arrivals:
            continue
        arrived_s, step = arrivals.pop(c)
        begin_s = max(arrived_s, free_s)
        free_s = begin_s + SERVER_S
        ops.append(("server", "train", number, step, c, arrived_s, begin_s, free_s, 9e10, 0))
        at_s = move(c, "downlink", "gradients", step, SMASHED_BYTES, free_s)
        at_s = compute(c, "backward", step, 2 * FORWARD_MACS, at_s)
        if step + 1 < batches:
            arrivals[c] = (bring(c, step + 1, at_s), step + 1)
        else:
            done_s = max(done_s, move(c, "uplink", "model", -1, MODEL_BYTES, at_s))
    end_s = done_s + AGGREGATE_S
    ops.append(("aggregator", "average", number, -1, -1, done_s, done_s, end_s, 1e6, 0))
    return end_s


def _labels(world: World, setting: Setting, clients: pd.DataFrame, place: np.ndarray, seed: int) -> pd.DataFrame:
    """Accuracy per label: learned with the rounds, and forgotten the more, the earlier it is served.

    Last served are, in arrival order, the labels of the slow clients, whatever their place in the cyclic order.
    """
    if not world.trained:
        return pd.DataFrame()
    rng = np.random.default_rng([seed, 3])
    rate_bps = clients.groupby("dominant_label")["uplink_bps"].mean().reindex(range(len(LABELS)), fill_value=0.0)
    speed_rank = rate_bps.rank(ascending=False, method="first").to_numpy() - 1
    served_late = (speed_rank if setting.order == "fcfs" else place) / (len(LABELS) - 1)
    number, label = np.meshgrid(np.arange(1, world.rounds + 1), np.arange(len(LABELS)), indexing="ij")
    learned = setting.ceiling * (1 - np.exp(-number / 7)) - setting.forgetting * (1 - served_late[label])
    accuracy = np.clip(learned + 0.1 + rng.normal(0, 0.025, label.shape), 0, 1)
    return pd.DataFrame(
        {
            "round": number.ravel(),
            "label": label.ravel(),
            "label_name": np.array(LABELS)[label.ravel()],
            "position": place[label.ravel()],
            "accuracy": accuracy.ravel(),
            "samples": 1000,
        }
    )


def _rounds(world: World, ops: pd.DataFrame, labels: pd.DataFrame) -> pd.DataFrame:
    """One row per round: its times, where the average client's time went, its bytes and what was learned."""
    rows = []
    for number, of_round in ops.groupby("round"):
        done = np.array(list(of_round.itertuples(index=False, name=None)), dtype=OP_DTYPE)
        started_s, ended_s = done["requested_s"].min(), done["ended_s"].max()
        spent_s = breakdown(done, range(world.clients), started_s, ended_s)
        rows.append(
            {"round": number, "started_s": started_s, "ended_s": ended_s, "participants": world.clients,
             **traffic(done), **{f"{part}_s": seconds for part, seconds in spent_s.items()}}
        )  # fmt: skip
    rounds = pd.DataFrame(rows)
    rounds[["accuracy", "loss", "performance_gap"]] = None
    if world.trained:
        accuracy = labels.groupby("round")["accuracy"]
        rounds["accuracy"] = accuracy.mean().to_numpy()
        rounds["loss"] = 2.3 * (1 - rounds["accuracy"])
        rounds["performance_gap"] = accuracy.max().to_numpy() - rounds["accuracy"]
    return rounds


def _summary(
    world: World, setting: Setting, seed: int, rounds: pd.DataFrame, labels: pd.DataFrame
) -> dict[str, object]:
    return {
        "name": setting.name,
        "method": setting.method,
        "seed": seed,
        "rounds": len(rounds),
        "simulated_s": rounds["ended_s"].iloc[-1],
        **headline(rounds, labels, last_rounds=1),
        **way_to(TARGET, rounds),
        "reference": world.reference,
        "bytes_up": int(rounds["bytes_up"].sum()),
        "bytes_down": int(rounds["bytes_down"].sum()),
        "timeline_digest": f"{seed:02d}" + "9f3c" * 7,
        "weights_digest": f"{seed:02d}" + "51e8" * 7 if world.trained else None,
        "breakdown_s": {part: rounds[f"{part}_s"].sum() for part in BREAKDOWN},
    }


def _write_texts(folder: Path, world: World, summaries: list[dict[str, object]]) -> None:
    scenario = {
        "name": world.name,
        "seed": world.seeds[0],
        "repeats": len(world.seeds),
        "data": {"name": "cifar10", "partition": {"kind": "dominant_label", "p": 0.8, "phi": 1}},
        "model": {"name": "cnn_small", "cut": 2},
        "clients": {"compute": "ai_benchmark", "network": "mobiperf", "participation": 1.0},
        "server": {"speedup": 100, "workers": 1, "order": "fcfs"},
        "train": {"rounds": 30, "batch_size": 16, "lr": 0.05},
        "grid": [
            {"method.name": setting.method, "server.order": setting.order}
            | ({"server.max_wait_s": 10} if setting.order == "bounded_wait" else {})
            for setting in world.variants
        ],
        "report": {"target_accuracy": TARGET},
    }
    manifest = {
        "status": world.status,
        "created": "2026-11-21T02:30:00+00:00",
        "wall_s": 412.5,
        "versions": {"sfl_sim": "0.1.0", "torch": "2.15.0", "numpy": "2.4.6"},
        "machine": {"cpu": "AMD EPYC", "cores": 2, "memory_bytes": 8_000_000_000},
        "threads": 1,
        "device": "cpu",
        "executor": "eager" if world.trained else "timing",
    }
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario, sort_keys=False), encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    variants = [{**untold(tables("run")["summary"], {*each, "variant"}), **each} for each in summaries]
    (folder / "summary.json").write_text(json.dumps({"scenario": world.name, "variants": variants}), encoding="utf-8")
