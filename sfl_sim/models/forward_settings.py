"""Settings for calling the parts of a network: arithmetic, number of graphs, and the loss at its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from sfl_sim.models.graphs import Graphs
from sfl_sim.models.losses import Loss, cross_entropy


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
