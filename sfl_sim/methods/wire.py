"""The wire: what messages between clients and server, and uploads of models, are coded by (docs/methods/codecs.md).

Defences of what crosses the cut are here, too (docs/methods/leakage.md#defences): noise is a codec around another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.models.part import Part
from sfl_sim.models.replica import Bundle, Joined, Replica
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, State, Value, on, read, send
from sfl_sim.training.codecs import Codec, Delta
from sfl_sim.training.coded import Changes, Coded, CodedGradient, CodedUpdate, Compare, KeepError, KeepSent
from sfl_sim.training.defences import LEAST_ROWS, Noisy, NoPeek
from sfl_sim.training.steps import Forward


@dataclass(eq=False)
class Wire:
    """The codecs of a run, and what clients remember of their updates. Without codecs, everything is sent as it is.

    A codec may be `Noisy`, around another one.

    Attributes:
        up: codec of smashed data.
        down: codec of the gradients that come back.
        update: codec of what a client has learned, in uploads of models.
        error_feedback: whether a client's update makes good what its earlier ones have lost.
        at_inference: whether the trained model is evaluated, and serves, through `up`.
        nopeek: weight of NoPeek's penalty; 0: there is none.
        seed: of the run, for codecs that draw.
    """

    up: Codec | None = None
    down: Codec | None = None
    update: Codec | None = None
    error_feedback: bool = False
    at_inference: bool = True
    nopeek: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._bases: WeakKeyDictionary[State, tuple[Replica | Bundle, Replica | Bundle]] = WeakKeyDictionary()
        self._errors: dict[int, State] = {}
        self._sent: dict[int, State] = {}
        self._first_round: dict[int, int] = {}

    @property
    def for_inference(self) -> Codec | None:
        """Codec of the features that a trained model sends; None if they are sent as they are."""
        return self.up.for_inference() if self.up and self.at_inference else None

    @property
    def defends(self) -> bool:
        """True if what crosses the cut is defended."""
        return bool(self.nopeek) or isinstance(self.up, Noisy) or isinstance(self.down, Noisy)

    def upload(self, smashed: Value, part: Part, batch: Batch, c: int, round: int) -> Flow:
        """Send what `part` has made of a mini-batch from client `c` to the server; gives what arrives."""
        if isinstance(self.up, Delta):
            return (yield from self._changes(self.up, smashed, part, batch, c, round))
        if self.up is not None:
            smashed = self.coded_up(smashed, [part], c, round, smashed.step)
        return (yield send(smashed, c, SERVER))

    def download(self, gradient: Value, smashed: Value, part1: Replica, c: int, round: int) -> Flow:
        """Send the gradient at what `upload` has given back to client `c`; gives the one with which it goes on."""
        if self.up is not None or self.down is not None:
            gradient = self.coded_gradient(gradient, smashed, part1.part, c, round)
        return (yield from self.receive(gradient, part1, c))

    def receive(self, gradient: Value, part1: Replica, c: int) -> Flow:
        """Send a gradient, coded or not, to client `c`; gives the one with which it goes on."""
        gradient = yield send(gradient, SERVER, c)
        if self.nopeek and gradient.size_bytes and gradient.samples >= LEAST_ROWS:
            gradient = yield on(c, NoPeek(self.nopeek), part1, gradient)
        return gradient

    def coded_up(self, payload: Value, parts: Sequence[Part], *ids: int) -> Value:
        """Give the message in which outputs of `parts`, the first contents of `payload`, go up; `ids` name draws."""
        return self._coded(self.up, "codec up", payload, parts, ids)

    def coded_down(self, payload: Value, parts: Sequence[Part], *ids: int) -> Value:
        """Give the message in which outputs of `parts` go down."""
        return self._coded(self.down, "codec down", payload, parts, ids)

    def coded_gradient(self, gradient: Value, message: Value, part: Part, c: int, round: int) -> Value:
        """Give the message in which the gradient at the output of `part`, the first content of `message`, goes down."""
        return self.returned(gradient, message, part, self.down, c, round, gradient.step)

    def returned(self, gradient: Value, message: Value, part: Part, codec: Codec | None, *ids: int) -> Value:
        """Give the message in which the gradient at `message` comes back, coded by `codec`, unless nobody needs it."""
        through = message if isinstance(message, Coded) else None
        if not gradient.size_bytes or (through is None and codec is None):
            return gradient
        shape = (gradient.samples, *part.at(gradient.length).out_shape)
        return CodedGradient(gradient, through, shape, part.wire_dtype, codec, (self.seed, "codec of gradients", *ids))

    def crossing_bytes(self, part: Part, samples: int) -> tuple[int, int]:
        """Give the bytes that go up, with labels, and that come back, when part-1 trains with a mini-batch."""
        up = self.coded_up(Forward().out(Replica(part), Value("batch", samples=samples)), [part])
        numel = part.out_numel if part.n_parameters else 0  # no gradient comes down to frozen layers
        gradient = Value("gradients", samples * numel * part.wire_dtype.itemsize, samples)
        return up.size_bytes, self.coded_gradient(gradient, up, part, c=0, round=0).size_bytes

    def fetch(self, model: Replica | Joined | Bundle, c: int) -> Flow:
        """Send a model to client `c`; gives the client's copy. Both remember it, if the client will send an update."""
        copy = yield send(model, AGGREGATOR, c)
        if self.update:
            self._bases[copy] = (yield send(copy, c, c)), (yield send(model, AGGREGATOR, AGGREGATOR))
        return copy

    def deliver(self, model: Replica | Bundle, c: int, round: int) -> Flow:
        """Send the model that client `c` has fetched and trained to the aggregator; gives what arrives."""
        if not self.update:
            return (yield send(model, c, AGGREGATOR))
        error = self._errors.setdefault(c, State("error")) if self.error_feedback else None
        update = CodedUpdate(model, *self._bases[model], self.update, (self.seed, "codec of updates", c, round), error)
        arrived = yield send(update, c, AGGREGATOR)
        if error:
            yield on(c, KeepError(), error, update)
        return arrived

    def _changes(self, delta: Delta, smashed: Value, part: Part, batch: Batch, c: int, round: int) -> Flow:
        """Send the samples that have changed since client `c` sent them last, which it remembers once they arrive."""
        memory, n = self._sent.setdefault(c, State("sent")), smashed.samples
        compare = Compare(delta, (self.seed, "codec up", c, round, smashed.step), n * part.out_numel, batch)
        compared = yield on(c, compare, memory, smashed)
        n_sent = yield read(compared)
        if n_sent is None:
            if delta.assume_sent is None:
                problem = "what is sent depends on training; say which share, to time a run without it"
                raise ScenarioError(problem, key="wire.up.assume_sent", allowed="0 to 1")
            is_first = self._first_round.setdefault(c, round) == round
            n_sent = n if is_first else delta.assume_sent * n + 0.5
        changes = Changes(smashed, compared, int(n_sent), delta, (n, *part.out_shape), part.wire_dtype)
        arrived = yield send(changes, c, SERVER)
        yield on(c, KeepSent(batch), memory, compared)
        return arrived

    def _coded(
        self, codec: Codec | None, name: str, payload: Value, parts: Sequence[Part], ids: Sequence[int]
    ) -> Value:
        if codec is None:
            return payload
        shapes = [(payload.samples, *part.at(payload.length).out_shape) for part in parts]
        return Coded(payload, codec, shapes, parts[0].wire_dtype, (self.seed, name, *ids))
