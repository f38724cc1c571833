"""Decoupled split learning: clients learn from a loss of their own, and never wait for the server.

Behind its part-1 each client has an auxiliary head, whose loss gives the gradient at the cut. Some of its activations
go up meanwhile, and the server trains part-2 on them. Methods differ in the client's step, in which activations go up,
and in what else is exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

from sfl_sim.data.batches import Batch
from sfl_sim.methods.ahead import Ahead, Boxes
from sfl_sim.methods.base import MethodOptions, Task, once_a_round
from sfl_sim.models.auxiliary import Aux, auxiliary_network
from sfl_sim.models.network import Network
from sfl_sim.models.replica import Bundle, Replica
from sfl_sim.ops import SERVER, Flow, Step, on
from sfl_sim.training.exit_steps import ExitForward, LocalBackward
from sfl_sim.training.steps import TrainAlone


class HeadOptions(MethodOptions):
    """Options of methods whose clients have an auxiliary head."""

    aux: Aux = "exit"
    """Auxiliary head: that of an early exit, one `linear` layer, all layers behind the cut (`twin`), or an integer m:
    the first m of them and the last one."""


class Decoupled(Ahead):
    """Clients train part-1 with a head, and the server part-2 with what they send."""

    sends_gradients = False
    options: HeadOptions
    forward: Step = ExitForward(1.0)

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        cut = task.cut
        _, self.head = auxiliary_network(task.network, cut, self.options.aux).split(
            cut, seed=task.seed, device=task.device
        )
        self.client_model = Bundle([self.part1, self.head])

    @classmethod
    def at_client(cls, network: Network, cut: int, options: MethodOptions) -> tuple[Network, int]:
        """Give the layers up to the cut with the head; beside adapters a head without any is left out."""
        assert isinstance(options, HeadOptions)
        client = auxiliary_network(network, cut, options.aux)
        return (client, cut + 1) if bool(client.lora) == bool(network.lora) else (network, cut)

    def learn(self, c: int, model: Replica | Bundle, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Train the client's model by the loss of its head."""
        for batch in batches:
            smashed = yield on(c, self.forward, model, batch)
            if self.is_sent(batch.step):
                yield from boxes.outbox.put(smashed)
            yield on(c, self.local_step(c, batch, round), model, batch)

    def local_step(self, c: int, batch: Batch, round: int) -> Step:
        """The client's step on a mini-batch that has passed forward."""
        return self.backward(round, c)

    def serve(self, c: int, part2: Replica, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Train part-2 on what arrives."""
        for batch in batches:
            if self.is_sent(batch.step):
                smashed = yield from boxes.inbox.take()
                yield on(SERVER, self.server_step(round), part2, smashed)

    @once_a_round
    def server_step(self, round: int) -> Step:
        """The server's step on the smashed data."""
        return TrainAlone(self.optimiser(round, SERVER))

    @once_a_round
    def backward(self, round: int, c: int) -> Step:
        """The client's step from the gradient of its own loss."""
        return LocalBackward(self.optimiser(round, c))
