"""The tables of a what-if study (docs/output.md), from the answers to its points."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from sfl_sim.models.network import Network
from sfl_sim.scenario.load import Variant, changed
from sfl_sim.scenario.relevance import without
from sfl_sim.scenario.sections import Scenario
from sfl_sim.scenario.vary import Point
from sfl_sim.studies.walk import Walker
from sfl_sim.studies.whatif_points import Found, evaluate
from sfl_sim.studies.whatif_question import Question
from sfl_sim.training.memory import client_memory_bytes

SPEEDUPS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Times the scenario's own: servers in which the best point is timed again."""
WORKERS = (1, 2, 4, 8)
NOT_OF_THE_NETWORK = frozenset({"model.cut", "clients", "server", "method", "seed", "data.partition", "data.test"})


def place(point: Point) -> dict[str, Any]:
    """Where a row belongs: series, seed, and the value on every axis."""
    axes = {f"axis_{number}": index for number, index in enumerate(point.indices)}
    return {"series": point.series, "seed": point.variant.scenario.seed, **axes}


class _Memory:
    """What clients need to train their parts; every network is asked once."""

    def __init__(self) -> None:
        self._networks: dict[str, Network] = {}

    def needed_bytes(self, scenario: Scenario, layers: int) -> int:
        """Of a client that holds so many layers."""
        values = json.dumps(without(scenario, NOT_OF_THE_NETWORK))
        if values not in self._networks:
            self._networks[values] = Walker(scenario).experiment.method.task.network
        train = scenario.train
        return client_memory_bytes(self._networks[values], layers, train.batch_size, train.optimizer, train.momentum)


def point_tables(found: Iterable[Found]) -> dict[str, pd.DataFrame]:
    """`points`, one row per point and seed, and `clients`, one row per point, seed and client."""
    memory = _Memory()
    rows, parts = [], []
    for one in found:
        scenario, where = one.point.variant.scenario, place(one.point)
        needed = {layers: memory.needed_bytes(scenario, layers) for layers in set(one.held)}
        rows.append({**where, **one.figures, "client_memory_bytes": max(needed.values())})
        clients = one.clients.assign(memory_bytes=[needed[layers] for layers in one.held])
        parts.append(pd.DataFrame(where, clients.index).join(clients))
    return {"points": pd.DataFrame(rows).astype({"cut": "Int64"}), "clients": pd.concat(parts, ignore_index=True)}


def servers_table(question: Question, found: Sequence[Found]) -> pd.DataFrame:
    """The best points of the scenario's own world with other servers: one row per series, seed and server."""
    rows = []
    for best in _best_at_home(question, found):
        server = best.variant.scenario.server
        own = {"scenario_speedup": server.speedup, "scenario_workers": _number(server.workers)}
        layers: list[dict[str, Any]] = [{"server.speedup": factor * server.speedup} for factor in SPEEDUPS]
        layers += [{"server.workers": workers} for workers in dict.fromkeys([*WORKERS, server.workers])]
        for answer in evaluate([_with_server(best, layer) for layer in layers]):
            if isinstance(answer, Found):
                there = answer.point.variant.scenario.server
                rows.append(
                    {
                        "series": best.series, "seed": best.variant.scenario.seed, "cut": answer.figures["cut"],
                        "speedup": there.speedup, "workers": _number(there.workers), **own,
                        "round_s": answer.figures["round_s"],
                    }
                )  # fmt: skip
    return pd.DataFrame(rows).astype({"cut": "Int64"}) if rows else pd.DataFrame()


def _best_at_home(question: Question, found: Sequence[Found]) -> list[Point]:
    """For every series and seed the point with the shortest rounds, of those nearest to the scenario's own world.

    Along `model.cut` the best counts, and along an axis without the scenario's own value the middle one.
    """
    home = {
        number: len(axis.values) // 2 if (base := question.base(axis)) is None else base
        for number, axis in enumerate(question.axes)
        if axis.key != "model.cut"
    }
    best: dict[tuple[str, int], Found] = {}
    for one in found:
        key = one.point.series, one.point.variant.scenario.seed
        if all(one.point.indices[number] == index for number, index in home.items()) and (
            key not in best or one.figures["round_s"] < best[key].figures["round_s"]
        ):
            best[key] = one
    return [one.point for one in best.values()]


def _with_server(point: Point, layer: dict[str, Any]) -> Point:
    variant = point.variant
    scenario = changed(variant.scenario, layer, variant.places)
    return Point(point.series, point.indices, Variant(variant.name, scenario, variant.places))


def _number(workers: int | str) -> float:
    return float("inf" if workers == "unlimited" else workers)
