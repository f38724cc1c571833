"""Jobs per second of the server's queue, beside Ciw's and salabim's; all waits must be equal to the bit.

    python -m benchmarks.queues [--quick] [PEER ...]

Jobs come in a Poisson stream to one worker, which is busy for 0.8 of the time, with service times of a log-normal
distribution, first come, first served. Instants are multiples of 2^-30 s, so that sums are exact and do not tie: Ciw
draws the order of equal instants. The waits are also those of Lindley's recursion. Each side runs in a process of its
own, the peers in their environment (`make peers-environment`); seconds are CPU time without start and setup.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time

JOBS = {"Ciw": 1_000_000, "salabim": 100_000}
TICKS_PER_S = 2**30
LOAD = 0.8
CLIENTS = 100


def ours(gaps_s, service_s):
    import simpy

    from sfl_sim.sim.station import Job, Station

    env, waits_s = simpy.Environment(), []
    station = Station(env, 1)

    class Customer:
        def begin(self, job):
            waits_s.append(env.now - job.arrived_s)

        def served(self, job):
            pass

    def arrivals(customer):
        for number, (gap_s, duration_s) in enumerate(zip(gaps_s, service_s, strict=True)):
            yield env.timeout(gap_s)
            station.serve(Job(number % CLIENTS, "part-2", env.now, duration_s, customer))

    env.process(arrivals(Customer()))
    began_s = process_time()
    env.run()
    return process_time() - began_s, waits_s


def ciw(gaps_s, service_s):
    import ciw

    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Sequential([*gaps_s, float("inf")])],
        service_distributions=[ciw.dists.Sequential(service_s)],
        number_of_servers=[1],
    )
    simulation = ciw.Simulation(network)
    began_s = process_time()
    simulation.simulate_until_max_customers(len(gaps_s))
    seconds = process_time() - began_s
    records = sorted(simulation.get_all_records(), key=lambda record: record.arrival_date)
    return seconds, [record.waiting_time for record in records]


def salabim(gaps_s, service_s):
    import salabim

    salabim.yieldless(False)
    env, waits_s = salabim.Environment(trace=False), []
    worker = salabim.Resource("worker", capacity=1, monitor=False)

    class Job(salabim.Component):
        def setup(self, duration_s):
            self.duration_s = duration_s

        def process(self):
            arrived_s = env.now()
            yield self.request(worker)
            waits_s.append(env.now() - arrived_s)
            yield self.hold(self.duration_s)
            self.release(worker)

    class Arrivals(salabim.Component):
        def process(self):
            for gap_s, duration_s in zip(gaps_s, service_s, strict=True):
                yield self.hold(gap_s)
                Job(duration_s=duration_s)

    Arrivals()
    began_s = process_time()
    env.run()
    return process_time() - began_s, waits_s


SIDES = {"ours": ours, "Ciw": ciw, "salabim": salabim}


def main():
    if sys.argv[1:2] == ["--one"]:
        side, file = sys.argv[2:]
        print(json.dumps(SIDES[side](*json.loads(Path(file).read_text()))))
        return
    import numpy as np

    from benchmarks.options import options
    from benchmarks.pairs import ratio
    from benchmarks.peers.environments import python, versions

    given = options(__doc__, JOBS)
    if not python("queues").exists():
        print("skipped: `make peers-environment` makes the environment of Ciw and salabim, or set PEERS")
        return
    rows = []
    for peer in given.chosen:
        jobs = 5_000 if given.quick else JOBS[peer]
        rng = np.random.default_rng(0)
        drawn = rng.exponential(1 / LOAD, jobs), rng.lognormal(-0.5, 1.0, jobs)
        gaps_s, service_s = (((1 + np.rint(seconds * TICKS_PER_S)) / TICKS_PER_S).tolist() for seconds in drawn)
        expected_s = [0.0]
        for gap_s, duration_s in zip(gaps_s[1:], service_s, strict=False):
            expected_s.append(max(0.0, expected_s[-1] + duration_s - gap_s))
        taken_s = {"ours": [], peer: []}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump([gaps_s, service_s], file)
            file.flush()
            for side in ["ours", peer, peer, "ours"]:
                interpreter = sys.executable if side == "ours" else python("queues")
                command = [interpreter, "-m", "benchmarks.queues", "--one", side, file.name]
                seconds, waits_s = json.loads(subprocess.check_output(command))
                assert waits_s == expected_s, f"{side}: other waits than Lindley's"
                taken_s[side].append(seconds)
        found = ratio(taken_s[peer], taken_s["ours"])
        rows.append({
            "jobs": jobs,
            "peer": peer,
            "peer / ours": found["median"],
            "quartiles": found["quartiles"],
            "our jobs/s": round(jobs / float(np.median(taken_s["ours"]))),
            "its jobs/s": round(jobs / float(np.median(taken_s[peer]))),
            "versions": versions("queues"),
        })  # fmt: skip
        print(rows[-1], file=sys.stderr)
    given.publish("queues", rows)


if __name__ == "__main__":
    main()
