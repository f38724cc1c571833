"""Speed of a simulated fleet in service: requests per second, and the memory that they take.

    python -m benchmarks.serving [--quick] [SHARE ...]

A thousand clients send Poisson requests at 0.8 of what one worker of the server bears; this share of them is offloaded,
with batches of up to 8 requests or one by one. Beside it the same queues as nothing but a heap and floats, without
records. Each runs in a process of its own; seconds are the process's own, so that others on the core count less.

Goals: 1,000,000 requests in two minutes and 2 GB.
"""

import heapq
import json
import resource
import subprocess
import sys
from functools import partial
from time import process_time

import numpy as np

from benchmarks.options import options

CLIENTS = 1_000
SHARES = ("0.1", "0.5", "1.0")
BATCHES = (1, 8)
LOAD = 0.8
SERVER = 2
"""Index of the server in a request's stages: device, uplink, server, downlink."""


def measure(requests: int, share: float, max_batch: int) -> dict[str, object]:
    from sfl_sim.features.serve.fleet import poisson
    from sfl_sim.features.serve.requests import EarlyExit, Thresholds
    from sfl_sim.models.network import LABEL_BYTES
    from sfl_sim.models.zoo import network
    from sfl_sim.rng import stream
    from sfl_sim.scenario.sections import Clients, Server
    from sfl_sim.sim.event_clock import EventClock
    from sfl_sim.sim.orders import ORDERS
    from sfl_sim.sim.prices import Prices
    from sfl_sim.sim.serving_station import ServingStation
    from sfl_sim.system.fleet import build_fleet
    from sfl_sim.training.deployed import Deployed
    from sfl_sim.training.executors import Timing

    links = {"uplink_bps": 1e8, "downlink_bps": 1e8}
    fleet = build_fleet(CLIENTS, 0, Clients(network=links), Server(speedup=10.0))
    front, back = network("lenet5", (1, 28, 28), 10).split(1, seed=0, device=None)
    model = Deployed([front], None, [back], (front.part.out_numel,))
    rate_per_s = LOAD / fleet.server.seconds(model.server_work) / share
    began_s = process_time()
    times_s, clients = poisson([rate_per_s / CLIENTS] * CLIENTS, requests, stream(0, "arrivals"))
    served = EarlyExit([model] * CLIENTS, stream(0, "entropies").random(requests), Thresholds([1 - share] * CLIENTS))
    station = partial(ServingStation, batch_s=Prices(fleet).batch_s, max_batch=max_batch, max_wait_s=2 / rate_per_s)
    simulator = EventClock(fleet, Timing(), ORDERS["fcfs"], station=station)
    simulator.serve(
        (at_s, served.request(number, client))
        for number, (at_s, client) in enumerate(zip(times_s.tolist(), clients.tolist(), strict=True))
    )
    rows = simulator.take_rows()
    took_s = process_time() - began_s
    found = {
        "offloaded": share,
        "max_batch": max_batch,
        "requests/s": round(requests / took_s),
        "operations/s": round(len(rows) / took_s),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "of a bare heap": None,
    }
    if max_batch == 1:
        seconds = [
            [processor.seconds(model.device_work) for processor in fleet.processors],
            [link.transfer_s(0.0, model.feature_bytes) for link in fleet.uplinks],
            [fleet.server.seconds(model.server_work)],
            [link.transfer_s(0.0, LABEL_BYTES) for link in fleet.downlinks],
        ]
        began_s = process_time()
        ended_s = bare(seconds, times_s.tolist(), clients.tolist(), served.offloaded.tolist())
        found["of a bare heap"] = round((process_time() - began_s) / took_s, 3)
        ours_s = np.zeros(requests)
        np.maximum.at(ours_s, rows["step"], rows["ended_s"])
        np.testing.assert_allclose(ours_s, ended_s, rtol=0, atol=1e-6)
    return found


def bare(seconds, times_s, clients, offloaded):
    """Compute when each request is answered: queues of devices, uplinks, the server and downlinks, with one heap."""
    free_s = [[0.0] * len(places) for places in seconds]
    heap = [(times_s[0], 0, 0)]
    ended_s = [0.0] * len(times_s)
    while heap:
        now_s, stage, number = heapq.heappop(heap)
        if not stage and number + 1 < len(times_s):
            heapq.heappush(heap, (times_s[number + 1], 0, number + 1))
        place = 0 if stage == SERVER else clients[number]
        until_s = free_s[stage][place] = max(now_s, free_s[stage][place]) + seconds[stage][place]
        if stage == 3 or not offloaded[number]:
            ended_s[number] = until_s
        else:
            heapq.heappush(heap, (until_s, stage + 1, number))
    return ended_s


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        requests, share, max_batch = sys.argv[2:]
        print(json.dumps(measure(int(requests), float(share), int(max_batch))))
        return
    given = options(__doc__, SHARES)
    requests = 20_000 if given.quick else 1_000_000
    rows = []
    for share in given.chosen:
        for max_batch in BATCHES:
            command = [sys.executable, "-m", "benchmarks.serving", "--one", str(requests), share, str(max_batch)]
            rows.append(json.loads(subprocess.check_output(command)))
            print(rows[-1], file=sys.stderr)
    given.publish("serving", rows)


if __name__ == "__main__":
    main()
