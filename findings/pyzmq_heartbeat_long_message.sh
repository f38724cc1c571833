#!/bin/sh
# ZeroMQ's heartbeats end a connection in the middle of a message that takes longer than their timeout.
#
# Expected: a connection is alive as long as bytes arrive. The manual says that a connection is timed out "after sending a
#   PING ZMTP command and not receiving any traffic".
# Seen: only whole frames count as traffic. A message of 3 MB over a way of 4 Mbit/s, with a heartbeat each second and a
#   timeout of 2 s: the receiver disconnects after about 3 s while bytes keep coming, and the message is lost without an
#   error at the sender, which connects again. Without heartbeats it arrives after 6 s and more. So heartbeats that notice a dead
#   peer limit the size of messages to rate times timeout. The kernel's keep-alive (tcp_keepalive) with TCP_USER_TIMEOUT
#   (tcp_maxrt) has no such limit.
# Source: libzmq, src/stream_engine_base.cpp: a PING starts the timer (produce_ping_message), and decode_and_push, which
#   is called for a decoded frame, cancels it; docs of ZMQ_HEARTBEAT_TIMEOUT in zmq_setsockopt.
# Versions: pyzmq 27.3.0, libzmq 4.3.5, Python 3.11.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyzmq==27.3.0
"$folder/venv/bin/python" - <<'END'
import os
import socket
import sys
import threading
import time
from contextlib import suppress

import zmq
from zmq.utils.monitor import parse_monitor_message

print("pyzmq", zmq.__version__, "libzmq", zmq.zmq_version())
BPS, SIZE = 4e6, 3_000_000


def pump(one, other, bps):
    """Pass bytes on, so many bits a second."""
    with suppress(OSError):  # the other end has gone
        while data := one.recv(4096):
            other.sendall(data)
            time.sleep(8 * len(data) / bps)


def slow_way(port):
    """Open a port that leads to another one, slowly."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    listening.bind(("127.0.0.1", 0))
    listening.listen()

    def connect():
        while True:
            one, other = listening.accept()[0], socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=pump, args=(one, other, BPS), daemon=True).start()
            threading.Thread(target=pump, args=(other, one, 1e12), daemon=True).start()

    threading.Thread(target=connect, daemon=True).start()
    return listening.getsockname()[1]


def sent(heartbeats):
    """Send a message; give what happens within twenty seconds."""
    context = zmq.Context()
    receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    if heartbeats:
        for end in (receiver, sender):
            end.heartbeat_ivl, end.heartbeat_timeout = 1000, 2000
    monitor = receiver.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    sender.connect(f"tcp://127.0.0.1:{slow_way(receiver.bind_to_random_port('tcp://127.0.0.1'))}")
    sender.send(b"hello")
    receiver.recv()
    began_s = time.monotonic()
    sender.send(bytes(SIZE))
    poller = zmq.Poller()
    poller.register(receiver, zmq.POLLIN)
    poller.register(monitor, zmq.POLLIN)
    while ready := dict(poller.poll(max(0, 20_000 - 1000 * (time.monotonic() - began_s)))):
        at = f"{time.monotonic() - began_s:.1f} s"
        if monitor in ready:
            parse_monitor_message(monitor.recv_multipart())
            print(f"  {at}: the receiver disconnects")
        if receiver in ready:
            print(f"  {at}: {len(receiver.recv()):,} bytes have arrived")
            return "arrived"
    return "lost"


print("without heartbeats:")
without = sent(False)
print("with heartbeats each second and a timeout of 2 s:")
with_them = sent(True)
print(without, with_them)
sys.stdout.flush()
os._exit(0 if (without, with_them) == ("arrived", "lost") else 1)
END
