"""Sockets of a live run: encrypted by one key that driver and nodes share, without delay, and without limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from sfl_sim.errors import OutputError, ScenarioError
from sfl_sim.ops import SERVER, Node, ServerNode

SILENT_S = 60
"""How long the other end's kernel may acknowledge nothing: on a slow link, eight connections starve one for ten."""


class RunKey:
    """The secret of a run: whoever has its file can drive its nodes, or be one of them.

    Attributes:
        secret, public: a CURVE key pair, which both ends of every connection use.
    """

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.public: bytes = zmq.curve_public(secret)

    @classmethod
    def new(cls) -> RunKey:
        """Draw a key."""
        return cls(zmq.curve_keypair()[1])

    @classmethod
    def read(cls, file: Path) -> RunKey:
        """Read a key. Raises ScenarioError if the file has none."""
        try:
            return cls(file.read_bytes().strip())
        except (OSError, ValueError, zmq.ZMQError) as error:
            raise ScenarioError(f"is no key ({error}); the driver writes one", key="--key", found=str(file)) from error

    def write(self, file: Path) -> None:
        """Write a key to a new file that only its owner may read. Raises OutputError."""
        try:
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                opened.write(self.secret + b"\n")
        except OSError as error:
            raise OutputError(f"{file} cannot be written: {error}") from error

    def client(self, socket: Any) -> Any:
        """Let a socket that connects show this key, and ask for it."""
        socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = self.public, self.secret, self.public
        return _steady(socket)

    def server(self, socket: Any) -> Any:
        """Let a socket that is connected to ask for this key."""
        socket.curve_server, socket.curve_secretkey, socket.curve_publickey = True, self.secret, self.public
        return _steady(socket)

    def guard(self, context: Any) -> ThreadAuthenticator:
        """Admit nobody without this key to the sockets of a context."""
        guard = ThreadAuthenticator(zmq.Context(context))
        guard.start()
        guard.configure_curve_callback("*", self)
        return guard

    def callback(self, domain: str, key: bytes) -> bool:
        """Say whether a public key, which somebody has shown, is this one."""
        return bool(key == self.public)


def _steady(socket: Any) -> Any:
    """Never drop a message for want of place, notice a silent peer, and forget what nobody takes at the end."""
    socket.set_hwm(0)
    socket.linger, socket.tcp_maxrt = 0, 1000 * SILENT_S
    # ZeroMQ's own heartbeats count whole messages alone: a message that took longer would end its connection.
    socket.tcp_keepalive, socket.tcp_keepalive_idle, socket.tcp_keepalive_intvl = 1, 1, 1
    socket.tcp_keepalive_cnt = SILENT_S
    if socket.type == zmq.ROUTER:
        socket.router_mandatory, socket.router_handover = True, True
    return socket


def address_of(node: Node) -> bytes:
    """Give the name of a node in messages."""
    return str(node).encode()


def connection_of(node: Node) -> bytes:
    """Draw the name of a node's connection to the driver: another one for every agent that shows the same number."""
    return b"%s %s" % (address_of(node), os.urandom(4).hex().encode())


def process_of(node: Node) -> Node:
    """Give the node whose process stands for a node: servers of every role are one."""
    return SERVER if isinstance(node, ServerNode) else node
