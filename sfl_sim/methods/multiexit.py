"""Multi-exit split learning, and SplitGP: clients answer if their exit is confident, otherwise the server does.

Han et al., "SplitGP: Achieving Both Generalization and Personalization in Federated Learning", INFOCOM 2023, with cuts
that may differ between clients as in HARMONY's comparison (docs/methods/multiexit.md).
"""

from typing import Annotated

from pydantic import Field

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.exit_method import ExitMethod, ExitOptions, TrainedExits
from sfl_sim.models.replica import Bundle, Joined, Replica
from sfl_sim.ops import SERVER, Flow, on, send
from sfl_sim.scenario.fields import Unless
from sfl_sim.training.exit_steps import ExitBackward, ExitForward
from sfl_sim.training.steps import Average, Train


class MultiExit(ExitMethod, regular=True, survives=True):
    """SplitFedV1 with an exit on the device: both losses train what the client holds."""

    Options = ExitOptions
    options: ExitOptions
    neutral = ExitOptions(gamma_loss=0.0)

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.suffixes = {depth: self._suffix(depth) for depth in self.depths}
        """theta from where features of each depth enter, to be copied."""

    def _suffix(self, depth: int) -> Replica | Joined:
        network, pieces = self.task.network, self.theta[self.depths.index(depth) :]
        return Joined(network.part(depth, len(network)), pieces) if len(pieces) > 1 else pieces[0]

    def client(self, c: int, round: int) -> Flow:
        """Download phi and h, train them with a copy of theta, upload them."""
        model = yield from self.download(c)
        theta: Replica = yield send(self.suffixes[self.task.cuts[c]], SERVER, SERVER)
        for batch in self.data.batches(c, round):
            yield from self.minibatch(c, model, theta, batch, round)
        arrived = yield from self.wire.deliver(model, c, round)
        return TrainedExits(arrived, dict.fromkeys(range(self.entry(c), len(self.theta)), theta), model)

    def minibatch(self, c: int, model: Bundle, theta: Replica, batch: Batch, round: int) -> Flow:
        """Train phi, h and theta on one mini-batch by gamma l_C + (1 - gamma) l_S."""
        phi = model.replicas[0]
        z = yield on(c, ExitForward(self.options.gamma_loss), model, batch)
        z = yield from self.wire.upload(z, phi.part, batch, c, round)
        gradient = yield on(SERVER, Train(self.optimiser(round, SERVER), share=self.server_share), theta, z)
        gradient = yield from self.wire.download(gradient, z, phi, c, round)
        yield on(c, ExitBackward(self.optimiser(round, c)), model, gradient)


class SplitGPOptions(ExitOptions):
    """Options of SplitGP."""

    lambda_pers: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Share of its own front end and exit that a client keeps (lambda): with 0 all share, with 1 none."""
    ft_steps: Annotated[int, Field(ge=0)] = 0
    """Number of mini-batches on which each client fine-tunes its front end and exit after the last round, by SGD and
    with the server's model as it is."""
    ft_lr: Annotated[Annotated[float, Field(gt=0)] | None, Unless("ft_steps", 0)] = None
    """Learning rate of this fine-tuning, which needs one."""


class SplitGP(MultiExit, survives=True):
    """Multi-exit split learning with clients that keep a share of their own front end and exit."""

    Options = SplitGPOptions
    options: SplitGPOptions
    examples = (SplitGPOptions(), SplitGPOptions(ft_steps=1, ft_lr=0.1))
    neutral = SplitGPOptions(gamma_loss=0.0, lambda_pers=0.0)

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if self.options.ft_steps and self.options.ft_lr is None:
            raise ScenarioError("is missing: fine-tuning takes steps and a learning rate", key="method.ft_lr")
        self.own: dict[int, Bundle] = {}
        """phi_c and h_c as each client has trained them in the last round in which it was not lost."""

    def download(self, c: int) -> Flow:
        """Mix: (phi_c, h_c) <- lambda (phi_c, h_c) + (1 - lambda) (phi, h), if the client has trained before."""
        fresh = yield from super().download(c)
        if c in self.own:
            share = self.options.lambda_pers
            for mine, shared in zip(self.own[c].replicas, fresh.replicas, strict=True):
                yield on(c, Average(), shared, [mine, shared], [share, 1 - share])
        return fresh

    def beginning(self, c: int) -> Bundle:
        """The mix, as after a `download`."""
        shared, share = super().beginning(c), self.options.lambda_pers
        if c not in self.own:
            return shared
        pairs = zip(self.own[c].replicas, shared.snapshot().replicas, strict=True)
        return Bundle([Replica.averaged(pair, [share, 1 - share]) for pair in pairs])

    def client(self, c: int, round: int) -> Flow:
        trained = yield from super().client(c, round)
        if self.options.lambda_pers:
            self.own[c] = yield send(trained.own, c, c)
        return trained

    def deploy(self, c: int) -> Flow:
        model = yield from self.download(c)
        if c in self.own or self.options.ft_steps:
            yield from self.fine_tune(c, model, self.options.ft_steps, self.options.ft_lr or 0.0)
