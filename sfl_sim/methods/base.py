"""Base of all methods: an algorithm box as flows, on a task with model, data and settings."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from sfl_sim.data.batches import ClientData
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.cut_policies import CutPolicy
from sfl_sim.methods.seen import ObservedTimes
from sfl_sim.methods.tiers import Tiers
from sfl_sim.methods.wire import Wire
from sfl_sim.models.network import Network
from sfl_sim.models.replica import Bundle, Joined, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, Node, ServerNode, Value, on, par, send
from sfl_sim.training.alternatives import Model
from sfl_sim.training.deployed import Deployed
from sfl_sim.training.optimisers import GradientRule, Optimiser, optimiser_of
from sfl_sim.training.steps import Average


@dataclass(frozen=True)
class Task:
    """Model, data and settings of a training.

    Attributes:
        network: the model.
        cuts: part-1 of client c is layers 1 to `cuts[c]`; empty for a method that is not split. A method reads it as
            `lasting_cuts`, or as `cut`, unless it knows `round_cuts`.
        round_cuts: cuts of which one is drawn for every round, for all clients, or `cut_policy` chooses one for each;
            `cuts` hold the largest. Empty where `cuts` hold for all rounds.
        cut_policy: chooses the clients' cuts before each round but the first, which begins with the first of
            `round_cuts`; None for none.
        data: the clients' mini-batches.
        participants: clients that take part in a round, unless fewer are there; 0 if that is not known.
        label_counts: (C, L) training samples of each label that each client holds.
        label_names: the labels' names.
        sample_s: estimate of the seconds that a client needs for a sample of its own; for methods that suit their
            demands to the clients, not for timing.
        lr, lr_decay, lr_min: lr of round r (from 1) is max(lr * lr_decay^(r-1), lr_min).
        lr_schedule: gives the lr of a round from `lr` in place of this rule; None for none.
        optimizer, momentum, weight_decay, clip_norm: the local optimisers, as `optimiser_of` takes them.
        client_lr: lr of each client, in place of `lr`; empty if that is theirs.
        server: what is different at the main server: `lr`, `optimizer`, `momentum`, `weight_decay`.
        tiers: servers between clients and the main server.
        uniform_weights: k_c = 1/n instead of |D_c| / sum |D| (docs/methods/README.md#symbols).
        wire: what messages are coded by.
        seen: what rounds that have ended have shown of the clients' speeds.
        method: the method's name in the scenario, for errors.
        device: where weights live; None in a timing-only run, whose replicas have sizes and no weights.
    """

    network: Network
    cuts: Sequence[int]
    data: ClientData
    lr: float = 0.05
    lr_decay: float = 1.0
    lr_min: float = 0.0
    lr_schedule: Callable[[float, int], float] | None = None
    optimizer: str | Callable[..., torch.optim.Optimizer] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    client_lr: Sequence[float] = ()
    server: Mapping[str, Any] = field(default_factory=dict)
    uniform_weights: bool = False
    tiers: Tiers = field(default_factory=Tiers)
    label_counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    label_names: Sequence[str] = ()
    sample_s: Callable[[int], float] = lambda client: 1.0
    seed: int = 0
    device: torch.device | None = None
    round_cuts: Sequence[int] = ()
    cut_policy: CutPolicy | None = None
    participants: int = 0
    wire: Wire = field(default_factory=Wire)
    seen: ObservedTimes = field(default_factory=ObservedTimes)
    method: str = "this method"

    @property
    def lasting_cuts(self) -> Sequence[int]:
        """Cuts of the clients that last through all rounds; raises ScenarioError if they change between rounds."""
        if self.round_cuts:
            by = self.cut_policy.__name__ if self.cut_policy else "round"
            raise ScenarioError(f"{self.method} has the same cuts in all rounds", key="model.cut.by", found=by)
        return self.cuts

    @property
    def differing_cuts(self) -> list[int]:
        """Cuts that the clients of one round can have; one, if they all have the same."""
        return sorted({*(self.round_cuts if self.cut_policy else self.cuts)})

    @property
    def cut(self) -> int:
        """The cut that all clients share in all rounds; raises ScenarioError if there are several."""
        cut, *others = sorted(set(self.lasting_cuts))
        if others:
            raise ScenarioError(
                "must be the same for all clients with this method",
                key="model.cut",
                found=[cut, *others],
            )
        return cut

    def split(self, *cuts: int) -> list[Replica]:
        """Cut the initial model into parts; its numbers do not depend on the cuts.

        Where adapters are joined, parts that clients hold come down as what the others have learned.
        """
        parts = self.network.split(*cuts, seed=self.seed, device=self.device)
        for end, replica in zip((*cuts, len(self.network)), parts, strict=True) if self.network.lora else ():
            if end <= max(self.cuts, default=end):
                self.at_clients(replica)
        return parts

    def at_clients(self, replica: Replica) -> Replica:
        """Let a part that clients hold come down as what the others have learned, where adapters are joined."""
        lora = self.network.lora
        if lora and lora.aggregate == "concat" and replica.part.adapters:
            replica.copy_bytes = replica.part.joined_bytes(self.participants or len(self.data))
        return replica

    def optimiser(self, round: int, node: Node | None = None) -> Optimiser:
        """The local optimiser of a round at a client, by its number, or at the main server.

        Raises ScenarioError if `node` is None, which stands for all of them, and the scenario lets them differ.
        """
        if node is SERVER and self.server:
            if self.server.get("lr", self.lr) is None:
                raise ScenarioError("is missing, where clients have rates of their own", key="train.server.lr")
            return replace(self, server={}, client_lr=(), **self.server).optimiser(round)
        if node is None and (self.server or self.client_lr):
            key = "train.server" if self.server else "train.lr"
            raise ScenarioError(f"must be the same for all nodes with {self.method}", key=key)
        lr = self.client_lr[node] if isinstance(node, int) and self.client_lr else self.lr
        lr = self.lr_schedule(lr, round) if self.lr_schedule else max(lr * self.lr_decay ** (round - 1), self.lr_min)
        settings = {"weight_decay": self.weight_decay, "clip_norm": self.clip_norm}
        return optimiser_of(self.optimizer, lr, self.momentum, **settings)

    def shares(self, clients: Sequence[int]) -> list[float]:
        """Aggregation weights k_c of `clients`; they add up to one."""
        if self.uniform_weights:
            return [1 / len(clients)] * len(clients)
        total = sum(self.data.samples(c) for c in clients)
        return [self.data.samples(c) / total for c in clients]


T = TypeVar("T")


def once_a_round(make: Callable[..., T]) -> Callable[..., T]:
    """Decorate a function of a method, a round and perhaps a node: it makes one thing a round, and keeps the latest."""
    name = f"_{make.__qualname__}"

    @wraps(make)
    def kept(self: Any, round: int, *node: Any) -> T:
        made: dict[Any, T]
        last_round, made = getattr(self, name, (None, {}))
        if last_round != round:
            made = {}
            setattr(self, name, (round, made))
        if node not in made:
            made[node] = make(self, round, *node)
        return made[node]

    return kept


class MethodOptions(BaseModel):
    """A method's own keys in the scenario, below `method`; none unless the method has a subclass of it.

    The docstring under a field describes it in `sfl-sim list methods`, in the JSON Schema and in the docs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Method(ABC):
    """A method keeps the global model between rounds, and gives the operations of a round as flows.

    It never waits and never reads a clock. A state that no step has changed exists everywhere; any other is at a node
    only if it was made there or sent to it. A subclass makes its states in `__init__` and writes `round` and `model`;
    everything else has a default. Flows yield the operations of `sfl_sim.ops`; what a node computes is a step, of
    `sfl_sim.training.steps` or your own. Name it in a scenario as `method: {name: "my_package.my_module:MyMethod"}`.

    Numbers that training makes live in a `Replica`, or in the content of a `State` that operations name and steps fill
    (`yield on(c, step, state, ...)`; `State("memory")` is empty until then). A tensor in an attribute of the method or
    of a step would be lost without an error by `--resume`, which walks the flows again without running their steps.
    What a client keeps changes after its upload has returned: a client that is lost then leaves nothing behind.
    Flows of `self.wire` send what the scenario lets be coded: smashed data, gradients at the cut, uploads of models.

    A complete example: federated averaging whose clients go on, by a share, from what they had learned before.

        >>> from sfl_sim.ops import AGGREGATOR, Step, Work, par, send
        >>> from sfl_sim.training.steps import Average, Train
        >>> class LoyalOptions(MethodOptions):  # keys below `method` in the scenario, checked like all others
        ...     own: float = 0.1
        >>> class Loyal(Method, survives=True):  # a round goes on without clients that are lost
        ...     Options, is_split = LoyalOptions, False
        ...
        ...     def __init__(self, task, options=None):
        ...         super().__init__(task, options)
        ...         (self.whole,) = task.split()  # no cut: one part
        ...         self.before = {}  # of each client, what its last copy held: replicas, which live through all rounds
        ...
        ...     def round(self, round, clients):
        ...         copies = yield par({c: self.client(c, round) for c in clients})  # of those that are not lost
        ...         yield from self.average(AGGREGATOR, self.whole, copies)
        ...
        ...     def client(self, c, round):
        ...         copy = yield send(self.whole, AGGREGATOR, c)  # takes time on the downlink
        ...         if c in self.before:
        ...             yield on(c, Average(), copy, [copy, self.before[c]], [1 - self.options.own, self.options.own])
        ...         for batch in self.data.batches(c, round):
        ...             yield on(c, Train(self.optimiser(round, c)), copy, batch)  # takes time on the device
        ...         yield on(c, Clip(1.0), copy)
        ...         sent = yield send(copy, c, AGGREGATOR)  # raises Lost if the client goes away meanwhile
        ...         self.before[c] = yield send(copy, c, c)  # a copy in no time: nothing leaves the node
        ...         return sent
        ...
        ...     def model(self):
        ...         return [self.whole]
        >>> @dataclass(frozen=True)
        ... class Clip(Step):  # a step of one's own; equal steps are equal objects
        ...     limit: float
        ...     name = "clip"  # the `kind` of its records
        ...
        ...     def run(self, replica):  # for training; `weights.flat` is the vector of all parameters
        ...         replica.weights.flat.clamp_(-self.limit, self.limit)
        ...
        ...     def work(self, replica):  # for the clock, without weights; free if left out
        ...         return Work.of(replica.part.n_parameters)

    A test can drive the flows by hand, here on a task without weights:

        >>> from sfl_sim.models.zoo import network
        >>> data = ClientData([np.arange(4), np.arange(4)], batch_size=2)
        >>> method = Loyal(Task(network("cnn_small", (1, 8, 8), 10), cuts=[], data=data))
        >>> flow = method.round(1, [0, 1])
        >>> branches = next(flow).flows
        >>> next(branches[1])
        Send(payload=Replica(model, 103464 B, 0 samples, step -1), src=AGGREGATOR, dst=1)
        >>> branches[1].send(method.whole.snapshot()).args
        (Batch(batch, 0 B, 2 samples, step 0),)
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    needs_labels: ClassVar[str] = ""
    """Why samples must have one label each, or next tokens; empty if anything can be predicted."""
    regular: ClassVar[bool] = False
    """True if every round of the same clients issues the same operations, in any order of service, and starts no
    flows: timing-only runs then need no event loop. Written as `class MyMethod(Method, regular=True)`, and not
    inherited."""
    survives: ClassVar[bool] = False
    """True if a round goes on without clients that are lost (`ops.Lost`). Written as `class MyMethod(Method,
    survives=True)`, and not inherited."""
    knows_deadlines: ClassVar[bool] = True
    """True if a deadline can end a round: False if the server never waits, or if clients take turns."""
    waits_for_all: bool = True
    """True if rounds wait for all their clients in parallel flows named after them, so that they can go on without the
    last ones."""
    only_averages: ClassVar[bool] = False
    """True if models become one by `Average` alone, so that products of adapters can take the place of averages."""
    is_split: bool = True
    """True if the model is cut between clients and server, so that the task has cuts."""
    n_last: int = 0
    """Number of the network's last layers that clients run, too."""
    trains_part1: ClassVar[bool] = True
    """False if clients run part-1 and never train it; adapters then lie behind the cut alone."""
    keeps_graphs: ClassVar[bool] = True
    """False if clients train part-1 by forward passes alone, so that they keep nothing of a mini-batch but outputs."""
    sends_gradients: ClassVar[bool] = True
    """True if the gradient at the cut comes down to clients; a method with a loss of the clients' own needs none."""
    gradients_by_row: bool = True
    """True if that gradient has a row for each sample, of its own loss alone, from which its label can be read."""
    has_codec: bool = False
    """True if what crosses the cut is coded even without `wire.up`."""
    sends_labels: ClassVar[bool] = True
    """True if the labels of a mini-batch travel with what crosses the cut."""
    uploads_model: ClassVar[bool] = True
    """True if clients upload to the aggregator what they have trained."""
    shares_server_model: bool = False
    """True if all clients train one model at the server, one job after the other: a second worker has nothing to do."""
    follows_order: bool = False
    """True if the server serves clients' jobs in the order of `server.order`: the method announces them (`expect`)."""
    depends_on_time: bool = False
    """True if what is learned depends on when things happen: on the order of service, on speeds or on waiting times."""
    looks_at_times: bool = False
    """True if the method decides by `Task.seen`, which is filled for it alone."""
    forgets_lost: bool = False
    """True if a client that is lost leaves nothing behind: the round is as if it had not been chosen for it."""
    server_share: float = 1.0
    """Weight of the server's loss in the loss that is minimised, and so of the gradients that come down."""
    tiered: ClassVar[bool] = False
    """True if nothing but `model()` passes from round to round, one replica after the other: servers of a tier can then
    run it side by side, and average. Written as `class MyMethod(Method, tiered=True)`, and not inherited."""
    has_exits: ClassVar[bool] = False
    """True if clients have exits of their own, and answer the requests for which these are confident."""

    ignores: Mapping[str, str] = {}
    """Keys of the scenario that have no effect with this method, and why, as in "draws clients itself"."""
    like: ClassVar[str] = ""
    """Method that it is where its idea does nothing; empty if it is no variant of another one."""
    tuned: ClassVar[tuple[str, Sequence[Any]] | None] = None
    """The option that its paper tunes, and values for the pilots of a benchmark; None if it names none."""
    idea_off: str = ""
    """Why its idea does nothing with this task and these options; empty if it does something."""
    examples: ClassVar[Sequence[MethodOptions]] = ()
    """Options with which `sfl_sim.testing` checks the method, on networks of three layers; empty for the defaults."""
    neutral: ClassVar[MethodOptions | None] = MethodOptions()
    """What options are set to, so that one client alone learns what SGD does without a split; None if it never does."""

    def __init_subclass__(
        cls, regular: bool = False, survives: bool = False, tiered: bool = False, **others: Any
    ) -> None:
        super().__init_subclass__(**others)
        cls.regular = vars(cls).get("regular", regular)
        cls.tiered = vars(cls).get("tiered", tiered)
        cls.survives = vars(cls).get("survives", survives)

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        self.task = task
        self.data = task.data
        self.wire = task.wire
        self.options = options or self.Options()
        vars(self).update(self.traits(self.options))
        self.cuts: Sequence[int] = task.cuts
        """Wherever a client ever cuts the model; empty without a cut."""
        self.rule: GradientRule | None = None
        """What changes every local gradient before its step."""
        lora = task.network.lora
        if lora and lora.aggregate in ("concat", "svd") and not self.only_averages:
            problem = f"needs a method that averages models and does nothing else to them, unlike {task.method}"
            raise ScenarioError(problem, key="lora.aggregate", found=lora.aggregate, allowed=["separate", "ffa"])

    @property
    def gets_gradients(self) -> bool:
        """True if there is a cut, and the gradient there comes down to clients."""
        return self.is_split and self.sends_gradients

    @classmethod
    def traits(cls, options: MethodOptions) -> Mapping[str, Any]:
        """Return the traits that the options decide on, by name; by default none."""
        return {}

    @classmethod
    def trait(cls, name: str, options: MethodOptions) -> Any:
        """Return a trait of a method with these options."""
        return cls.traits(options).get(name, getattr(cls, name))

    @classmethod
    def has(cls, trait: str, options: MethodOptions) -> bool:
        """Return whether a method with these options has a trait."""
        return bool(cls.trait(trait, options))

    @classmethod
    def at_client(cls, network: Network, cut: int, options: MethodOptions) -> tuple[Network, int]:
        """Give a network of which a client that is cut after layer `cut` trains the first layers, and their number."""
        return network, cut

    @once_a_round
    def optimiser(self, round: int, node: Node | None = None) -> Optimiser:
        """The local optimiser of a round, with the method's rule; `node` as for `Task.optimiser`."""
        return replace(self.task.optimiser(round, node), rule=self.rule)

    def average(self, node: ServerNode, state: Replica | Bundle, copies: Mapping[int, Replica | Bundle]) -> Flow:
        """`state` <- sum_c k_c copy_c at `node`: federated averaging of the clients' copies, bundles member by member.

        Nothing happens if all clients are lost.
        """
        for number, member in enumerate(state.members if copies else []):
            members = [copy.members[number] for copy in copies.values()]
            yield on(node, Average(), member, members, self.task.shares(list(copies)))

    def prepare(self) -> Flow:
        """Give the flow before the first round: clients receive what of their layers is frozen; then `setup`."""
        lora = self.task.network.lora
        if lora and not lora.preinstalled:
            yield par(self.install(c) for c in range(len(self.data)))
        yield from self.setup()

    def install(self, c: int) -> Flow:
        """Send the frozen weights of its layers to client `c`, which keeps them."""
        network = self.task.network
        layers = list(network.layers)
        if self.is_split:
            held, n = self.at_client(network, self.deepest_cut(c), self.options)
            layers = [*held.layers[:n], *layers[len(layers) - self.n_last :]]
        yield send(Value("model", network.frozen_bytes(layers)), AGGREGATOR, c)

    def deepest_cut(self, c: int) -> int:
        """Give the deepest cut that client `c` can ever have."""
        return self.task.cuts[c]

    def setup(self) -> Flow:
        """Give the flow that runs once before the first round, in whose records it is counted."""
        yield from ()

    def tell_labels(self) -> Flow:
        """Let every client send its label counts to the server, 4 bytes per label."""
        yield par(self.tell_labels_of(c) for c in range(len(self.data)))

    def tell_labels_of(self, c: int) -> Flow:
        """Send the label counts of client `c` to the server."""
        counts = torch.from_numpy(self.task.label_counts[c]).int()
        yield send(Value("label counts", counts.nbytes, content=counts), c, SERVER)

    def finish(self) -> Flow:
        """Give the flow that runs once after the last round, in whose records it is counted.

        With `has_exits`, copies (`copy.copy`) of the method also run it between rounds: it must bind new objects to
        attributes, and must not change those that are there.
        """
        yield from ()

    def choose(self, round: int, clients: Sequence[int]) -> Sequence[int]:
        """Leave out some of the `clients` that `clients.choice` drew for a round, in cyclic order: by default none."""
        return clients

    @abstractmethod
    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Give the flow of round number `round` (from 1) with the participants `clients`, in cyclic order."""

    def took_part(self, clients: Sequence[int]) -> Sequence[int]:
        """Give the participants of the round that has ended: those chosen for it, unless the method has its own."""
        return clients

    def client_cuts(self, clients: Sequence[int]) -> Sequence[int]:
        """Give the last layer that each of the round's clients holds before its cut; empty without a cut."""
        return [self.task.cuts[c] for c in clients] if self.is_split else []

    def figures(self) -> Mapping[str, float]:
        """Give the method's own figures of the round that has ended, by their column in rounds.parquet."""
        return {}

    @abstractmethod
    def model(self) -> Model:
        """Give the parts of the global model, to be applied one after another."""

    def deployed(self, c: int) -> Deployed:
        """Give the model that answers the requests of client `c` after training: the global one, cut as in training.

        Raises ScenarioError if it is not one layer after the other.
        """
        parts = [part for part in self.model() if isinstance(part, Replica)]
        if len(parts) < len(self.model()):
            raise ScenarioError(
                "has several models, all of which answer, and cannot be served",
                key="method.name",
                found=type(self).__name__,
            )
        layers = self.task.network.layers
        if not self.is_split:
            return Deployed(parts, None, [], layers[-1].out_shape)
        cut = self.task.cuts[c]
        at_cut = 1 + [sum(len(part.part.skeleton) for part in parts[:n]) for n in range(1, len(parts))].index(cut)
        return Deployed(parts[:at_cut], None, parts[at_cut:], layers[cut - 1].out_shape, self.wire.for_inference)

    def sides(self, c: int) -> tuple[Sequence[Replica | Joined], Sequence[Replica | Joined]]:
        """Give the parts with which client `c` would go on training: before its cut, and behind it; to be read only.

        After `finish`, they are the parts with which client `c` answers.

        Raises ScenarioError if they are not one layer after the other.
        """
        deployed = self.deployed(c)
        return deployed.front, deployed.back

    def current(self) -> list[Replica]:
        """Give the parts of the global model if the round ended now, to be read only (docs/methods/metrics.md).

        Raises ScenarioError if the method has no such model before a round's end.
        """
        raise ScenarioError("has no global model within a round", key="method.name", found=type(self).__name__)

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """Give the bytes of models that the main server holds while `clients` train; None if unknown."""
        return None

    def held_bytes(self, clients: Sequence[int]) -> Mapping[ServerNode, int]:
        """Give the bytes of models that each server holds while `clients` train, of those for which it is known."""
        return {}
