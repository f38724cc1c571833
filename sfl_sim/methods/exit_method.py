"""Early exits: front ends of different depths with an exit each, before one model at the server.

Client c, which is cut at depth d_c, holds the front end phi (layers 1 to d_c) and the exit h. The server's model theta
holds every layer that some client has not: it begins behind the shallowest cut, and features of depth d enter it at
layer d + 1 (docs/methods/multiexit.md#depths). The loss is gamma l_C + (1 - gamma) l_S, with the loss l_C of the exit's
answer and l_S of the server's.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.methods.base import Method, MethodOptions, Task
from sfl_sim.models.heads import exit_network
from sfl_sim.models.network import Network
from sfl_sim.models.replica import Bundle, Joined, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, on, par, send
from sfl_sim.training.deployed import Deployed
from sfl_sim.training.exit_steps import Adapt
from sfl_sim.training.optimisers import Sgd

FINE_TUNING = 0
"""Number of the round whose mini-batches fine-tuning takes: rounds count from 1, so no round has it."""


class ExitOptions(MethodOptions):
    """Options of methods whose clients have exits."""

    gamma_loss: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Weight of the exit's loss (gamma); the server's has 1 - gamma."""


@dataclass
class TrainedExits:
    """The result of a client's round.

    Attributes:
        model: its front end and exit, and further parts that it uploads, as they arrive.
        theta: the pieces of its copy of the server's model that its features have entered, by their number.
        own: its front end and exit as it has trained them, where that matters.
    """

    model: Bundle
    theta: Mapping[int, Replica]
    own: Bundle | None = None


class ExitMethod(Method):
    """Train clients side by side, each with its own copy of the server's model, and average depth by depth.

    Args:
        head: where the model's last layer is, if it is a piece of its own: at the server, which then sends answers
            (`logits`), or at every client, which gets embeddings (`embedding`). None: theta ends with it.
    """

    has_exits = True
    needs_labels = "the entropy of an answer chooses the exit"
    forgets_lost = True
    options: ExitOptions

    def __init__(
        self, task: Task, options: MethodOptions | None = None, head: Literal["embedding", "logits"] | None = None
    ) -> None:
        super().__init__(task, options)
        self.server_share = 1 - self.options.gamma_loss
        network = task.network
        self.depths = sorted(set(task.lasting_cuts))
        self.h = {d: exit_network(network, d).split(d, seed=task.seed, device=task.device)[1] for d in self.depths}
        """The exit of each depth."""
        pieces = task.split(*self.depths, *([len(network) - 1] if head else []))
        n = len(self.depths)
        self.phi = pieces[:n]
        """The layers that clients hold, cut at every depth."""
        self.theta = [*(piece.snapshot() for piece in pieces[1:n]), *pieces[n:]]
        """The server's model, cut likewise: features of the k-th depth enter piece k."""
        self.classifier = [self.theta.pop()] if head == "embedding" else []
        self.n_last = len(self.classifier)
        """The last layer, if clients train it."""
        self.templates = {d: self._template(d) for d in self.depths}
        """The model that a client of each depth downloads."""
        self.personal: dict[int, Bundle] = {}
        """phi and h with which a client answers after training, where they are not those of its depth."""

    def _template(self, depth: int) -> Bundle:
        pieces = self.phi[: self.depths.index(depth) + 1]
        phi = Joined(self.task.network.part(0, depth), pieces) if len(pieces) > 1 else pieces[0]
        return Bundle([phi, self.h[depth], *self.classifier])

    @classmethod
    def at_client(cls, network: Network, cut: int, options: MethodOptions) -> tuple[Network, int]:
        """Give the front end, and the exit as one layer more; beside adapters the exit is left out."""
        return (network, cut) if network.lora else (exit_network(network, cut), cut + 1)

    def entry(self, c: int) -> int:
        """Return the number of the piece of theta that the features of client `c` enter."""
        return self.depths.index(self.task.cuts[c])

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Train, then average: phi, h and the last layer at the aggregator, theta at the server."""
        trained = yield par({c: self.client(c, round) for c in clients})
        models = {c: visit.model.replicas for c, visit in trained.items()}
        for number, piece in enumerate(self.phi):
            yield from self.average(AGGREGATOR, piece, {c: models[c][0] for c in trained if self.entry(c) >= number})
        for depth, h in self.h.items():
            yield from self.average(AGGREGATOR, h, {c: models[c][1] for c in trained if self.task.cuts[c] == depth})
        for piece in self.classifier:
            yield from self.average(AGGREGATOR, piece, {c: models[c][2] for c in trained})
        for number, piece in enumerate(self.theta):
            if any(number in visit.theta for visit in trained.values()):
                # A copy without features is what the piece was.
                copies = {c: visit.theta.get(number, piece) for c, visit in trained.items()}
                yield from self.average(SERVER, piece, copies)

    @abstractmethod
    def client(self, c: int, round: int) -> Flow:
        """A client's round; gives what it has `TrainedExits`."""

    def download(self, c: int) -> Flow:
        """Send client `c` the global model of its depth; gives the client's copy."""
        return (yield from self.wire.fetch(self.templates[self.task.cuts[c]], c))

    def beginning(self, c: int) -> Bundle:
        """The model with which client `c` begins a round, once it has got it; to be read only."""
        return self.templates[self.task.cuts[c]]

    def finish(self) -> Flow:
        """Give every client the model with which it will answer."""
        self.personal = {}  # a new one, as this may be a copy of a method that goes on training
        yield par(self.deploy(c) for c in range(len(self.data)))

    def deploy(self, c: int) -> Flow:
        """Give client `c` its model: the global one of its depth."""
        yield from self.download(c)

    def fine_tune(self, c: int, model: Bundle, n_steps: int, lr: float) -> Flow:
        """Train phi and h by the exit's loss alone on `n_steps` mini-batches; client `c` will answer with them."""
        for batch in self.data.steps(c, FINE_TUNING, n_steps):
            yield on(c, Adapt(Sgd(lr)), model, batch)
        self.personal[c] = yield send(Bundle(model.members[:2]), c, c)  # without what training leaves

    def deployed(self, c: int) -> Deployed:
        """The model that answers the requests of client `c`; before `finish`, the one with which it begins a round."""
        depth = self.task.cuts[c]
        phi, h, *_ = (self.personal.get(c) or self.beginning(c)).members
        assert isinstance(h, Replica)
        behind = [*self.theta[self.entry(c) :], *self.classifier]
        shape = self.task.network.layers[depth - 1].out_shape
        return Deployed([phi], h, behind, shape, self.wire.for_inference)

    def model(self) -> list[Replica]:
        """The way through the deepest front end and the server."""
        return [*self.phi, *self.theta[len(self.depths) - 1 :], *self.classifier]

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """A copy of theta for every client, from where its features enter."""
        sizes = [piece.size_bytes for piece in self.theta]
        return sum(sum(sizes[self.entry(c) :]) for c in clients)
