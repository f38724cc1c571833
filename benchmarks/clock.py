"""Speed of the clock: simulated operations per second in timing-only mode, and memory per client.

    python -m benchmarks.clock [--quick] [CLIENTS ...]

SplitFedV2, in which the number of mini-batches per client keeps the number of operations about equal for all numbers of
clients: by the event loop, and by recursion (`sim/array_clock.py`; the first round, in which the flow is recorded, and
later ones) in arrival order and in cyclic order. Up to 1,000 clients the event loop also runs over shared links at
MobiPerf's rates: one for all, and access points of 20 clients without and with a backhaul. Each size runs in a process
of its own, pinned to one core; seconds are CPU time of the process. For comparison: bare SimPy timeouts, and the same
client loop with a heap and floats only.

Goals: event loop 200,000 operations/s at 1,000 clients and 80,000 at 100,000; recursion 5,000,000; 2 kB per idle
client.
"""

import heapq
import json
import os
import resource
import statistics
import subprocess
import sys
from functools import partial
from time import process_time

import numpy as np
import simpy

from benchmarks.options import options

SIZES = [10, 100, 1_000, 100_000]
OPERATIONS = 100_000  # 100,000 clients have 500,000
SHARED = {
    "one for all": lambda clients: {"access_points": 1, "capacity_bps": 2e7},
    "access points": lambda clients: {"access_points": -(-clients // 20), "capacity_bps": 2e7},
    "with a backhaul": lambda clients: {"access_points": -(-clients // 20), "capacity_bps": 2e7, "backhaul_bps": 2e8},
}
REPEATS = 3  # once with 100,000 clients, which take a minute


def memory_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()


def measure(clients):
    from sfl_sim.data.batches import ClientData
    from sfl_sim.methods import METHODS, Task
    from sfl_sim.models.zoo import network
    from sfl_sim.scenario.sections import Clients, Server
    from sfl_sim.sim.clock import Clock
    from sfl_sim.sim.event_clock import EventClock
    from sfl_sim.sim.orders import ORDERS
    from sfl_sim.system.fleet import build_fleet
    from sfl_sim.training.executors import Timing

    net = network("lenet5", (1, 28, 28), 10)
    batches = max(1, OPERATIONS // (5 * clients))
    before = memory_bytes()
    fleet = build_fleet(clients, 0, Clients(), Server())

    def flow(batches=batches):
        one = np.arange(batches)  # every client may point at the same samples: nothing is trained
        task = Task(net, [2] * clients, ClientData([one] * clients, batch_size=1))
        return METHODS["splitfed_v2"](task).round(1, range(clients))

    loop, *foreseen = (EventClock(fleet, Timing(), ORDERS[order]) for order in ("fcfs", "fcfs", "cyclic"))
    found = {"idle": (memory_bytes() - before) / clients}

    def speed(run, simulator):
        began_s = process_time()
        run()
        operations = len(simulator.take_rows())
        return operations / (process_time() - began_s)

    found["event loop"] = speed(lambda: loop.run(flow(), 1), loop)
    if clients <= 1_000:
        for name, links in SHARED.items():
            network_of = Clients(network={"profile": "mobiperf", "shared": links(clients)})
            shared = EventClock(build_fleet(clients, 0, network_of, Server()), Timing(), ORDERS["fcfs"])
            run = partial(shared.run, flow(max(1, batches // 5)), 1)
            found[f"event loop, shared links: {name}"] = speed(run, shared)
    for order, simulator in zip(("arrival", "cyclic"), foreseen, strict=True):
        again = partial(Clock(simulator).run, flow, 1, like="all")
        found[f"{order}, first"] = speed(again, simulator)
        found[order] = statistics.median(speed(again, simulator) for _ in range(3))
    return found | {"simpy": bare_simpy(), "heapq": bare_heapq(clients, batches)}


def bare_simpy(processes=1_000, rounds=200):
    """Measure the timeouts per second of bare SimPy."""
    env = simpy.Environment()

    def tick():
        while True:
            yield env.timeout(1.0)

    for _ in range(processes):
        env.process(tick())
    began_s = process_time()
    env.run(until=rounds)
    return processes * rounds / (process_time() - began_s)


def bare_heapq(clients, batches):
    """Measure the operations per second of the same client loop as one heap of (time, client, stage, batch)."""
    seconds = [1.0, 0.5, 0.01, 0.5, 2.0]
    heap = [(c * 1e-3, c, 0, 0) for c in range(clients)]
    free_s, rows = 0.0, []
    began_s = process_time()
    while heap:
        now_s, client, stage, batch = heap[0]
        if stage == 2:
            free_s = ended_s = max(now_s, free_s) + seconds[stage]
        else:
            ended_s = now_s + seconds[stage]
        rows.append((client, stage, batch, now_s, ended_s))
        stage += 1
        if stage == 5:
            stage, batch = 0, batch + 1
        if batch < batches:
            heapq.heapreplace(heap, (ended_s, client, stage, batch))
        else:
            heapq.heappop(heap)
    return len(rows) / (process_time() - began_s)


def main():
    if sys.argv[1:2] == ["--one"]:
        os.sched_setaffinity(0, {0})
        print(json.dumps(measure(int(sys.argv[2]))))
        return
    given = options(__doc__, map(str, SIZES))
    rows = []
    for clients in map(int, given.chosen[:1] if given.quick else given.chosen):
        command = [sys.executable, "-m", "benchmarks.clock", "--one", str(clients)]
        found = [
            json.loads(subprocess.check_output(command))
            for _ in range(1 if given.quick or clients >= 100_000 else REPEATS)
        ]
        middle = {name: statistics.median(one[name] for one in found) for name in found[0]}
        idle = round(middle.pop("idle"))
        rows += [
            {
                "clients": clients,
                "engine": name,
                "1000 ops/s (median)": round(speed / 1000),
                "range": [round(edge / 1000) for edge in (min(o[name] for o in found), max(o[name] for o in found))],
                "of bare SimPy": round(speed / middle["simpy"], 3),
                "of bare heapq": round(speed / middle["heapq"], 3),
                "idle bytes/client": idle,
            }
            for name, speed in middle.items()
        ]
    given.publish("clock", rows)


if __name__ == "__main__":
    main()
