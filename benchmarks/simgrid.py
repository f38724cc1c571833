"""Transfers per second over one shared link, beside SimGrid's fluid model of networks; all ends must be equal to 1e-9.

    SIMGRID_PYTHON=/usr/bin/python3 python -m benchmarks.simgrid [--quick] [CLIENTS ...]

Clients with links of their own of log-normal rates think (exponentially distributed) and send messages of 138,240 bytes
over one link of 20 Mbit/s: 10,000 in all, and at most 100 a client, since a difference in the last bit grows tenfold
with every 50 of them. SimGrid (Debian: python3-simgrid) runs in an interpreter of its own,
with model CM02 and no factors, so that both share fairly (max-min). Seconds are CPU time of the process without setup.
"""

import json
import os
import subprocess
import sys
from time import process_time

SIZES = [20, 100, 1_000]
SIZE_BYTES, CAPACITY_BPS = 138_240, 2e7
CONFIG = ["network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0", "network/bandwidth-factor:1",
          "network/latency-factor:1", "network/weight-S:0", "maxmin/precision:1e-12"]  # fmt: skip


def theirs(own_bps, think_s):
    from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, this_actor

    engine = Engine(["benchmark", "--log=root.thres:critical", *(f"--cfg={setting}" for setting in CONFIG)])
    zone = NetZone.create_full_zone("zone")
    server, trunk = zone.create_host("server", 1e9), zone.create_link("trunk", CAPACITY_BPS / 8)
    trunk.set_latency(0)
    ends_s = [[] for _ in own_bps]

    def client(host, waits_s, ended_s):
        for wait_s in waits_s:
            this_actor.sleep_for(wait_s)
            Comm.sendto(host, server, SIZE_BYTES)
            ended_s.append(engine.clock)

    for number, rate_bps in enumerate(own_bps):
        host, link = zone.create_host(f"client{number}", 1e9), zone.create_link(f"link{number}", rate_bps / 8)
        link.set_latency(0)
        way = [LinkInRoute(link), LinkInRoute(trunk)]
        zone.add_route(host.netpoint, server.netpoint, None, None, way, True)
        Actor.create(f"client{number}", host, client, host, think_s[number], ends_s[number])
    zone.seal()
    began_s = process_time()
    engine.run()
    return process_time() - began_s, ends_s


def ours(own_bps, think_s):
    import networkx as nx
    import simpy

    from sfl_sim.ops import SERVER
    from sfl_sim.sim.nodes import link_between
    from sfl_sim.sim.shared_links import SharedLinks
    from sfl_sim.system.links import RateTrace, slowest
    from sfl_sim.system.topology import Topology

    graph = nx.DiGraph([(f"client{number}", "trunk") for number in range(len(own_bps))])
    graph.add_edges_from([(there, here) for here, there in graph.edges])
    graph.add_edge("trunk", "server", capacity_bps=CAPACITY_BPS)
    graph.add_edge("server", "trunk")
    env, own = simpy.Environment(), [RateTrace(rate_bps) for rate_bps in own_bps]
    links = SharedLinks(env, Topology(graph, len(own)), lambda link, now_s: slowest([own[link.client]], now_s))
    ends_s = [[] for _ in own]

    def client(number):
        for wait_s in think_s[number]:
            yield env.timeout(wait_s)
            over = env.event()
            links.transfer(link_between(number, SERVER), SIZE_BYTES, lambda *_, over=over: over.succeed())
            yield over
            ends_s[number].append(env.now)

    for number in range(len(own)):
        env.process(client(number))
    began_s = process_time()
    env.run()
    return process_time() - began_s, ends_s


def main():
    if sys.argv[1:] == ["--theirs"]:
        print(json.dumps(theirs(*json.load(sys.stdin))))
        return
    import numpy as np

    from benchmarks.options import options

    given = options(__doc__, map(str, SIZES))
    python = os.environ.get("SIMGRID_PYTHON", "/usr/bin/python3")
    if subprocess.run([python, "-c", "import simgrid"], capture_output=True).returncode:
        print(f"skipped: {python} has no simgrid; name another one in SIMGRID_PYTHON")
        return
    rows = []
    for clients in map(int, given.chosen[:1] if given.quick else given.chosen):
        rng = np.random.default_rng(0)
        own_bps = rng.lognormal(np.log(4e6), 1.0, clients).tolist()
        messages = min(100, 10_000 // clients)
        think_s = rng.exponential(2.0, (clients, messages)).tolist()
        taken_s = {"ours": [], "theirs": []}
        for side in ["ours", "theirs", "theirs", "ours"] * (1 if given.quick else 3):
            if side == "ours":
                seconds, ends_s = ours(own_bps, think_s)
            else:
                told = json.dumps([own_bps, think_s])
                command = [python, "-P", __file__, "--theirs"]  # else this file is what it imports as simgrid
                answer = subprocess.run(command, input=told, stdout=subprocess.PIPE, text=True, check=True).stdout
                seconds, theirs_s = json.loads(answer)
            taken_s[side].append(seconds)
        np.testing.assert_allclose(ends_s, theirs_s, rtol=1e-9)
        fastest = {side: clients * messages / float(np.median(seconds)) for side, seconds in taken_s.items()}
        rows.append({
            "clients": clients,
            **{f"{side}, transfers/s": round(speed) for side, speed in fastest.items()},
            "ours / theirs": round(fastest["ours"] / fastest["theirs"], 2),
            "largest relative difference of an end": float(np.max(np.abs(np.divide(ends_s, theirs_s) - 1))),
        })  # fmt: skip
    given.publish("simgrid", rows)


if __name__ == "__main__":
    main()
