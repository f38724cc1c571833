"""Multi-exit split learning, and SplitGP: clients answer what they are sure of, the server the rest.

Han et al., "SplitGP: Achieving Both Generalization and Personalization in Federated Learning", INFOCOM 2023 (METHODS.md
section 11), with cuts that may differ between clients as in HARMONY's comparison (METHODS.md 12.5).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.exits import ExitOptions, Exits, Trained
from sfl_sim.methods.split import SplitStep
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, Value, on, send
from sfl_sim.training.bundle import Bundle
from sfl_sim.training.exit_steps import Adapt, ExitBackward, ExitForward
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.steps import Average, Train


class JointLossOptions(ExitOptions):
    """`gamma_loss`: the weight of the exit's loss; that of the server's is what remains to 1."""

    gamma_loss: Annotated[float, Field(ge=0, le=1)] = 0.5


class MultiExit(Exits, SplitStep, regular=True, survives=True):
    """SplitFedV1 with an exit on the device: both losses train what the client holds."""

    Options = JointLossOptions
    options: JointLossOptions

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.forward = ExitForward(self.options.gamma_loss)
        self.suffixes = {depth: self.suffix(depth) for depth in self.depths}
        """The server's model from where features of each depth enter, to be copied."""

    def suffix(self, depth: int) -> Replica | Joined:
        """What lies behind a cut."""
        pieces = self.theta[self.rank(depth) :]
        network = self.task.network
        return Joined(network.part(depth, len(network)), pieces) if len(pieces) > 1 else pieces[0]

    def client(self, c: int, round: int) -> Flow:
        """Download phi and h, train them with a copy of theta, upload them."""
        model = yield from self.download(c)
        depth = self.task.cuts[c]
        theta: Replica = yield send(self.suffixes[depth], SERVER, SERVER)
        yield from self.batches(c, model, theta, self.data.batches(c, round), round)
        uploaded = yield send(model, c, AGGREGATOR)
        yield from self.keep(c, model)
        return Trained(uploaded, dict.fromkeys(range(self.rank(depth), len(self.theta)), theta))

    def keep(self, c: int, model: Bundle) -> Flow:
        """What a client remembers of what it has trained: nothing."""
        yield from ()

    def serve(self, c: int, part2: Replica | Joined, smashed: Value, round: int) -> Flow:
        """The server's share of the loss."""
        step = Train(self.optimiser(round), share=1 - self.options.gamma_loss)
        return (yield on(SERVER, step, part2, smashed))

    def backward(self, round: int) -> ExitBackward:
        """Both gradients at the cut."""
        return ExitBackward(self.optimiser(round))


class SplitGPOptions(JointLossOptions):
    """`lambda_pers`: how much of its own front end and exit a client keeps (lambda): with 0 all share, with 1 nobody.

    `ft_steps`: mini-batches on which each client goes on to train them after the last round, with SGD at the learning
    rate `ft_lr` and the server's model as it is; 0 for none.
    """

    lambda_pers: Annotated[float, Field(ge=0, le=1)] = 0.2
    ft_steps: Annotated[int, Field(ge=0)] = 0
    ft_lr: Annotated[float, Field(gt=0)] | None = None


class SplitGP(MultiExit, survives=True):
    """Multi-exit split learning with clients that keep a share of what they have learned themselves."""

    Options = SplitGPOptions
    options: SplitGPOptions

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        if bool(self.options.ft_steps) != (self.options.ft_lr is not None):
            raise ScenarioError(
                "go together: fine-tuning takes steps and a learning rate",
                key="method.ft_lr", found=self.options.ft_lr, allowed=f"with ft_steps {self.options.ft_steps}",
            )  # fmt: skip
        self.own: dict[int, Bundle] = {}
        """Front end and exit as each client has trained them in the last round in which it was not lost."""

    def keep(self, c: int, model: Bundle) -> Flow:
        """All of it, without what training leaves beside the numbers."""
        if self.options.lambda_pers:
            self.own[c] = yield send(model, c, c)

    def download(self, c: int) -> Flow:
        """(phi, h) <- lambda (phi, h)_own + (1 - lambda) (phi, h)_global, as far as the client has its own (2')."""
        fresh = yield from super().download(c)
        if c in self.own:
            share = self.options.lambda_pers
            for mine, shared in zip(self.own[c].replicas, fresh.replicas, strict=True):
                yield on(c, Average(), shared, [mine, shared], [share, 1 - share])
        return fresh

    def personalise(self, c: int, model: Bundle) -> Flow:
        """Fine-tuning on the client's own samples (CHOICE 38)."""
        if self.options.ft_lr is not None:
            yield from fine_tune(self, c, model, self.options.ft_steps, self.options.ft_lr)

    def is_personal(self, c: int) -> bool:
        """If it has something of its own, or has been fine-tuned."""
        return c in self.own or self.options.ft_steps > 0


def fine_tune(method: Exits, c: int, model: Bundle, n_steps: int, lr: float) -> Flow:
    """Train front end and exit by the exit's loss alone on so many mini-batches, those of no round."""
    for batch in method.data.steps(c, FINE_TUNING, n_steps):
        yield on(c, Adapt(Sgd(lr)), model, batch)


FINE_TUNING = 0
"""Rounds count from 1, so the mini-batches of round 0 are none of theirs."""
