"""Surrogates whose optimisers may step later than the server has the gradient, while their clients go on."""

from __future__ import annotations

from typing import Any

from sfl_sim.data.batches import Batch
from sfl_sim.methods.surrogates import Surrogates, Visit
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import SERVER, Event, Flow, Lost, Step, Value, occur, on, send, wait
from sfl_sim.training.fusion import Fusion
from sfl_sim.training.late import BackwardNormed, Differentiate, DifferentiateNormed, Update


class Events(dict[Any, Event]):
    """Events by what they belong to, say client and mini-batch; each is there as soon as somebody asks for it."""

    def __init__(self, about: str) -> None:
        super().__init__()
        self.about = about

    def __missing__(self, key: Any) -> Event:
        event = self[key] = Event(f"{self.about} {key}")
        return event


class LateSteps(Surrogates):
    """A surrogate's step may wait for the norm of part-1's gradient, and for others' steps.

    Attributes:
        is_late: whether the server's gradient and its step are two operations.
        is_exact: whether both parts' gradients are clipped as one, so that the server has to be told part-1's norm.
        fusion: momentum buffers that the server's optimisers go on from instead of their own.
        smashed, norms: by client and mini-batch, what waits for the step: what it is about, the client's norm.
        differentiated, returned, told, updated: when the server has a gradient, a client has a norm, the norm takes the
            uplink, a surrogate has made its step.
        awaited: all of them; they occur at once when their client is lost.
        lost: the clients that are.
    """

    is_late = False
    is_exact = False
    fusion: Fusion | None = None

    def backward(self, round: int) -> Step:
        """As usual, unless both parts are clipped as one."""
        return BackwardNormed(self.part1_optimiser(round)) if self.is_exact else super().backward(round)

    def minibatch(self, c: int, part1: Replica, part2: Replica | Joined, batch: Batch, round: int) -> Flow:
        """As usual; a norm takes the uplink before all that the client sends next, which may be its whole part-1."""
        norm = yield from super().minibatch(c, part1, part2, batch, round)
        if self.is_exact:
            self.norms[c, batch.step] = norm
            yield occur(self.returned[c, batch.step])
            yield from self.until(c, self.told[c, batch.step])
        return norm

    def serve(self, c: int, part2: Replica | Joined, smashed: Value, round: int) -> Flow:
        """As usual; or only the gradient, after the last step."""
        if not self.is_late:
            return (yield from super().serve(c, part2, smashed, round))
        if smashed.step:
            yield from self.until(c, self.updated[c, smashed.step - 1])
        step = (DifferentiateNormed if self.is_exact else Differentiate)(self.part2_optimiser(round))
        gradient = yield on(SERVER, step, part2, smashed)
        self.smashed[c, smashed.step] = about = Value(smashed.kind, samples=smashed.samples, step=smashed.step)
        about.maker = c
        yield occur(self.differentiated[c, smashed.step])
        return gradient

    def until(self, c: int, event: Event) -> Flow:
        """Wait for what another flow of client `c` does; if that is lost, this one is."""
        yield wait([event])
        if c in self.lost:
            raise Lost(c)

    def leave(self, c: int, visit: Visit) -> Flow:
        """Nobody waits for it any more: it has had as many mini-batches as its surrogate has made steps."""
        self.lost.add(c)
        expected = range(visit.n_batches)
        visit.n_batches = sum(self.updated[c, step].occurred for step in expected)
        for step in expected:
            for events in self.awaited:
                yield occur(events[c, step])

    def beside(self, visits: dict[int, Visit], round: int) -> list[Flow]:
        """The late steps, client by client."""
        self.lost: set[int] = set()
        self.smashed: dict[tuple[int, int], Value] = {}
        self.norms: dict[tuple[int, int], Value] = {}
        self.differentiated = Events("the gradient of client and mini-batch")
        self.returned = Events("the norm of client and mini-batch")
        self.told = Events("the sending of the norm of client and mini-batch")
        self.updated = Events("the server's step of client and mini-batch")
        self.awaited = [self.differentiated, self.returned, self.told, self.updated]
        if not self.is_late:
            return []
        return [self.unless_lost(c, visits, self.late_steps(c, visit, round)) for c, visit in visits.items()]

    def late_steps(self, c: int, visit: Visit, round: int) -> Flow:
        """A client's surrogate steps when all is there that its step needs."""
        update = Update(self.part2_optimiser(round), visit.row)
        for step in range(visit.n_batches):
            norm = None
            if self.is_exact:
                yield from self.until(c, self.returned[c, step])
                yield occur(self.told[c, step])
                norm = yield send(self.norms.pop((c, step)), c, SERVER)
            else:
                yield from self.until(c, self.differentiated[c, step])
            yield from self.before_step(step)
            yield on(SERVER, update, visit.part2, self.smashed.pop((c, step)), norm, self.fusion)
            yield occur(self.updated[c, step])

    def before_step(self, step: int) -> Flow:
        """What a late step waits for besides: nothing."""
        yield from ()
