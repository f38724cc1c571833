"""FedNAG: Nesterov's momentum, averaged as the weights are (docs/methods/v1_variants.md#fednag).

Yang et al., "Federated Learning with Nesterov Accelerated Gradient", IEEE TPDS 2022.
"""

from dataclasses import replace

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task, once_a_round
from sfl_sim.methods.server_copies import HostOptions, ServerCopies
from sfl_sim.models.replica import Replica
from sfl_sim.ops import Node
from sfl_sim.training.optimisers import Optimiser, Sgd


class FedNAG(ServerCopies, regular=True, survives=True):
    """SplitFedV1 whose clients and server start from the averaged velocity; that of part-1 travels with part-1."""

    Options = HostOptions
    options: HostOptions
    neutral = None
    only_averages = False
    like = "splitfed_v1"
    equal_steps = True
    forgets_lost = False

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        usual = task.optimiser(1)
        if not isinstance(usual, Sgd):
            raise ScenarioError("needs SGD", key="train.optimizer", found=task.optimizer, allowed=["sgd", "nag"])
        if not usual.momentum:
            raise ScenarioError("averages momentum, of which there is none", key="train.momentum", found=0.0)
        self.pieces = [Replica(piece.part, piece.content, has_velocity=True) for piece in self.pieces]

    @once_a_round
    def optimiser(self, round: int, node: Node | None = None) -> Optimiser:
        """The host's, with Nesterov's momentum: w <- w - eta (g + beta v)."""
        usual = super().optimiser(round, node)
        assert isinstance(usual, Sgd)
        return replace(usual, nesterov=True)
