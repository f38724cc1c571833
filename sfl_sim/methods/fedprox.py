"""FedProx: local steps are held back towards the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (METHODS.md section 10).
"""

from __future__ import annotations

from typing import Literal

from sfl_sim.methods.hosts import Hosted, HostOptions


class ProxOptions(HostOptions):
    """`mu`: of the proximal term (mu/2) ||w - w_round||^2, of both parts."""

    host: Literal["fedprox"] = "fedprox"


class FedProx(Hosted, regular=True):
    """SplitFedV1 with a proximal term; each part adds its own."""

    Options = ProxOptions
