"""Sockets of a live run: whoever has its key takes part, and nobody else."""

import socket as tcp
import stat
import threading
import time
from contextlib import contextmanager, suppress

import pytest
import zmq

from sfl_sim.errors import OutputError, ScenarioError
from sfl_sim.features.live.links import RunKey, address_of, process_of
from sfl_sim.ops import AGGREGATOR, SERVER, ServerNode

PATIENCE_MS = 5000
REFUSED_MS = 100


@pytest.fixture
def key():
    return RunKey.new()


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def knock(context):
    """Connects with a key, and says something."""
    sockets = []  # else they close at once

    def connect(key, address, name=b"0"):
        sockets.append(key.client(context.socket(zmq.DEALER)))
        sockets[-1].identity = name
        sockets[-1].connect(address)
        sockets[-1].send(b"hello")
        return sockets[-1]

    return connect


@pytest.fixture
def door(context, key):
    """A socket that asks for the key, and its address."""
    guard = key.guard(context)
    socket = key.server(context.socket(zmq.ROUTER))
    yield socket, f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
    guard.stop()


def test_a_key_is_kept_in_a_file_of_its_owner_alone(key, tmp_path):
    file = tmp_path / "key"
    key.write(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    read = RunKey.read(file)
    assert (read.secret, read.public) == (key.secret, key.public)
    with pytest.raises(OutputError, match=str(file)):
        RunKey.new().write(file)
    assert RunKey.read(file).secret == key.secret


def test_no_key_is_like_another(key):
    assert RunKey.new().secret != key.secret


@pytest.mark.parametrize("content", [None, b"", b"short", b"\xff" * 40])
def test_what_is_no_key_is_one_line(content, tmp_path):
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ScenarioError) as raised:
        RunKey.read(file)
    assert (raised.value.key, raised.value.found) == ("--key", str(file))
    assert "\n" not in str(raised.value)


def test_both_ends_of_a_connection_have_the_key(door, knock, key):
    socket, address = door
    node = knock(key, address)
    assert socket.poll(PATIENCE_MS)
    assert socket.recv_multipart() == [b"0", b"hello"]
    socket.send_multipart([b"0", b"welcome"])
    assert node.recv() == b"welcome"


def test_who_has_another_key_is_not_heard(door, knock, key):
    socket, address = door
    knock(RunKey.new(), address, b"stranger")
    assert not socket.poll(REFUSED_MS)
    knock(key, address)
    assert socket.poll(PATIENCE_MS)
    assert socket.recv_multipart()[0] == b"0"
    assert not socket.poll(REFUSED_MS)


def test_who_shows_the_public_half_without_the_secret_is_not_heard(door, context, key):
    socket, address = door
    with context.socket(zmq.DEALER) as thief:
        thief.curve_serverkey, thief.curve_publickey = key.public, key.public
        thief.curve_secretkey, thief.linger = RunKey.new().secret, 0
        thief.connect(address)
        thief.send(b"hello")
        assert not socket.poll(REFUSED_MS)


def test_a_node_does_not_talk_to_a_driver_with_another_key(context, knock, key):
    other = RunKey.new()
    guard = other.guard(context)
    with other.server(context.socket(zmq.ROUTER)) as driver:
        knock(key, f"tcp://127.0.0.1:{driver.bind_to_random_port('tcp://127.0.0.1')}")
        assert not driver.poll(REFUSED_MS)
    guard.stop()


def test_a_message_to_nobody_is_an_error_and_no_message_is_dropped(door, knock, key):
    socket, address = door
    with pytest.raises(zmq.ZMQError):
        socket.send_multipart([b"nobody", b"hello"])
    knock(key, address)
    socket.recv_multipart()
    node = knock(key, address, b"1")
    socket.recv_multipart()
    for number in range(3000):  # more than ZeroMQ keeps by default
        socket.send_multipart([b"1", b"%d" % number])
    assert [int(node.recv()) for _ in range(3000)] == list(range(3000))


def test_a_message_may_take_longer_than_a_connection_may_be_silent(door, context, key, monkeypatch):
    monkeypatch.setattr("sfl_sim.features.live.links.SILENT_S", 1)
    socket, address = door
    with slow_way(address, bps=4e6) as slow, key.client(context.socket(zmq.DEALER)) as node:
        node.connect(slow)
        node.send(bytes(1_200_000))  # 2.4 s
        assert socket.poll(PATIENCE_MS)
        assert len(socket.recv_multipart()[1]) == 1_200_000


@contextmanager
def slow_way(address, bps):
    """The address of a way to another one, which lets so many bits pass in a second."""
    host, port = address.removeprefix("tcp://").split(":")

    def pump(one, other, bps):
        with suppress(OSError):
            while data := one.recv(4096):
                other.sendall(data)
                time.sleep(8 * len(data) / bps)

    def carry():
        one, _ = listening.accept()
        with one, tcp.create_connection((host, int(port))) as other:
            back = threading.Thread(target=pump, args=(other, one, 1e12))
            back.start()
            pump(one, other, bps)
            other.shutdown(tcp.SHUT_RDWR)
            back.join()

    with tcp.socket() as listening:
        listening.setsockopt(tcp.SOL_SOCKET, tcp.SO_RCVBUF, 65536)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        carries = threading.Thread(target=carry)
        carries.start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
    carries.join(10)


@pytest.mark.parametrize(
    ("node", "name", "process"),
    [(3, b"3", 3), (SERVER, b"server", SERVER), (AGGREGATOR, b"aggregator", SERVER)],
)
def test_servers_of_every_role_are_one_process(node, name, process):
    assert address_of(node) == name
    assert process_of(node) == process


def test_a_server_of_a_tier_is_that_process_too():
    assert process_of(ServerNode("edge", 1)) == SERVER
