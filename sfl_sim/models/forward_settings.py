"""Settings for calling the parts of a network: arithmetic, compiled code, number of graphs, and the loss at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sfl_sim.models.graphs import Graphs
from sfl_sim.models.losses import Loss, cross_entropy


@dataclass(frozen=True)
class ForwardSettings:
    """Settings that all parts of an experiment's network share.

    Attributes:
        autocast: type of convolutions, matrix products and what goes over the wire, while weights and optimiser stay
            as they are (torch.autocast); None: everything has the weights' type.
        compiled_batch: samples of the mini-batches whose training calls are compiled; None compiles nothing. Others,
            a client's last and shorter ones and evaluation, are not worth seconds of compilation for every size.
        graphs: who holds activations between a forward and its backward.
        loss: what the network's outputs are trained by; steps ask `Part.loss`.
        label_bytes: bytes of what the network has to predict of a sample, in a message; None: of labels or tokens.
    """

    autocast: torch.dtype | None = None
    compiled_batch: int | None = None
    graphs: Graphs = field(default_factory=Graphs)
    loss: Loss = cross_entropy
    label_bytes: int | None = None


def compiled(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """`module` as compiled code for one shape of input, whatever weights it is lent; compiled when first called.

    torch counts recompilations by code object, and beyond 8 runs the plain module with a warning only. This code
    object is the module's own and compiles once, however many parts, cuts and variants a process trains, and
    `fullgraph` makes an error of whatever torch would leave uncompiled. Random draws are those of the plain module.
    """

    def run(x: Tensor) -> Tensor:
        return module(x)  # type: ignore[no-any-return]

    run.__code__ = run.__code__.replace()
    return torch.compile(run, fullgraph=True, dynamic=False, options={"fallback_random": True})
