"""How fast a what-if study is: points per second, by recursion and through the event loop.

    python -m benchmarks.whatif [--quick] [METHOD ...]

All cuts of MobileNetV1 x 5 bandwidths x 100 clients x 20 rounds (8 mini-batches of 64 samples a client and round), by
recursion in this process where rates are constant, and through the event loop in two where they follow a trace. Seconds
are those of the wall, without this process's imports and synthetic data; the event loop's processes have their own.

Goals: 5 s by recursion, 60 s through the event loop.
"""

import time

from benchmarks.options import options

METHODS = ("splitfed_v1", "splitfed_v2")
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
GOAL_S = {"recursion": 5, "event loop": 60}
PROCESSES = 2
SAMPLES = 500
"""Of each client."""


def scenario(method: str, how: str, clients: int, rounds: int) -> dict[str, object]:
    network = {"profile": "mobiperf", "latency_s": 0.045, "trace": "hsdpa_bus" if how == "event loop" else None}
    return {
        "name": "whatif",
        "data": {"name": "synthetic", "shape": [3, 32, 32], "n_labels": 10, "samples": SAMPLES * clients},
        "model": {"name": "mobilenet_v1", "cut": 2},
        "clients": {"count": clients, "network": network},
        "method": {"name": method},
        "train": {"rounds": rounds, "batch_size": 64},
    }


def measure(method: str, how: str, clients: int, rounds: int) -> dict[str, object]:
    from sfl_sim.config.source import parse
    from sfl_sim.config.vary import ALL, axis
    from sfl_sim.questions.evaluating import Found, evaluate
    from sfl_sim.questions.question import Question

    axes = [axis("model.cut", ALL), axis("clients.network.scale", SCALES)]
    points = Question.of(parse(scenario(method, how, clients, rounds)), axes).points
    began_s = time.perf_counter()
    found = list(evaluate(points, PROCESSES if how == "event loop" else 1))
    took_s = time.perf_counter() - began_s
    assert all(isinstance(one, Found) and one.figures["how"] == how for one in found)
    row = {
        "method": method, "how": how, "points": len(points), "clients": clients, "rounds": rounds,
        "s": round(took_s, 2), "points/s": round(len(points) / took_s, 1), "goal_s": GOAL_S[how],
    }  # fmt: skip
    print(row, flush=True)
    return row


def main() -> None:
    asked = options(__doc__ or "", METHODS)
    size = (10, 2) if asked.quick else (100, 20)
    asked.publish("whatif", [measure(method, how, *size) for how in GOAL_S for method in asked.chosen])


if __name__ == "__main__":
    main()
