"""Mailbox of one client at the server: the client sends without waiting for what becomes of it (one-way traffic).

Two flows of the client run side by side: one makes messages and puts them, the other takes them at the server.

    mailbox = Mailbox(c, ahead=4)
    yield par([mailbox.closing(self.feed(mailbox, ...)), mailbox.closing(self.serve(mailbox, ...))])
"""

from __future__ import annotations

from collections import deque
from typing import Any

from sfl_sim.ops import Event, Flow, Lost, Value, occur, wait


class Events(dict[Any, Event]):
    """Events by what they belong to, each made when it is first asked for."""

    def __init__(self, about: str) -> None:
        super().__init__()
        self.about = about

    def __missing__(self, key: Any) -> Event:
        event = self[key] = Event(f"{self.about} {key}")
        return event


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
        self._n_put = self._n_taken = 0
        self._put = Events(f"client {client} to have sent message")
        self._done = Events(f"the server to be done with client {client}'s message")

    def room(self) -> Flow:
        """Wait until the client may make its next message."""
        events = [] if self.ahead is None or self._n_put < self.ahead else [self._done[self._n_put - self.ahead]]
        yield from self._wait(events)

    def put(self, message: Value) -> Flow:
        """Put a message that has come to the server."""
        self._messages.append(message)
        self._n_put += 1
        yield occur(self._put[self._n_put - 1])

    def take(self) -> Flow:
        """Wait for the next message, and give it; with the one before, the server is done."""
        if self._n_taken:
            yield occur(self._done[self._n_taken - 1])
        yield from self._wait([self._put[self._n_taken]])
        self._n_taken += 1
        return self._messages.popleft()

    def closing(self, flow: Flow) -> Flow:
        """Run a flow of the client; if the client is lost in it, whoever waits here goes on, and gets `Lost`, too."""
        try:
            return (yield from flow)
        except Lost:
            self.is_closed = True
            for event in [*self._put.values(), *self._done.values()]:
                if not event.occurred:
                    yield occur(event)
            raise

    def _wait(self, events: list[Event]) -> Flow:
        if not self.is_closed:
            yield wait(events)
        if self.is_closed:
            raise Lost(self.client)
