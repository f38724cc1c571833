"""What methods with early exits share: front ends of different depths with an exit each, before one server's model.

A client that is cut at layer d holds phi, the layers 1 to d, and h, the exit there. The server's theta holds every
layer that some client has not, the first of which follow the shallowest cut: features of depth d enter it at layer
d + 1, and what lies before is passed by (METHODS.md sections 11 and 12).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sfl_sim.methods.base import Method, MethodOptions, Task
from sfl_sim.models.exits import exit_network
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, par, send
from sfl_sim.training.bundle import Bundle
from sfl_sim.training.deployed import Deployed


class ExitOptions(MethodOptions):
    """`theta_average`: whether a layer of the server's model becomes the average of the copies of all clients, or of
    those alone whose features it was trained on (METHODS.md CHOICE 36).
    """

    theta_average: Literal["all", "trained"] = "all"


@dataclass
class Trained:
    """What a client's round leaves.

    Attributes:
        model: its front end and exit, and whatever else it uploads.
        theta: the pieces of its copy of the server's model, by their place there.
    """

    model: Bundle
    theta: Mapping[int, Replica]


class Exits(Method):
    """Clients train side by side, each with its own copy of the server's model.

    Layers of the front ends are averaged over the clients that hold them, exits over those of equal depth, and the
    server's layers over all.
    """

    has_exits = True
    options: ExitOptions

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        network = task.network
        self.depths = sorted(set(task.lasting_cuts))
        """Where clients are cut; the server's model begins after the first of them."""
        self.exits = {d: exit_network(network, d).split(d, seed=task.seed, device=task.device)[1] for d in self.depths}
        bounds = [*self.depths, *self.cuts_of_theta]
        pieces = task.split(*bounds)
        n = len(self.depths)
        self.front = pieces[:n]
        """All layers that clients hold, cut wherever one of them is."""
        self.theta = [*(piece.snapshot() for piece in pieces[1:n]), *pieces[n:]]
        """The server's model, cut likewise."""
        self.classifier = [self.theta.pop()] if self.keeps_classifier else []
        """The last layer, if clients train it."""
        self.templates = {d: self.template(d) for d in self.depths}
        """What a client of each depth downloads."""
        self.deployed_models: dict[int, Bundle] = {}
        """What clients answer with once training has ended, where it is not what all of their depth have."""

    @property
    def cuts_of_theta(self) -> Sequence[int]:
        """Where else the server's model is cut."""
        return []

    @property
    def keeps_classifier(self) -> bool:
        """Whether the last of these pieces is not at the server but at every client."""
        return False

    def template(self, depth: int) -> Bundle:
        """What a client of that depth holds, to be copied."""
        pieces = self.front[: self.rank(depth) + 1]
        part = self.task.network.part(0, depth)
        return Bundle([Joined(part, pieces) if len(pieces) > 1 else pieces[0], self.exits[depth], *self.classifier])

    def rank(self, depth: int) -> int:
        """The place in `theta` of the layers that features of that depth enter."""
        return self.depths.index(depth)

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """phi, h and theta <- the averages of what the clients have trained."""
        trained = yield par({c: self.client(c, round) for c in clients})
        yield from self.average_fronts(trained)
        yield from self.average_theta(trained)

    @abstractmethod
    def client(self, c: int, round: int) -> Flow:
        """A client's round; returns what it has `Trained`."""

    def average_fronts(self, trained: Mapping[int, Trained]) -> Flow:
        """Depth-aware partial aggregation, at the aggregator (METHODS.md 12.4)."""
        for rank, piece in enumerate(self.front):
            holders = [c for c in trained if self.rank(self.task.cuts[c]) >= rank]
            yield from self.average_members(0, piece, trained, holders)
        for depth, head in self.exits.items():
            yield from self.average_members(1, head, trained, [c for c in trained if self.task.cuts[c] == depth])
        for piece in self.classifier:
            yield from self.average_members(2, piece, trained, list(trained))

    def average_members(
        self, place: int, state: Replica, trained: Mapping[int, Trained], holders: Sequence[int]
    ) -> Flow:
        """`state` <- the weighted average of that member of the holders' models; nothing if there are none."""
        if holders:
            members = [trained[c].model.replicas[place] for c in holders]
            yield from self.average(AGGREGATOR, state, members, holders)

    def average_theta(self, trained: Mapping[int, Trained]) -> Flow:
        """Each piece; a copy that no feature has entered is what the piece was, and takes part as such, or does not."""
        for place, piece in enumerate(self.theta):
            copies = {c: t.theta[place] for c, t in trained.items() if place in t.theta}
            if copies and self.options.theta_average == "all":
                copies = {c: copies.get(c, piece) for c in trained}
            if copies:
                yield from self.average(SERVER, piece, list(copies.values()), list(copies))

    def finish(self) -> Flow:
        """Every client gets the model with which it will answer."""
        yield par(self.deploy(c) for c in range(len(self.data)))

    def deploy(self, c: int) -> Flow:
        """Download and personalise it."""
        model = yield from self.download(c)
        yield from self.personalise(c, model)
        if self.is_personal(c):
            self.deployed_models[c] = yield send(Bundle(model.members[:2]), c, c)  # without what training leaves

    def download(self, c: int) -> Flow:
        """The client's part of the global model."""
        return (yield send(self.templates[self.task.cuts[c]], AGGREGATOR, c))

    def personalise(self, c: int, model: Bundle) -> Flow:
        """What a client does to the model that it will answer with: nothing."""
        yield from ()

    def is_personal(self, c: int) -> bool:
        """Whether its model comes out of that other than all of its depth have it."""
        return False

    def deployed(self, c: int) -> Deployed:
        """As `finish` left it; before that, the client's part of the global model."""
        depth = self.task.cuts[c]
        front, head, *_ = self.deployed_models.get(c, self.templates[depth]).members
        assert isinstance(head, Replica)
        behind = [*self.theta[self.rank(depth) :], *self.classifier]
        return Deployed([front], head, behind, self.task.network.layers[depth - 1].out_shape)

    def model(self) -> list[Replica]:
        """The way through the deepest front end and the server."""
        return [*self.front, *self.theta[len(self.depths) - 1 :], *self.classifier]

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """A copy of theta for every client, from where its features enter."""
        sizes = [piece.size_bytes for piece in self.theta]
        return sum(sum(sizes[self.rank(self.task.cuts[c]) :]) for c in clients)
