"""Speed of a what-if study by recursion: points per second.

    python -m benchmarks.whatif [--quick] [METHOD ...]

All cuts of MobileNetV1 x 5 bandwidths x 100 clients x 20 rounds (8 mini-batches of 64 samples a client and round): in
this process where rates are constant, and so one round stands for all; in two processes where they follow a trace, and
where devices jitter as well. Seconds are those of the wall, without this process's imports and synthetic data; other
processes have their own.

Goals: 5 s where one round stands for all, else 60 s.
"""

import time
from dataclasses import dataclass

from benchmarks.options import options

METHODS = ("splitfed_v1", "splitfed_v2")
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
SAMPLES = 500
"""Number of samples of each client."""


@dataclass(frozen=True)
class World:
    """World with or without changes from round to round, and the questions of the study in it."""

    trace: str | None
    jitter: float
    processes: int
    goal_s: float


WORLDS = {
    "constant": World(None, 0.0, 1, 5),
    "varying links": World("hsdpa_bus", 0.0, 2, 60),
    "varying links, jitter": World("hsdpa_bus", 0.1, 2, 60),
}


def scenario(method: str, world: World, clients: int, rounds: int) -> dict[str, object]:
    network = {"profile": "mobiperf", "latency_s": 0.045, "trace": world.trace}
    return {
        "name": "whatif",
        "data": {"name": "synthetic", "shape": [3, 32, 32], "n_labels": 10, "samples": SAMPLES * clients},
        "model": {"name": "mobilenet_v1", "cut": 2},
        "clients": {"count": clients, "network": network, "compute": {"jitter": world.jitter}},
        "method": {"name": method},
        "train": {"rounds": rounds, "batch_size": 64},
    }


def measure(method: str, name: str, clients: int, rounds: int) -> dict[str, object]:
    from sfl_sim.scenario.load import parse
    from sfl_sim.scenario.vary import ALL, axis
    from sfl_sim.studies.points import Question, TimedPoint, evaluate

    world = WORLDS[name]
    axes = [axis("model.cut", ALL), axis("clients.network.scale", SCALES)]
    points = Question.of(parse(scenario(method, world, clients, rounds)), axes).points
    began_s = time.perf_counter()
    found = list(evaluate(points, world.processes))
    took_s = time.perf_counter() - began_s
    assert all(isinstance(one, TimedPoint) and one.figures["how"] == "recursion" for one in found)
    row = {
        "method": method, "world": name, "processes": world.processes, "points": len(points),
        "clients": clients, "rounds": rounds, "s": round(took_s, 2), "points/s": round(len(points) / took_s, 1),
        "goal_s": world.goal_s,
    }  # fmt: skip
    print(row, flush=True)
    return row


def main() -> None:
    asked = options(__doc__ or "", METHODS)
    size = (10, 2) if asked.quick else (100, 20)
    asked.publish("whatif", [measure(method, name, *size) for name in WORLDS for method in asked.chosen])


if __name__ == "__main__":
    main()
