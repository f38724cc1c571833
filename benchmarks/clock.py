"""How fast the clock runs: simulated operations per second in timing-only mode, and memory per client.

    python -m benchmarks.clock [CLIENTS ...]

SplitFedV2 under arrival order; every client brings so many mini-batches that about the same number of operations is
simulated whatever the number of clients. Each size runs in a process of its own, pinned to one core. Goals: 150,000
operations per second at 1,000 clients, and 2 kB of memory per idle client.
"""

import json
import os
import resource
import subprocess
import sys
import time

import numpy as np

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
    operations = len(simulator._rows)
    busy = (memory_bytes() - before - operations * 200) / clients
    return {"operations": operations, "ops/s": operations / wall_s, "idle": idle, "busy": busy}


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
                "idle bytes/client": round(found[0]["idle"]),
            }
        )
    publish("clock", rows)


if __name__ == "__main__":
    main()
