"""Links that a kernel carries, between network namespaces of processes: their rates, and what is left of them."""

import json
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest
from command import sfl_sim

from sfl_sim.build.setup import setup_of
from sfl_sim.errors import ScenarioError
from sfl_sim.features.live import namespaces
from sfl_sim.features.live.namespaces import SERVER_IP, Namespaces, check_kernel
from sfl_sim.ops import SERVER
from sfl_sim.scenario.load import parse

pytestmark = pytest.mark.xdist_group("live")
needs_kernel = pytest.mark.skipif(
    bool(namespaces._tried("tbf rate 1mbit burst 3000 latency 1s")), reason="needs Linux, root, and tc with tbf"
)
SCENARIO = {
    "name": "small",
    "data": {"name": "digits", "train_samples": 96, "test_samples": 50},
    "model": {"name": "cnn_small", "cut": 2},
    "method": {"name": "splitfed_v1"},
    "clients": {
        "count": 2,
        "compute": {"macs_per_s": 1.0e8},
        "network": {"uplink_bps": [4.0e6, 8.0e6], "downlink_bps": 16.0e6},
    },
    "server": {"macs_per_s": 1.0e9},
    "train": {"rounds": 1, "batch_size": 16},
}
SHARED = {"access_points": 1, "capacity_bps": 2.0e6, "backhaul_bps": {"up": 1.0e6, "down": 3.0e6}}
NETWORK = "import ctypes, time; assert not ctypes.CDLL(None).unshare(0x40000000);"
ROUTES = "open('/proc/sys/net/ipv4/ip_forward', 'w').write('1');"
RECEIVES = (
    "import socket; listening = socket.create_server(('', 5000)); print('listening', flush=True);"
    "other, _ = listening.accept();\nwhile other.recv(65536): pass\nother.send(b'.')"
)
SENDS = (
    f"import socket, sys, time; s = socket.create_connection(('{SERVER_IP}', 5000)); began_s = time.monotonic();"
    "s.sendall(bytes(int(sys.argv[1]))); s.shutdown(socket.SHUT_WR); s.recv(1); print(time.monotonic() - began_s)"
)


@contextmanager
def networks(**network):
    """Namespaces of the scenario's nodes, with processes that only wait in them."""
    scenario = SCENARIO | {"clients": SCENARIO["clients"] | {"network": SCENARIO["clients"]["network"] | network}}
    with ExitStack() as stack:

        def process(code):
            started = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", f"{NETWORK}{code} print(flush=True); time.sleep(60)"],
                                 stdout=subprocess.PIPE)
            )  # fmt: skip
            stack.callback(started.kill)
            started.stdout.readline()
            return started.pid

        nodes = {node: process("") for node in (SERVER, 0, 1)}
        yield Namespaces(process(ROUTES), nodes, setup_of(parse(scenario).base, pixels=True).fleet)


def inside(process, *command, **how):
    return subprocess.Popen(["nsenter", f"--net=/proc/{process}/ns/net", *command], stdout=subprocess.PIPE, text=True)


def rates_bps(process):
    """The rates of a network's shaped links, by name."""
    shown = json.loads(inside(process, "tc", "-j", "qdisc", "show").communicate()[0])
    return {link["dev"]: 8 * link["options"]["rate"] for link in shown if link["kind"] == "tbf"}


@needs_kernel
def test_a_message_takes_its_bytes_and_headers_over_the_link_s_rate():
    with networks() as found:
        found.shape(1.0)
        receives = inside(found.processes[0], sys.executable, "-c", RECEIVES)
        receives.stdout.readline()
        taken_s = float(inside(found.processes[1], sys.executable, "-c", SENDS, "250000").communicate()[0])
        receives.communicate()
    priced_s = 8 * 250_000 / 4.0e6
    assert priced_s < taken_s < 1.3 * priced_s


@needs_kernel
def test_every_link_has_its_rate_in_slowed_seconds():
    with networks(shared=SHARED) as found:
        found.shape(2.0)
        server, first, second = map(rates_bps, found.processes)
        assert (server, first, second) == ({"own": 1.5e6}, {"own": 2e6}, {"own": 4e6})
        routed = rates_bps(found.router)
        in_turn = [rate for name, rate in routed.items() if name.startswith("ifb")]
        assert in_turn == [1e6]  # both directions of the access point
        assert {name: rate for name, rate in routed.items() if name.startswith("v")} == {
            "v0": 5e5,
            "v1": 8e6,
            "v2": 8e6,
        }


@needs_kernel
def test_a_live_run_by_the_kernel_says_how_its_links_were_and_leaves_no_network(tmp_path, capfd):
    before = subprocess.run(["lsns", "-t", "net", "-n"], capture_output=True, text=True).stdout.count("\n")
    (tmp_path / "small.yaml").write_text(json.dumps(SCENARIO), encoding="utf-8")
    sfl_sim("live", tmp_path / "small.yaml", "--emulate", "netns", "--out", tmp_path / "out")
    import pandas as pd

    nodes, steps = (pd.read_parquet(tmp_path / "out" / f"{name}.parquet") for name in ("nodes", "steps"))
    assert set(nodes["links"]) == {"netns"}
    sent = steps[steps["size_bytes"] > 10_000]
    assert (sent["lasts_s"] > 0.7 * sent["priced_s"]).all()
    until_s = time.monotonic() + 10
    while time.monotonic() < until_s:
        if subprocess.run(["lsns", "-t", "net", "-n"], capture_output=True, text=True).stdout.count("\n") <= before:
            return
    raise AssertionError("a network is left")


def test_without_the_kernel_s_means_there_is_one_line(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ScenarioError) as raised:
        check_kernel()
    assert (raised.value.key, raised.value.found) == ("--emulate", "netns")
    assert "\n" not in str(raised.value)
