"""Folders as `sfl-sim whatif` leaves them, made up by formula: MobileNetV1 between phones and one server."""

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from stored import write_table

from sfl_sim.metrics.choices import non_dominated
from sfl_sim.store.reading import as_stored

WIDTHS = [64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024]
SIDES = [32, 16, 16, 8, 8, 4, 4, 4, 4, 4, 4, 2, 2]
BATCHES, BATCH_SIZE = 8, 64
SPEEDS = {"slow": 4e9, "middle": 1.2e10, "fast": 4e10}
UPLINK_BPS, DOWNLINK_BPS = 12e6, 40e6
AGGREGATE_S = 0.2
COSTS = ("macs", "parameters", "activation_bytes")


@dataclass(frozen=True)
class Vary:
    """An axis: its key, its values, their names (the values' text by default), and the scenario's own."""

    key: str
    values: tuple[Any, ...]
    names: tuple[str, ...] = ()
    base: int | None = None


def layers() -> pd.DataFrame:
    """The 26 layers of MobileNetV1 for images of 32 x 32."""
    rows = []
    channels = 32
    for block, (width, side) in enumerate(zip(WIDTHS, SIDES, strict=True), start=1):
        for kind, out, macs in (("dw", channels, 9 * channels), ("pw", width, channels * width)):
            rows.append((f"{kind}{block}", f"{out}x{side}x{side}", macs * side**2, macs, 4 * out * side**2))
        channels = width
    found = pd.DataFrame(rows, columns=["name", "out_shape", "macs", "parameters", "activation_bytes"])
    pareto = non_dominated(found["macs"].cumsum(), found["activation_bytes"])
    return found.assign(model="mobilenet_v1", layer=range(1, len(rows) + 1), pareto=pareto)


LAYERS = layers()
CUTS = Vary("model.cut", tuple(range(1, 26)), tuple(LAYERS["name"][:-1]), base=1)
BANDWIDTHS = Vary("clients.network.scale", (0.1, 0.3, 1.0, 3.0, 10.0), base=2)


@dataclass(frozen=True)
class World:
    """A question and its axes.

    Attributes:
        series: by name, by how much their servers are slower than the first one's.
        trained: the cuts (indices on the axis) that a run exists of.
        powered: whether the devices' power is known.
        draws: how many systems were drawn: in the last one, rounds take longer the deeper the cut, else as undrawn.
    """

    name: str = "Where & <how>"
    axes: tuple[Vary, ...] = (CUTS, BANDWIDTHS)
    series: tuple[tuple[str, float], ...] = (("splitfed_v2", 1.0),)
    seeds: tuple[int, ...] = (0,)
    clients: int = 30
    trained: tuple[int, ...] = ()
    powered: bool = True
    status: str = "complete"
    draws: int = 0


def write_whatif(folder: Path, world: World) -> Path:
    """Write the folder of a world."""
    folder.mkdir(parents=True)
    points, clients = [], []
    for (name, burden), seed in product(world.series, world.seeds):
        for place in product(*(range(len(axis.values)) for axis in world.axes)):
            chosen = {axis.key: axis.values[index] for axis, index in zip(world.axes, place, strict=True)}
            stored = {axis.key: as_stored(axis.values)[i] for axis, i in zip(world.axes, place, strict=True)}
            where = {"series": name, "seed": seed, **stored}
            fleet = _fleet(world, chosen, seed, burden)
            clients.append(pd.DataFrame({**fleet, **where}))
            points.append({**where, **_point(fleet)})
    table = pd.DataFrame(points)
    varied = [axis.key for axis in world.axes]
    write_table(folder, "whatif", "points", table, varied)
    write_table(folder, "whatif", "clients", pd.concat(clients, ignore_index=True), varied)
    write_table(folder, "whatif", "layers", LAYERS)
    if world.trained:
        write_table(folder, "whatif", "overlay", _overlay(world, table), varied)
    if world.draws:
        write_table(folder, "whatif", "draws", _draws(world, table), varied)
    about = {
        "scenario": world.name, "series": [name for name, _ in world.series], "rounds": 20, "target_accuracy": 0.6,
        "axes": [
            {"key": axis.key, "values": axis.values, "base": axis.base,
             "names": axis.names or [f"{value:g}" if isinstance(value, float) else str(value) for value in axis.values]}
            for axis in world.axes
        ],
        "evaluated": {"recursion": len(table), "event loop": 0}, "wall_s": 3.2,
    }  # fmt: skip
    (folder / "whatif.json").write_text(json.dumps(about, allow_nan=False))
    (folder / "manifest.json").write_text(json.dumps({"status": world.status, "machine": {"cpu": "two <slow> cores"}}))
    (folder / "scenario.yaml").write_text("name: Where & <how>\n")
    return folder


def _fleet(world: World, chosen: dict[str, Any], seed: int, burden: float) -> dict[str, Any]:
    """The clients at one point: each computes, sends, queues, is served, receives, and waits for the slowest."""
    cut = int(chosen.get("model.cut", 4))
    scale = chosen.get("clients.network.scale", 1.0)
    samples = BATCHES * BATCH_SIZE
    macs, parameters, activation_bytes = (LAYERS[name].to_numpy() for name in COSTS)
    before, behind = float(macs[:cut].sum()), float(macs[cut:].sum())
    sent_bits = 8.0 * samples * activation_bytes[cut - 1]
    rng = np.random.default_rng(seed)
    number = np.arange(world.clients)
    group = np.array(list(SPEEDS))[number % 3]
    macs_per_s = np.array(list(SPEEDS.values()))[number % 3] * rng.uniform(0.8, 1.25, world.clients)
    uplink_bps = UPLINK_BPS * scale * rng.uniform(0.5, 2, world.clients)
    served_s = 3 * samples * behind * burden / (chosen.get("server.speedup", 100.0) * 1e10)
    parts_s = {
        "device_s": 3 * samples * before / macs_per_s,
        "uplink_s": sent_bits / uplink_bps,
        "queue_s": served_s * number / chosen.get("server.workers", 1),
        "server_s": np.full(world.clients, served_s),
        "downlink_s": np.full(world.clients, sent_bits / (DOWNLINK_BPS * scale)),
    }
    busy_s = np.sum(list(parts_s.values()), axis=0)
    joule = 3 * parts_s["device_s"] + 1.2 * parts_s["uplink_s"] + 0.9 * parts_s["downlink_s"]
    memory_bytes = 12.0 * parameters[:cut].sum() + 2.0 * BATCH_SIZE * activation_bytes[:cut].sum()
    return {
        "client": number, "device": group, "group": group, "cut": float(cut), "macs_per_s": macs_per_s,
        "uplink_bps": uplink_bps, "downlink_bps": DOWNLINK_BPS * scale, **parts_s,
        "rest_s": busy_s.max() + AGGREGATE_S - busy_s, "memory_bytes": memory_bytes,
        "joule": joule if world.powered else np.nan,
    }  # fmt: skip


def _point(fleet: dict[str, Any]) -> dict[str, Any]:
    means = {part: fleet[part].mean() for part in ("device_s", "uplink_s", "queue_s", "server_s", "downlink_s")}
    rest_s = fleet["rest_s"].mean()
    return {
        "round_s": sum(means.values()) + rest_s, **means, "assistants_s": 0.0, "backbone_s": 0.0,
        "barrier_s": rest_s - AGGREGATE_S,
        "aggregate_s": AGGREGATE_S, "idle_s": 0.0, "method": "splitfed_v2", "cut": fleet["cut"], "server_busy": 0.5,
        "bytes_up": 1e9, "bytes_down": 1e9, "client_memory_bytes": fleet["memory_bytes"],
        "client_joule": np.mean(fleet["joule"]), "how": "recursion",
    }  # fmt: skip


def _draws(world: World, points: pd.DataFrame) -> pd.DataFrame:
    """Points of one bandwidth compete."""
    axes = [axis.key for axis in world.axes]
    contest = pd.factorize(points[axes[1]])[0] if len(axes) > 1 else 0
    found = points[["series", "seed", *axes, "round_s", "cut"]].assign(contest=contest)
    last = found.assign(round_s=100.0 * found["cut"])
    drawn = [found.assign(draw=number) for number in range(world.draws - 1)]
    return pd.concat([*drawn, last.assign(draw=world.draws - 1)], ignore_index=True).drop(columns="cut")


def _overlay(world: World, points: pd.DataFrame) -> pd.DataFrame:
    """Deeper cuts learn a little worse; the last trained cut's curve is no longer valid, the first never gets there."""
    places = points[world.axes[0].key].map(as_stored(world.axes[0].values).index)
    found = points[places.isin(world.trained)].reset_index(drop=True)
    place = places[places.isin(world.trained)].reset_index(drop=True)
    depth = place / 25
    rounds = (20 + 30 * depth).where(place != world.trained[0])
    valid = place != world.trained[-1]
    kept = found[["series", "seed", *(axis.key for axis in world.axes)]]
    return kept.assign(
        run="runs/mobilenet", trained=[f"cut={cut:g}" for cut in found["cut"]], accuracy=0.75 - 0.1 * depth,
        target_accuracy=0.6, rounds_to_accuracy=rounds, time_to_accuracy_s=rounds * found["round_s"],
        bytes_to_accuracy=rounds * (found["bytes_up"] + found["bytes_down"]), valid=valid,
        reason=["" if one else "clients arrive in another <order>" for one in valid],
    )  # fmt: skip
