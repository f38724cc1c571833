"""SplitNN: split learning without averaging; one model travels from client to client.

Vepakomma et al., "Split Learning for Health: Distributed Deep Learning without Sharing Raw Patient Data", 2018
(docs/methods/splitnn.md).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.split import SplitMethod
from sfl_sim.ops import SERVER, Flow, Lost, Node, ServerNode, on, present, send
from sfl_sim.rng import stream
from sfl_sim.training.steps import Renew


class SplitNN(SplitMethod, survives=True):
    """Clients train one after another, in a new random order every round; part-1 is handed on directly."""

    only_averages = False  # it averages nothing
    uploads_model = False
    knows_deadlines = waits_for_all = False
    shares_server_model = True
    ignores: Mapping[str, str] = {"train.agg_weights": "nothing is averaged"}

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.holder: Node = SERVER
        """The node where part-1 is."""

    def round(self, round: int, clients: Sequence[int]) -> Flow:
        """Visit every client. A lost client takes its part-1 along, and the next one goes on from the predecessor's."""
        for c in map(int, stream(self.task.seed, "splitnn order", round).permutation(clients)):
            if not isinstance(self.holder, ServerNode):
                yield present([self.holder])
            with suppress(Lost):
                yield from self.visit(c, round)

    def visit(self, c: int, round: int) -> Flow:
        """Take part-1 over from the predecessor, train; optimisers are new at each visit."""
        part1 = yield send(self.part1, self.holder, c)
        yield on(SERVER, Renew(), self.part2)
        yield from self.batches(c, part1, self.part2, self.data.batches(c, round), round)
        self.part1, self.holder = part1, c
