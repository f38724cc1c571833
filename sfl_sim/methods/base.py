"""What every method is: an algorithm box as flows, on a task that says what is trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from sfl_sim.data.batches import ClientData
from sfl_sim.errors import ScenarioError
from sfl_sim.models.network import Network
from sfl_sim.models.replica import Replica
from sfl_sim.ops import SERVER, Flow, Value, on, par, send
from sfl_sim.training.alternatives import Model
from sfl_sim.training.deployed import Deployed
from sfl_sim.training.optimisers import Adam, Optimiser, Sgd
from sfl_sim.training.steps import Average


@dataclass(frozen=True)
class Task:
    """What is to be trained, and with which settings.

    Attributes:
        network: the model.
        cuts: part-1 of client c is layers 1 to `cuts[c]`; empty for a method that is not split.
        round_cuts: one of them, drawn for every round, is the cut of all clients in it, and `cuts` say the largest;
            empty where `cuts` hold for all rounds.
        data: the clients' mini-batches.
        label_counts: (C, L) training samples of each label that each client holds.
        label_names: the labels' names.
        sample_s: seconds that a client needs for a sample of its own, as a server would measure them; for methods that
            suit their demands to the clients, not for timing.
        lr, lr_decay, lr_min: lr of round r (from 1) is max(lr * lr_decay^(r-1), lr_min).
        optimizer, momentum, weight_decay: the local optimisers, alike on both sides: `sgd`, `nag` (SGD with Nesterov's
            momentum), `adam` or `adamw`.
        uniform_weights: k_c = 1/n instead of |D_c| / sum |D| (METHODS.md 0.1).
        device: where weights live; None for ghosts in timing-only runs.
        retraced: whether an earlier run is walked again without training: the numbers that its flows read are known.
    """

    network: Network
    cuts: Sequence[int]
    data: ClientData
    lr: float = 0.05
    lr_decay: float = 1.0
    lr_min: float = 0.0
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    uniform_weights: bool = False
    label_counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    label_names: Sequence[str] = ()
    sample_s: Callable[[int], float] = lambda client: 1.0
    seed: int = 0
    device: torch.device | None = None
    round_cuts: Sequence[int] = ()
    retraced: bool = False

    @property
    def cut(self) -> int:
        """The cut that all clients share, for methods whose clients share a part-2; ScenarioError if cuts differ."""
        cut, *others = sorted(set(self.cuts))
        if others:
            raise ScenarioError(
                "must be the same for all clients, which share one part-2 with this method",
                key="model.cut", found=[cut, *others],
            )  # fmt: skip
        return cut

    def split(self, *cuts: int) -> list[Replica]:
        """The initial model, cut into parts; the same numbers whatever the cuts."""
        return self.network.split(*cuts, seed=self.seed, device=self.device)

    def optimiser(self, round: int) -> Optimiser:
        """The local optimiser of a round."""
        lr = max(self.lr * self.lr_decay ** (round - 1), self.lr_min)
        if self.optimizer in ("adam", "adamw"):
            return Adam(lr, weight_decay=self.weight_decay, decoupled=self.optimizer == "adamw")
        return Sgd(lr, self.momentum, nesterov=self.optimizer == "nag", weight_decay=self.weight_decay)

    def shares(self, clients: Sequence[int]) -> list[float]:
        """Aggregation weights k_c of `clients`; they add up to one."""
        if self.uniform_weights:
            return [1 / len(clients)] * len(clients)
        total = sum(self.data.samples(c) for c in clients)
        return [self.data.samples(c) / total for c in clients]


class MethodOptions(BaseModel):
    """A method's own keys in the scenario, below `method`; none unless the method has a subclass of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Method(ABC):
    """A method keeps the global model between rounds and says, as flows, what happens in a round.

    It never waits and never reads a clock. A subclass sets its states up in `__init__` and writes `round` and `model`.
    Name it in a scenario as `method: {name: "my_package.my_module:MyMethod"}`. A complete example, federated averaging;
    a test drives it by hand, on a task without weights:

        >>> from sfl_sim.training.steps import Train
        >>> from sfl_sim.ops import AGGREGATOR, par, send
        >>> class Averaging(Method, survives=True):
        ...     is_split = False
        ...
        ...     def __init__(self, task, options=None):
        ...         super().__init__(task, options)
        ...         (self.whole,) = task.split()
        ...
        ...     def round(self, round, clients):
        ...         copies = yield par({c: self.client(c, round) for c in clients})
        ...         yield from self.average(AGGREGATOR, self.whole, list(copies.values()), list(copies))
        ...
        ...     def client(self, c, round):
        ...         copy = yield send(self.whole, AGGREGATOR, c)
        ...         for batch in self.data.batches(c, round):
        ...             yield on(c, Train(self.task.optimiser(round)), copy, batch)
        ...         return (yield send(copy, c, AGGREGATOR))
        ...
        ...     def model(self):
        ...         return [self.whole]
        >>> import numpy as np
        >>> from sfl_sim.models.zoo import network
        >>> data = ClientData([np.arange(4), np.arange(4)], batch_size=2)
        >>> method = Averaging(Task(network("cnn_small", (1, 8, 8), 10), cuts=[], data=data))
        >>> flow = method.round(1, [0, 1])
        >>> branches = next(flow).flows
        >>> next(branches[1])
        Send(payload=Replica(model, 103464 B, 0 samples, step -1), src=-2, dst=1)
        >>> branches[1].send(method.whole.snapshot()).args
        (Batch(batch, 0 B, 2 samples, step 0),)
    """

    Options: ClassVar[type[MethodOptions]] = MethodOptions
    regular: ClassVar[bool] = False
    """Whether every round of the same clients issues the same operations, whoever is served when. Timing-only runs of
    such a method, which must not `start` flows, need no event loop. Said as `class MyMethod(Method, regular=True)`, and
    not inherited."""
    survives: ClassVar[bool] = False
    """Whether a round goes on without clients that are lost (`ops.Lost`). Said as `class MyMethod(Method,
    survives=True)`, and not inherited."""
    knows_deadlines: ClassVar[bool] = True
    """Whether a deadline can end a round: not where none waits for its clients, or where a relay waits for one."""
    is_split: bool = True
    """Whether the model is cut between clients and server, so that the task must say where."""
    has_exits: ClassVar[bool] = False
    """Whether clients answer by an exit of their own what they are sure of."""
    cut_may_change: ClassVar[bool] = False
    """Whether the method can cut the model elsewhere in every round (`Task.round_cuts`)."""

    def __init_subclass__(cls, regular: bool = False, survives: bool = False, **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.regular = vars(cls).get("regular", regular)
        cls.survives = vars(cls).get("survives", survives)

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        self.task = task
        self.data = task.data
        self.options = options or self.Options()

    def optimiser(self, round: int) -> Optimiser:
        """The local optimiser of a round."""
        return self.task.optimiser(round)

    def average(self, node: int, state: Replica, replicas: Sequence[Replica], clients: Sequence[int]) -> Flow:
        """`state` <- sum_c k_c replica_c at `node`: federated averaging; of nobody's, it stays as it is."""
        if replicas:
            yield on(node, Average(), state, replicas, self.task.shares(clients))

    def setup(self) -> Flow:
        """The flow of what happens once, before the first round, whose records take it in."""
        yield from ()

    def tell_labels(self) -> Flow:
        """A setup: every client tells the server how many samples of each label it has, 4 bytes a label."""
        yield par(self.tell_labels_of(c) for c in range(len(self.data)))

    def tell_labels_of(self, c: int) -> Flow:
        """Client `c` does so."""
        counts = torch.from_numpy(self.task.label_counts[c]).int()
        yield send(Value("label counts", counts.nbytes, content=counts), c, SERVER)

    def finish(self) -> Flow:
        """The flow of what happens once, after the last round, whose records take it in."""
        yield from ()

    def choose(self, round: int, clients: Sequence[int]) -> Sequence[int]:
        """Who of the `clients` drawn for a round takes part, in cyclic order: all, unless the method selects."""
        return clients

    @abstractmethod
    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """The flow of round number `round` (from 1) with the participants `clients`, in cyclic order."""

    def took_part(self, clients: Sequence[int]) -> Sequence[int]:
        """Who took part in the round that has ended: who was drawn, unless the method gives places away as it goes."""
        return clients

    @property
    def bystanders(self) -> str | None:
        """What clients that take no part in a round are needed as; None if they are not."""
        return None

    def figures(self) -> Mapping[str, float]:
        """Numbers of its own that a method tells of the round that has ended, by their column in rounds.parquet."""
        return {}

    @abstractmethod
    def model(self) -> Model:
        """The parts of the global model, to be applied one after another."""

    def deployed(self, c: int) -> Deployed:
        """What answers the requests of client `c` once training has ended: the global model, cut as for training.

        Raises ScenarioError if it is not one layer after the other.
        """
        parts = [part for part in self.model() if isinstance(part, Replica)]
        if len(parts) < len(self.model()):
            raise ScenarioError("has several models, all of which answer, and cannot be served", key="method.name",
                                found=type(self).__name__)  # fmt: skip
        layers = self.task.network.layers
        if not self.is_split:
            return Deployed(parts, None, [], layers[-1].out_shape)
        cut = self.task.cuts[c]
        at_cut = 1 + [sum(len(part.part.skeleton) for part in parts[:n]) for n in range(1, len(parts))].index(cut)
        return Deployed(parts[:at_cut], None, parts[at_cut:], layers[cut - 1].out_shape)

    def current(self, part1_of: int | None = None) -> list[Replica]:
        """The parts of the global model if the round ended now: to be read only (METHODS.md CHOICE 10).

        Args:
            part1_of: the client whose part-1 stands for all; None for their average.

        Raises ScenarioError if the method has no such model before a round's end.
        """
        raise ScenarioError("has no global model within a round", key="method.name", found=type(self).__name__)

    def server_bytes(self, clients: Sequence[int]) -> int | None:
        """Bytes of models that the main server holds while `clients` train; None if the method does not tell."""
        return None
