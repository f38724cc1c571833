"""FedNAR: gradient and weight decay are clipped as one.

Li et al., "FedNAR: Federated Optimization with Normalized Annealing Regularization", NeurIPS 2023 (METHODS.md section
10).
"""

from __future__ import annotations

from typing import Literal

from sfl_sim.methods.hosts import Hosted, HostOptions


class NarOptions(HostOptions):
    """`max_norm`: what a gradient is clipped to. `clipping`: each part by itself, or both exactly as one, for a message
    more with every mini-batch.
    """

    host: Literal["fednar"] = "fednar"


class FedNAR(Hosted, regular=True):
    """SplitFedV1 with co-clipping of gradient and weight decay."""

    Options = NarOptions
