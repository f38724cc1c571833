"""Messages over links of a kernel beside simulated ones: research/results/kernel_links.md.

    python -m research.live.kernel run bbr      (Linux, root, ten minutes; writes live_kernel_bbr.csv)
    python -m research.live.kernel run cubic    (the same)
    python -m research.live.kernel tell         (their tables)

Run it from the root of the repository. A namespace takes what net.ipv4.tcp_allowed_congestion_control names. Sockets,
namespaces and shaping are those of `sfl-sim live --emulate netns`.
"""

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
import simpy
import zmq

from sfl_sim.features.live.links import RunKey, address_of
from sfl_sim.features.live.namespaces import SERVER_IP, Namespaces, check_kernel, leave_network, route
from sfl_sim.ops import SERVER, Node
from sfl_sim.scenario.load import parse
from sfl_sim.sim.nodes import Link
from sfl_sim.sim.shared_links import SharedLinks
from sfl_sim.system.fleet import Fleet, build_fleet
from sfl_sim.system.links import BITS_PER_BYTE

DATA = Path("research/results/data")
SIZES = 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 30_000_000
RATES_BPS = 0.5e6, 2e6, 10e6, 50e6
CONTROLS = "bbr", "cubic"
LONGEST_S, SHORT_S, REPEATS = 25.0, 2.0, 3
"""A case that would last longer is left out; one that lasts at most the second time is measured so often."""
LARGE = 100_000
MANY = 8
"""Clients behind one link, and messages of one client that are sent at once."""
FREE = 20.0
"""How many times as fast as the shared link a client's own links are."""
SILENT_S = 0.5
"""Before each case, in which nothing is sent."""
PATIENCE_S = 120.0
"""After which messages that have not arrived count as lost, and all nodes begin anew."""
OVERHEAD = 0.0456, 140
"""Share and bytes of docs/howto/shared-links.md: headers of TCP, and frames of pyzmq."""
PATTERNS = {
    "one up": "one message of one client, on its own link",
    "one down": "the same from the server",
    "several up": "eight messages of one client at once, on its own link",
    "eight together": "one message of each of eight clients behind a shared link, all at once",
    "eight in turn": "the same, each a quarter of the time later in which one alone would be sent",
}


@dataclass(frozen=True)
class Case:
    """Messages of one size that are sent over links of one rate."""

    pattern: str
    rate_bps: float
    size_bytes: int

    @property
    def sent(self) -> list[tuple[int, float]]:
        """Each message's client, and the instant at which it is sent."""
        alone_s = BITS_PER_BYTE * self.size_bytes / self.rate_bps
        match self.pattern:
            case "several up":
                return [(0, 0.0)] * MANY
            case "eight together":
                return [(client, 0.0) for client in range(MANY)]
            case "eight in turn":
                return [(client, client * alone_s / 4) for client in range(MANY)]
        return [(0, 0.0)]

    def simulated_s(self, fleet: Fleet, share: float = 0.0, message_bytes: int = 0) -> list[float]:
        """Give the seconds of each message by the simulator's clock, from its request on."""
        env, ended = simpy.Environment(), [0.0] * len(self.sent)
        assert fleet.topology
        links = SharedLinks(env, fleet.topology, lambda link, s: fleet.uplinks[link.client].pieces(s))
        size = self.size_bytes * (1 + share) + message_bytes

        def send(number: int, client: int, at_s: float) -> Any:
            yield env.timeout(at_s)
            over = Link("uplink", client, uplink_of=client)
            links.transfer(over, size, lambda *_: ended.__setitem__(number, env.now - at_s))

        for number, (client, at_s) in enumerate(self.sent):
            env.process(send(number, client, at_s))
        env.run()
        return ended


def cases() -> Iterator[Case]:
    """Generate all cases that are short enough, slow links first."""
    for rate_bps in RATES_BPS:
        for pattern in PATTERNS:
            for size in SIZES:
                case = Case(pattern, rate_bps, size)
                if len(case.sent) * BITS_PER_BYTE * size / rate_bps <= LONGEST_S:
                    yield case


def fleet_of(rate_bps: float, is_shared: bool) -> Fleet:
    """Make a fleet whose own links, or whose common one, have a rate."""
    own_bps = FREE * rate_bps if is_shared else rate_bps
    shared = {"access_points": 1, "backhaul_bps": rate_bps if is_shared else 1e12}
    network = {"uplink_bps": own_bps, "downlink_bps": own_bps, "latency_s": 0.0, "shared": shared}
    scenario = parse({"name": "kernel", "clients": {"count": MANY, "network": network}}).base
    return build_fleet(MANY, 1, scenario.clients, scenario.server)


# --------------------------------------------------------------------------------------------- processes and messages


def be(node: Node, secret: bytes) -> None:
    """Be a node: send what standard input asks for, and print what arrives."""
    leave_network()
    print("there", flush=True)
    sys.stdin.readline()  # now there is a network
    context, key = zmq.Context(), RunKey(secret)
    if node == SERVER:
        key.guard(context)
        socket = key.server(context.socket(zmq.ROUTER))
        socket.bind("tcp://*:5000")
    else:
        socket = key.client(context.socket(zmq.DEALER))
        socket.identity = address_of(node)
        socket.connect(f"tcp://{SERVER_IP}:5000")
        socket.send_multipart([b"hello", b""])
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if socket in ready:
            *_, what, payload = socket.recv_multipart()
            print(json.dumps([time.monotonic(), what.decode(), len(payload)]), flush=True)
        if sys.stdin.fileno() in ready:
            if not (line := sys.stdin.readline()):
                return
            for number, size, at_s, receiver in json.loads(line):
                payload, way = bytes(size), [receiver.encode()] if receiver else []
                time.sleep(max(0.0, at_s - time.monotonic()))
                socket.send_multipart([*way, str(number).encode(), payload])


@contextmanager
def nodes(fleet: Fleet, control: str) -> Iterator[dict[Node, subprocess.Popen[str]]]:
    """Have a server and clients in namespaces with the fleet's links, connected."""
    secret = RunKey.new().secret
    with ExitStack() as stack:
        running: dict[Node | str, subprocess.Popen[str]] = {}
        for node in ("router", SERVER, *range(MANY)):
            command = [sys.executable, "-m", "research.live.kernel", "be", str(node), secret.decode()]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.kill)
            running[node] = process
        for process in running.values():
            assert process.stdout
            process.stdout.readline()
            net = f"--net=/proc/{process.pid}/ns/net"
            setting = f"net.ipv4.tcp_congestion_control={control}"
            subprocess.run(["nsenter", net, "sysctl", "-qw", setting], check=True)
        router = running.pop("router").pid
        Namespaces(router, {node: process.pid for node, process in running.items()}, fleet).shape(1.0)  # type: ignore[misc]
        for process in running.values():
            assert process.stdin
            print("go", file=process.stdin, flush=True)
        for _ in range(MANY):  # who has said hello
            assert running[SERVER].stdout
            running[SERVER].stdout.readline()
        yield running  # type: ignore[misc]


def measure(case: Case, running: dict[Node, subprocess.Popen[str]]) -> list[float]:
    """Send a case's messages, and give the seconds of each until all of it has arrived."""
    began_s = time.monotonic() + SILENT_S
    orders = defaultdict[Node, list[Any]](list)
    for number, (client, at_s) in enumerate(case.sent):
        sender, receiver = (SERVER, str(client)) if case.pattern == "one down" else (client, "")
        orders[sender].append([number, case.size_bytes, began_s + at_s, receiver])
    for sender, some in orders.items():
        print(json.dumps(some), file=running[sender].stdin, flush=True)
    receives = running[0 if case.pattern == "one down" else SERVER].stdout
    assert receives
    taken_s = [inf] * len(case.sent)
    patience = threading.Timer(PATIENCE_S, lambda: [process.kill() for process in running.values()])
    patience.start()
    for _ in case.sent:
        if not (line := receives.readline()):
            break
        ended_s, number, _ = json.loads(line)
        taken_s[int(number)] = ended_s - began_s - case.sent[int(number)][1]
    patience.cancel()
    return taken_s


def run(control: str) -> None:
    """Measure all cases, and write them beside what the simulator says."""
    check_kernel()
    rows = []
    for rate_bps, is_shared in product(RATES_BPS, (False, True)):
        fleet = fleet_of(rate_bps, is_shared)
        some = [each for each in cases() if each.rate_bps == rate_bps]
        some = [each for each in some if each.pattern.startswith("eight") == is_shared]
        while some:
            with nodes(fleet, control) as running:
                is_lost = False
                while some and not is_lost:
                    found = [*rows_of(some.pop(0), fleet, running, control)]
                    is_lost = any(row["measured_s"] == inf for row in found)
                    rows += found
                    print(found[-1], flush=True)
        pd.DataFrame(rows).to_csv(DATA / f"live_kernel_{control}.csv", index=False, float_format="%.5g")


def rows_of(
    case: Case, fleet: Fleet, running: dict[Node, subprocess.Popen[str]], control: str
) -> Iterator[dict[str, Any]]:
    """Generate a row for each message."""
    simulated_s, with_overhead_s = case.simulated_s(fleet), case.simulated_s(fleet, *OVERHEAD)
    for repeat in range(REPEATS if max(simulated_s) <= SHORT_S else 1):
        measured_s = measure(case, running)
        for message, seconds in enumerate(zip(measured_s, simulated_s, with_overhead_s, strict=True)):
            yield {
                "control": control, "pattern": case.pattern, "rate_bps": case.rate_bps, "size_bytes": case.size_bytes,
                "repeat": repeat, "message": message,
                **dict(zip(("measured_s", "simulated_s", "with_overhead_s"), seconds, strict=True)),
            }  # fmt: skip
        if inf in measured_s:
            return


def tell() -> None:
    """Print measured over simulated seconds: until the last message of a case has arrived, and message by message."""
    rows = pd.concat([pd.read_csv(DATA / f"live_kernel_{control}.csv") for control in CONTROLS])
    case = ["control", "pattern", "rate_bps", "size_bytes"]
    last = rows.groupby([*case, "repeat"])[["measured_s", "simulated_s", "with_overhead_s"]].max()
    for of in ("simulated_s", "with_overhead_s"):
        ratios = (last["measured_s"] / last[of]).groupby(case).median()
        print(f"\nuntil the last, measured over {of}\n{ratios.unstack(['control', 'rate_bps']).round(2).to_string()}")
    large = rows[rows["size_bytes"] >= LARGE]
    each = large["measured_s"] / large["with_overhead_s"]
    found = each.groupby([large["pattern"], large["control"]]).describe().round(3)
    print(f"\neach message of {LARGE} bytes and more, with overhead\n{found.to_string()}")
    small = rows[(rows["size_bytes"] == SIZES[0]) & rows["pattern"].str.startswith("one")]
    print(f"\nmilliseconds of the smallest\n{(1000 * small.groupby(case)['measured_s'].median()).round(1).to_string()}")


def main() -> None:
    """Do what the command line asks for."""
    match sys.argv[1:]:
        case ["run", control]:
            run(control)
        case ["tell"]:
            tell()
        case ["be", "router", _]:
            leave_network()
            route()
            print("there", flush=True)
            time.sleep(3600)
        case ["be", node, secret]:
            be(SERVER if node == str(SERVER) else int(node), secret.encode())


if __name__ == "__main__":
    main()
