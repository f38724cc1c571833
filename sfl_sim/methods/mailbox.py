"""Mailbox of one client at the server: the client sends without waiting for what becomes of it (one-way traffic).

Two flows of the client run side by side: one makes messages and puts them, the other takes them at the server.

    mailbox = Mailbox(c, ahead=4)
    yield par([mailbox.closing(self.feed(mailbox, ...)), mailbox.closing(self.serve(mailbox, ...))])
"""

from __future__ import annotations

from collections import deque

from sfl_sim.ops import Event, Flow, Lost, Value, occur, wait


class Mailbox:
    """Messages of a client that wait at the server, in their order. Once the client is lost, nobody waits here.

    Args:
        client: the client.
        ahead: how many messages it may have made with which the server is not done yet; None: any number.
    """

    def __init__(self, client: int, ahead: int | None = None) -> None:
        self.client = client
        self.ahead = ahead
        self.is_closed = False
        self._messages: deque[Value] = deque()
        self._n_put = self._n_taken = self._n_done = 0
        self._awaited: Event | None = None  # one of the two waits at most: the client for room, or the server

    def room(self) -> Flow:
        """Wait until the client may make its next message."""
        has_room = self.ahead is None or self._n_put - self._n_done < self.ahead
        yield from self._until(has_room, f"the server to be done with client {self.client}'s message {self._n_done}")

    def put(self, message: Value) -> Flow:
        """Put a message that has come to the server."""
        self._messages.append(message)
        self._n_put += 1
        yield from self._wake()

    def take(self) -> Flow:
        """Wait for the next message, and give it; with the one before, the server is done."""
        self._n_done = self._n_taken
        yield from self._wake()
        yield from self._until(bool(self._messages), f"client {self.client} to have sent message {self._n_taken}")
        self._n_taken += 1
        return self._messages.popleft()

    def closing(self, flow: Flow) -> Flow:
        """Run a flow of the client; if the client is lost in it, whoever waits here goes on, and gets `Lost`, too."""
        try:
            return (yield from flow)
        except Lost:
            self.is_closed = True
            yield from self._wake()
            raise

    def _until(self, is_so: bool, about: str) -> Flow:
        """Wait to be woken unless it `is_so` already; raises Lost once the client is lost."""
        if not (is_so or self.is_closed):
            self._awaited = Event(about)
            yield wait([self._awaited])
        if self.is_closed:
            raise Lost(self.client)

    def _wake(self) -> Flow:
        """Let whoever waits here go on."""
        if (event := self._awaited) is not None:
            self._awaited = None
            yield occur(event)
