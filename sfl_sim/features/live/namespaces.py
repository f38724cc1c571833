"""Links by the kernel: a network namespace for every node of this machine, around one that routes between them.

Namespaces have no names: each lives as long as its process, so that none is left over, however a run ends.
"""

import ctypes
import subprocess
from collections.abc import Mapping
from math import inf
from pathlib import Path

from sfl_sim.errors import ScenarioError
from sfl_sim.ops import SERVER, Node
from sfl_sim.system.fleet import Fleet
from sfl_sim.system.topology import SERVER as AT_SERVER

KEY = "--emulate"
NEW_NETWORK = 0x40000000
"""Linux's CLONE_NEWNET."""
SERVER_IP = "10.0.0.2"
BURST_S, BURST_BYTES = 0.002, 3_028
"""What passes a link at once: so many seconds of its rate, and two Ethernet frames at least."""
QUEUE_S, QUEUE_BYTES = 0.4, 150_000
"""What may wait before a link: so many seconds of its rate, and a hundred frames at least."""
MOST_BYTES = 1 << 30
"""More are no number for tc."""


def leave_network() -> None:
    """Move this thread, and the processes that it will start, to a new network without links."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no network namespace")


def route() -> None:
    """Let this process's network pass packets on."""
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")


def check_kernel() -> None:
    """Raise ScenarioError if this machine has no namespaces with links that keep a rate."""
    if problem := _tried("tbf rate 1mbit burst 3000 latency 1s"):
        needs = f"needs Linux, root, and the commands unshare, nsenter, ip and tc with tbf: {problem}"
        raise ScenarioError(needs, key=KEY, found="netns", allowed=["sleep", "none"])


def _tried(qdisc: str) -> str:
    """Give what goes wrong as a link of a new network is shaped; nothing if it can be."""
    command = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", *qdisc.split()]
    try:
        tried = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return (tried.stderr.strip() or "it fails").splitlines()[0] if tried.returncode else ""


class Namespaces:
    """Networks of nodes, each with one link to the network that routes, in which links that clients share are.

    Args:
        router: the process whose network routes.
        processes: those of the nodes.
        fleet: whose links these are.

    Attributes:
        delays: whether the kernel can delay packets (netem), so that links have a latency.
    """

    def __init__(self, router: int, processes: Mapping[Node, int], fleet: Fleet) -> None:
        self.router, self.fleet = router, fleet
        self.processes = [processes[SERVER], *(processes[client] for client in range(len(fleet.latency_s)))]
        self.delays = not _tried("netem delay 1ms")
        self._wire()

    def _wire(self) -> None:
        """Connect all of them; links are as fast as the machine."""
        edges = self.fleet.topology.edges if self.fleet.topology else ()
        self._shared = {number: edge for number, edge in enumerate(edges) if AT_SERVER not in edge}
        links = [line for n in self._shared for line in (f"link add ifb{n} type ifb", f"link set ifb{n} up")]
        filters = [f"qdisc add dev v{number} ingress" for number in range(len(self.processes)) if self._shared]
        for number, process in enumerate(self.processes):
            links += [
                f"link add v{number} type veth peer name own netns {process}",
                f"addr add {_network(number)}.1/24 dev v{number}",
                f"link set v{number} gso_max_segs 1 up",  # else up to 64 kB pass as one packet
            ]
        for client in range(len(self.processes) - 1):
            filters += [_through(n, f"v{client + 1}", "u32 0 0") for n in self._passed(client, None)]
            filters += [_through(n, "v0", f"ip dst {_network(client + 1)}.2/32") for n in self._passed(None, client)]
        _batch(self.router, "ip", links)
        _batch(self.router, "tc", filters)
        for number, process in enumerate(self.processes):
            own = [f"addr add {_network(number)}.2/24 dev own", "link set own gso_max_segs 1 up"]
            _batch(process, "ip", [*own, f"route add default via {_network(number)}.1"])

    def _passed(self, sender: int | None, receiver: int | None) -> list[int]:
        """List the shared links on a way that are not the server's own."""
        topology = self.fleet.topology
        return [n for n in topology.path(sender, receiver) if n in self._shared] if topology else []

    def shape(self, slowdown: float) -> None:
        """Give links their rates, and latencies if the kernel has them, in seconds that are so many times as long."""
        fleet, topology = self.fleet, self.fleet.topology
        capacities = dict(zip(topology.edges, topology.capacity_bps, strict=True)) if topology else {}
        at_router = [_shaped(f"ifb{n}", capacities[edge] / slowdown) for n, edge in self._shared.items()]
        for edge, capacity_bps in capacities.items():
            if edge[1] == AT_SERVER:
                at_router.append(_shaped("v0", capacity_bps / slowdown))
            elif edge[0] == AT_SERVER:
                _batch(self.processes[0], "tc", [_shaped("own", capacity_bps / slowdown)])
        rates = fleet.uplinks.mean_bps, fleet.downlinks.mean_bps, fleet.latency_s
        for number, (up_bps, down_bps, latency_s) in enumerate(zip(*rates, strict=True), 1):
            delay_s = latency_s * slowdown if self.delays else 0.0
            _batch(self.processes[number], "tc", _link("own", up_bps / slowdown, delay_s))
            at_router += _link(f"v{number}", down_bps / slowdown, delay_s)
        _batch(self.router, "tc", at_router)


def _network(number: int) -> str:
    return f"10.{number >> 8}.{number & 255}"


def _through(shared: int, link: str, which: str) -> str:
    """Write the rule by which packets that have come over a link wait in the queue of a shared one."""
    return f"filter add dev {link} ingress protocol ip u32 match {which} action mirred egress redirect dev ifb{shared}"


def _link(device: str, rate_bps: float, delay_s: float) -> list[str]:
    """Write how a client's own link is shaped."""
    if rate_bps == inf:
        return [f"qdisc replace dev {device} root netem delay {delay_s}s limit 1000000"] if delay_s else []
    delay = f"qdisc replace dev {device} parent 1: netem delay {delay_s}s limit 1000000"
    return [_shaped(device, rate_bps), *([delay] if delay_s else [])]


def _shaped(device: str, rate_bps: float) -> str:
    burst = min(MOST_BYTES, max(BURST_BYTES, int(BURST_S * rate_bps / 8)))
    limit = min(MOST_BYTES, max(QUEUE_BYTES, int(QUEUE_S * rate_bps / 8)))
    return f"qdisc replace dev {device} root handle 1: tbf rate {rate_bps:.0f}bit burst {burst} limit {limit}"


def _batch(process: int, tool: str, lines: list[str]) -> None:
    """Run commands of `ip` or `tc` in the network of a process. Raises ScenarioError."""
    command = ["nsenter", f"--net=/proc/{process}/ns/net", tool, "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ScenarioError(f"{tool} fails: {said[0] if said else done.returncode}", key=KEY, found="netns")
