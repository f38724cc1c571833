"""FedProx: local steps are held back towards the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (METHODS.md section 10).
"""

from __future__ import annotations

from sfl_sim.methods.hosts import Hosted, ProxOptions


class FedProx(Hosted, regular=True, survives=True):
    """SplitFedV1 with a proximal term; each part adds its own."""

    Options = ProxOptions
