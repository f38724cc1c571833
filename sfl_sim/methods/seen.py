"""What a method may know of speeds: times of its clients in rounds that have ended, and nothing else of the system."""

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

NEWEST = 0.5
"""Weight of a client's latest round in its smoothed rates."""


class ClientRound(NamedTuple):
    """A client in a round: what it, its links and the server have done for it, and for how long they were busy with it.

    Attributes:
        queue_s: seconds for which its jobs have waited in the server's queue.
    """

    device_s: float
    macs: float
    up_s: float
    up_bytes: float
    down_s: float
    down_bytes: float
    server_s: float = 0.0
    jobs: float = 0.0
    queue_s: float = 0.0


class ObservedTimes:
    """Times that have been recorded, as a server can know them: devices report the durations of their steps.

    Rates include what else takes time, such as latency. They are smoothed over a client's rounds, the latest counting
    half; a client that has not been seen has the median of those that have. None of this is known in the first round.

    Args:
        workers: of the server, which it knows.

    Attributes:
        rounds: of each client that has been seen, what it has done, by round. A client that was lost counts with what
            it has done until then.
    """

    def __init__(self, workers: float = 1) -> None:
        self.workers = workers
        self.rounds: dict[int, dict[int, ClientRound]] = {}
        self._server_macs = self._server_s = 0.0

    def learn(self, round: int, clients: Mapping[int, tuple[float, ...]], server: tuple[float, float]) -> None:
        """Note a round that has ended.

        Args:
            clients: of each client, the numbers of its `ClientRound`.
            server: MACs of servers, and the seconds that their workers took for them.
        """
        for c, numbers in clients.items():
            self.rounds.setdefault(c, {})[round] = ClientRound(*numbers)
        macs, worked_s = server
        self._server_macs += macs
        self._server_s += worked_s

    @property
    def server_macs_per_s(self) -> float | None:
        """MACs per second of a server's worker while it works; None if none has."""
        return self._server_macs / self._server_s if self._server_s else None

    def macs_per_s(self, client: int) -> float | None:
        """MACs per second of a client's device while it works."""
        return self._of(client, "macs", "device_s")

    def up_bps(self, client: int) -> float | None:
        """Bits per second of its uplink while it sends."""
        rate = self._of(client, "up_bytes", "up_s")
        return rate and 8 * rate

    def down_bps(self, client: int) -> float | None:
        """Bits per second of its downlink while it receives."""
        rate = self._of(client, "down_bytes", "down_s")
        return rate and 8 * rate

    def queue_s(self, client: int) -> float | None:
        """Seconds for which one of its jobs waits in the server's queue."""
        return self._of(client, "queue_s", "jobs")

    def _of(self, client: int, amount: str, per: str) -> float | None:
        known = [c for c in self.rounds if self._smoothed(self.rounds[c], amount, per) is not None]
        of = [client] if client in known else known
        rates = [rate for c in of if (rate := self._smoothed(self.rounds[c], amount, per)) is not None]
        return median(rates) if rates else None

    @staticmethod
    def _smoothed(rounds: Mapping[int, ClientRound], amount: str, per: str) -> float | None:
        rate = None
        for visit in rounds.values():
            if getattr(visit, per):
                new = getattr(visit, amount) / getattr(visit, per)
                rate = new if rate is None else NEWEST * new + (1 - NEWEST) * rate
        return rate
