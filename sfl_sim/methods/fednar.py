"""FedNAR: gradient and weight decay are clipped as one.

Li et al., "FedNAR: Federated Optimization with Normalized Annealing Regularization", NeurIPS 2023 (METHODS.md section
10).
"""

from __future__ import annotations

from sfl_sim.methods.hosts import Hosted, NarOptions


class FedNAR(Hosted, regular=True, survives=True):
    """SplitFedV1 with co-clipping of gradient and weight decay."""

    Options = NarOptions
