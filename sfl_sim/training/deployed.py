"""A client's model in use: layers on its device, perhaps an exit there, and the layers at the server behind the cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import Work


@dataclass(frozen=True)
class Deployed:
    """What answers the requests of one client.

    Attributes:
        front: phi, on the device: parts that are applied one after another.
        head: h, the exit on what `front` gives; None where no request can be answered by a head on the device.
        back: the rest of theta, at the server; nothing where the device holds the whole model.
        feature_shape: of what one sample has at the cut, without the batch dimension.
    """

    front: Sequence[Replica | Joined]
    head: Replica | None
    back: Sequence[Replica | Joined]
    feature_shape: tuple[int, ...]

    @property
    def device_work(self) -> Work:
        """What the device computes for a request: front and head."""
        return _forward([*self.front, *([self.head] if self.head else [])])

    @property
    def server_work(self) -> Work:
        """What the server computes for a request that the device has not answered."""
        return _forward(self.back)

    @property
    def feature_bytes(self) -> int:
        """Of what a request that the device does not answer sends to the server."""
        part = self.front[-1].part
        return part.out_numel * part.wire_dtype.itemsize

    @property
    def device_parameters(self) -> int:
        """|phi| + |h|."""
        return sum(replica.part.n_parameters for replica in (*self.front, *([self.head] if self.head else [])))

    @property
    def server_parameters(self) -> int:
        """|theta|, as far as this client's requests run through it."""
        return sum(replica.part.n_parameters for replica in self.back)


def _forward(parts: Sequence[Replica | Joined]) -> Work:
    return Work.total([replica.part.work(1, passes=1) for replica in parts])
