"""DTFL: each client has a tier, so a cut, that follows from the times of its earlier rounds.

Mohammadabadi et al., "Speed Up Federated Learning in Heterogeneous Environments: A Dynamic Tiering
Approach", 2023 (docs/methods/dtfl.md).
"""

from collections.abc import Mapping, Sequence

from pydantic import Field

from sfl_sim.data.batches import Batch
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.ahead import Boxes, HeadOptions, RunsAhead, closing
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.server_copies import ClientVisit, ServerCopies
from sfl_sim.models.heads import exit_cuts
from sfl_sim.models.replica import Bundle
from sfl_sim.ops import AGGREGATOR, SERVER, Flow, ServerNode, par, send
from sfl_sim.training.codecs import Delta
from sfl_sim.training.exit_steps import exit_work

NEWEST = 2 / 3
"""Weight of the latest round in a client's smoothed seconds."""


class DtflOptions(HeadOptions):
    """Options of DTFL."""

    tiers: list[int] | None = Field(default=None, min_length=1)
    """Layers after which clients may be cut; null: all that `model.cut` and early exits know."""
    count_models: bool = False
    """Also count the exchange of part-1 and head in a client's time; the paper does not."""


class Dtfl(RunsAhead, ServerCopies, survives=True):
    """The tier of a client is the deepest cut with which it does not hold up the round."""

    Options = DtflOptions
    options: DtflOptions
    examples = (DtflOptions(tiers=[1, 2], count_models=True), DtflOptions(tiers=[1]))
    neutral = None
    only_averages = depends_on_time = True  # unless there is one tier

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        wanted = options.tiers if isinstance(options, DtflOptions) else None
        most = len(task.network) - 1
        tiers = sorted({*(wanted or [cut for cut in exit_cuts(task.network) if cut <= most])})
        for cut in tiers if wanted else ():
            if not 0 < cut <= most:
                raise ScenarioError("is no cut of the network", key="method.tiers", found=cut, allowed=f"1 to {most}")
        for cut in task.lasting_cuts:
            if wanted and cut not in tiers:
                problem = "must be a tier, since clients begin there"
                raise ScenarioError(problem, key="model.cut", found=cut, allowed=tiers)
        super().__init__(task, options, more_cuts=tiers)
        if self.wire.error_feedback and len(self.cuts) > 1:
            problem = "adds what layers have lost to other layers: clients change their tiers"
            raise ScenarioError(problem, key="wire.error_feedback", found=True, allowed="false")
        if isinstance(self.wire.up, Delta) and len(self.cuts) > 1:
            problem = "compares a sample with itself in an earlier round: clients change their tiers, so what they send"
            raise ScenarioError(problem, key="wire.up", found="delta")
        for piece in self.pieces[:-1]:
            task.at_clients(piece)
        self.looks_at_times = True
        self.depends_on_time = len(self.cuts) > 1
        self.heads = {cut: self.new_head(cut) for cut in self.cuts}
        """The head of each tier, averaged over the clients that were in it."""
        self.models: dict[int, Bundle] = {}

    def deepest_cut(self, c: int) -> int:
        return max(self.cuts)

    def choose_cuts(self, round: int, clients: Sequence[int]) -> Mapping[int, int]:
        """Choose the clients' tiers by what has been seen; who has not been seen stays where clients begin."""
        self.models = {}
        return {c: self.task.cuts[c] for c in clients} | deepest(
            {c: self.times_s(c) for c in clients if self.held.get(c)}
        )

    def times_s(self, c: int) -> dict[int, float]:
        """Estimate the seconds of a client's round with each cut: of device or server, the slower one, and uplink."""
        seen, current = self.task.seen, self.held[c][max(self.held[c])]
        rounds = [number for number, cut in self.held[c].items() if cut == current and number in seen.rounds[c]]
        device_s = smoothed([seen.rounds[c][number].device_s for number in rounds])
        samples, size = self.data.seen(c), self.data.size(c)
        server, up_bps = seen.server_macs_per_s, seen.up_bps(c)
        assert server is not None
        assert up_bps is not None
        times_s = {}
        for cut in self.cuts:
            part1, part2 = self.parts[cut]
            part = part1.part
            at_client_s = device_s * self._macs(cut) / self._macs(current)
            at_server_s = part2.part.work(samples, 3, gradient=False).macs / server
            sent_bytes = samples * self.wire.crossing_bytes(part, size)[0] / size
            if self.options.count_models:
                sent_bytes += 2 * (part.size_bytes + self.heads[cut].size_bytes)
            times_s[cut] = max(at_client_s, at_server_s) + 8 * sent_bytes / up_bps
        return times_s

    def _macs(self, cut: int) -> float:
        return exit_work(Bundle([self.parts[cut][0], self.heads[cut]]), samples=1, passes=3).macs

    def client(self, c: int, visit: ClientVisit, round: int) -> Flow:
        """Train with the head of the tier, while the server trains a copy of the rest."""
        visit.part2 = yield send(self.parts[visit.cut][1], SERVER, SERVER)
        boxes, batches = Boxes.of(c), list(self.data.steps(c, round, visit.n_batches))
        flows = self.work(c, visit, boxes, batches, round), self.serve(c, visit.part2, boxes, batches, round)
        yield par(closing(flow, *boxes) for flow in flows)
        self.held.setdefault(c, {})[round] = visit.cut

    def work(self, c: int, visit: ClientVisit, boxes: Boxes, batches: Sequence[Batch], round: int) -> Flow:
        """Download part-1 and head, train them while activations go up, and upload them behind these."""
        part1 = self.parts[visit.cut][0]
        model = yield from self.wire.fetch(Bundle([part1, self.heads[visit.cut]]), c)
        flows = (self.learn(c, model, boxes, batches, round), self.upload(c, part1.part, boxes, batches, round))
        yield par(closing(flow, *boxes) for flow in flows)
        self.models[c] = model = yield from self.wire.deliver(model, c, round)
        visit.part1 = model.replicas[0]

    def average_at(self, node: ServerNode, visits: Mapping[int, ClientVisit], round: int) -> Flow:
        """Average all layers as SplitFedV1 does, and each tier's head over its clients."""
        yield from super().average_at(node, visits, round)
        for cut, head in self.heads.items() if node == AGGREGATOR else ():
            heads = {c: self.models[c].replicas[1] for c, visit in visits.items() if visit.cut == cut}
            yield from self.average(AGGREGATOR, head, heads)


def smoothed(values: Sequence[float]) -> float:
    """Return the exponential average of values, the latest of which counts two thirds.

    >>> round(smoothed([10, 12, 11]), 4)
    11.1111
    """
    average = values[0]
    for value in values[1:]:
        average = NEWEST * value + (1 - NEWEST) * average
    return average


def deepest(times_s: Mapping[int, Mapping[int, float]]) -> dict[int, int]:
    """Choose for each client the largest key with which it takes no longer than the round must.

    That is as long as the slowest client takes with its fastest key.

    >>> deepest({0: {1: 10.0, 2: 5.0, 3: 4.0}, 1: {1: 18.0, 2: 24.0, 3: 32.0}})
    {0: 3, 1: 1}
    """
    if not times_s:
        return {}
    longest_s = max(min(by_key.values()) for by_key in times_s.values())
    return {c: max(key for key, time_s in by_key.items() if time_s <= longest_s) for c, by_key in times_s.items()}
