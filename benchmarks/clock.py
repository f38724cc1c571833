"""How fast the clock runs: simulated operations per second in timing-only mode, and memory per client.

    python -m benchmarks.clock [CLIENTS ...]

SplitFedV2 under arrival order; every client brings so many mini-batches that about the same number of operations is
simulated whatever the number of clients. Each size runs in a process of its own, pinned to one core. Goals: 150,000
operations per second at 1,000 clients, and 2 kB of memory per idle client. The machine drifts: SimPy's own speed, which
is 1.2 to 1.6 million bare timeouts per second when nothing else runs, is measured beside it.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
import simpy

from benchmarks.pairs import publish

SIZES = [10, 1_000, 100_000]
OPERATIONS = 1_000_000
REPEATS = 3


def memory_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()


def measure(clients):
    from sfl_sim.data.batches import ClientData
    from sfl_sim.execute.timing import Timing
    from sfl_sim.methods import METHODS, Task
    from sfl_sim.models.zoo import network
    from sfl_sim.sim.clock import Simulator
    from sfl_sim.sim.orders import fcfs
    from sfl_sim.system.fleet import build_fleet

    net = network("lenet5", (1, 28, 28), 10)
    batches = max(1, OPERATIONS // (5 * clients))
    before = memory_bytes()
    fleet = build_fleet(clients, 0, {}, {"profile": "mobiperf"}, 100.0)
    one = np.arange(batches)  # every client may point at the same samples: nothing is trained
    task = Task(net, 2, ClientData([one] * clients, batch_size=1))
    method = METHODS["splitfed_v2"](task)
    simulator = Simulator(fleet, Timing(), fcfs)
    idle = (memory_bytes() - before) / clients
    began_s = time.perf_counter()
    simulator.run(method.round(1, range(clients)), 1)
    wall_s = time.perf_counter() - began_s
    operations = len(simulator.take_rows())
    return {"operations": operations, "ops/s": operations / wall_s, "idle": idle, "simpy": bare_simpy()}


def bare_simpy(processes=1_000, rounds=200):
    """Timeouts per second of SimPy with nothing around it, here and now: what the machine gives."""
    env = simpy.Environment()

    def tick():
        while True:
            yield env.timeout(1.0)

    for _ in range(processes):
        env.process(tick())
    began_s = time.perf_counter()
    env.run(until=rounds)
    return processes * rounds / (time.perf_counter() - began_s)


def main():
    if sys.argv[1:2] == ["--one"]:
        os.sched_setaffinity(0, {0})
        print(json.dumps(measure(int(sys.argv[2]))))
        return
    rows = []
    for clients in map(int, sys.argv[1:] or SIZES):
        command = [sys.executable, "-m", "benchmarks.clock", "--one", str(clients)]
        found = [json.loads(subprocess.check_output(command)) for _ in range(REPEATS)]
        speeds = sorted(f["ops/s"] for f in found)
        rows.append(
            {
                "clients": clients,
                "operations": found[0]["operations"],
                "ops/s (median)": round(speeds[REPEATS // 2]),
                "ops/s (range)": [round(speeds[0]), round(speeds[-1])],
                "of bare SimPy timeouts/s": round(statistics.median(f["ops/s"] / f["simpy"] for f in found), 3),
                "idle bytes/client": round(found[0]["idle"]),
            }
        )
    publish("clock", rows)


if __name__ == "__main__":
    main()
