"""Settings for calling the parts of a network: arithmetic, a limit on autograd graphs, and the loss at its end."""

import math
from dataclasses import dataclass, field
from weakref import WeakSet

import torch

from sfl_sim.models.losses import Loss, cross_entropy


class Graphs:
    """The weights that hold an autograd graph, at most `limit` at once: a bound on memory.

    Measured with float32 and batch 64 at a shallow cut, the graph of one client takes 76 MB (mobilenet_v1) to 456 MB
    (mobilenet_v2). Beyond the limit weights keep only their input, and their backward pass runs the forward pass again:
    the same numbers to the bit, for one more forward pass on this machine. Of the 92 MB that a waiting client of
    mobilenet_v1 takes, weights and messages included, 20 are left. Simulated time does not change: each simulated
    device holds its own graph.

    Attributes:
        limit: of graphs held at once; the one of the step that is just being computed comes on top.
        peak: the most graphs that were held at once.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = math.inf if limit is None else limit
        self.peak = 0
        self._holders: WeakSet[object] = WeakSet()  # weak: a client that is lost takes its graph along

    def admit(self, weights: object) -> bool:
        """Return True if `weights` may hold a graph; they then count as a holder until their `release` or their end."""
        if weights not in self._holders and len(self._holders) >= self.limit:
            return False
        self._holders.add(weights)
        self.peak = max(self.peak, len(self._holders))
        return True

    def __contains__(self, weights: object) -> bool:
        """Return True if they hold a graph."""
        return weights in self._holders

    def release(self, weights: object) -> None:
        """The graph has been used."""
        self._holders.discard(weights)


@dataclass(frozen=True)
class ForwardSettings:
    """Settings that all parts of an experiment's network share.

    Attributes:
        autocast: type of convolutions, matrix products and what goes over the wire, while weights and optimiser stay
            as they are (torch.autocast); None: everything has the weights' type.
        graphs: who holds activations between a forward and its backward.
        loss: what the network's outputs are trained by; steps ask `Part.loss`.
        label_bytes: bytes of what the network has to predict of a sample, in a message; None: of labels or tokens.
    """

    autocast: torch.dtype | None = None
    graphs: Graphs = field(default_factory=Graphs)
    loss: Loss = cross_entropy
    label_bytes: int | None = None
