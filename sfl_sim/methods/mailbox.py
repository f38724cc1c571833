"""Mailbox of one client at the server: the client sends without waiting for what becomes of it (one-way traffic).

Two flows of the client run side by side: one makes messages and puts them, the other takes them at the server.

    mailbox = Mailbox(c, ahead=4)
    yield par([mailbox.closing(self.feed(mailbox, ...)), mailbox.closing(self.serve(mailbox, ...))])
"""

from __future__ import annotations

from collections import deque

from sfl_sim.ops import Event, Flow, Lost, Occur, Value, occur, wait


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
        if self.ahead is not None and self._n_put - self._n_done >= self.ahead:
            yield from self._wait(f"the server to be done with client {self.client}'s message {self._n_done}")
        self._check_open()

    def put(self, message: Value) -> Flow:
        """Put a message that has come to the server."""
        self._messages.append(message)
        self._n_put += 1
        if self._awaited:
            yield self._wake(self._awaited)

    def take(self) -> Flow:
        """Wait for the next message, and give it; with the one before, the server is done."""
        self._n_done = self._n_taken
        if self._awaited:
            yield self._wake(self._awaited)
        if not self._messages:
            yield from self._wait(f"client {self.client} to have sent message {self._n_taken}")
        self._check_open()
        self._n_taken += 1
        return self._messages.popleft()

    def close(self) -> Flow:
        """Let whoever waits here go on, and get `Lost`."""
        self.is_closed = True
        if self._awaited:
            yield self._wake(self._awaited)

    def _wait(self, about: str) -> Flow:
        if not self.is_closed:
            self._awaited = Event(about)
            yield wait([self._awaited])

    def _wake(self, event: Event) -> Occur:
        self._awaited = None
        return occur(event)

    def _check_open(self) -> None:
        if self.is_closed:
            raise Lost(self.client)


def closing(flow: Flow, *mailboxes: Mailbox) -> Flow:
    """Run a flow of a client; if the client is lost in it, all `mailboxes` close."""
    try:
        return (yield from flow)
    except Lost:
        for mailbox in mailboxes:
            yield from mailbox.close()
        raise
