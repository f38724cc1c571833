"""One-way traffic: clients with a head of their own send every second mini-batch, and wait for nothing that comes back.

The method of this file is what CSE-FSL needs: a mailbox, a client model of part-1 and a head, and steps on both.
"""

import lossy_world
import pytest
import torch
from small_world import fleet, simulate, task
from torch.nn.functional import cross_entropy

from sfl_sim.errors import DeadlockError
from sfl_sim.methods import METHODS
from sfl_sim.methods.ahead import Mailbox, closing
from sfl_sim.methods.split import SharedServer, SplitMethod
from sfl_sim.models.heads import exit_network
from sfl_sim.models.replica import Bundle
from sfl_sim.ops import AGGREGATOR, SERVER, Value, expect, on, par, start
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.training.executors import Timing
from sfl_sim.training.exit_steps import ExitBackward, ExitForward
from sfl_sim.training.steps import Renew, TrainAlone

EVERY = 2


class OneWay(SharedServer, SplitMethod, survives=True):
    def __init__(self, task, options=None):
        super().__init__(task, options)
        _, head = exit_network(task.network, task.cut).split(task.cut, seed=task.seed, device=task.device)
        self.client_model = Bundle([self.part1, head])

    def round(self, round, clients):
        yield on(SERVER, Renew(), self.part2)
        yield expect(self.part2, {c: n // EVERY for c, n in self.begin(clients).items()})
        models = yield par({c: self.client(c, self.part2, round) for c in clients})
        yield from self.average(AGGREGATOR, self.client_model, list(models.values()), list(models))

    def batches(self, c, model, part2, batches, round, visit=0):
        mailbox, batches = Mailbox(c), list(batches)
        feed = self.feed(c, mailbox, model, batches, round)
        serve = self.serve(mailbox, part2, len(batches) // EVERY, round)
        yield par([closing(feed, mailbox), closing(serve, mailbox)])

    def feed(self, c, mailbox, model, batches, round):
        for batch in batches:
            smashed = yield on(c, ExitForward(1.0), model, batch)
            if batch.step % EVERY == EVERY - 1:  # the message crosses beside the backward pass
                yield start(closing(self.post(mailbox, smashed, model, batch, c, round), mailbox))
            nothing = Value("gradients", samples=batch.samples, step=batch.step)
            yield on(c, ExitBackward(self.optimiser(round)), model, nothing)

    def post(self, mailbox, smashed, model, batch, c, round):
        yield from mailbox.put((yield from self.wire.upload(smashed, model.replicas[0].part, batch, c, round)))

    def serve(self, mailbox, part2, n, round):
        for _ in range(n):
            yield on(SERVER, TrainAlone(self.optimiser(round)), part2, (yield from mailbox.take()))


@pytest.fixture(autouse=True)
def one_way(monkeypatch):
    monkeypatch.setitem(METHODS, "one_way", OneWay)


def networks(method):
    """Part-1, head and part-2 as plain modules, with the method's weights."""
    front = exit_network(method.task.network, 1)._module(seed=0)
    back = method.task.network._module(seed=0)[1:]
    for module, replica in zip((front[:1], front[1:], back), (*method.client_model.members, method.part2), strict=True):
        module.load_state_dict(dict(replica.weights.named_tensors()))
    return front[:1], front[1:], back


def test_a_client_learns_from_its_head_and_the_server_from_what_it_sends():
    work = task([10])
    method, *_ = simulate("one_way", work, rounds=1)
    part1, head, part2 = networks(OneWay(work))
    sgd, at_server = (
        torch.optim.SGD([p for module in modules for p in module.parameters()], 0.1)
        for modules in ((part1, head), (part2,))
    )
    for batch in work.data.batches(0, 1):
        x, y = batch.load()
        smashed = part1(x)
        if batch.step == 1:
            at_server.zero_grad()
            cross_entropy(part2(smashed.detach()), y).backward()
            at_server.step()
        sgd.zero_grad()
        cross_entropy(head(smashed), y).backward()
        sgd.step()
    for expected, found in zip((part1, head, part2), networks(method), strict=True):
        for one, other in zip(expected.parameters(), found.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_nothing_comes_down_and_both_members_are_averaged():
    work = task([8, 8])
    before = [member.weights.flat.clone() for member in OneWay(work).client_model.members]
    method, _, rows = simulate("one_way", work, rounds=1)
    down = rows[rows["node"] == b"downlink"]
    assert set(down["kind"]) == {b"model"}
    assert set(down["bytes"]) == {method.client_model.size_bytes}
    assert len(rows[rows["kind"] == b"smashed"]) == len(rows[rows["kind"] == b"train"]) == 2
    assert len(rows[rows["kind"] == b"average"]) == 2
    after = [member.weights.flat for member in method.client_model.members]
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_a_slow_server_delays_no_client():
    def of_clients(speedup):
        *_, rows = simulate("one_way", task(device=None), 1, world=fleet(3, speedup=speedup), workers=1)
        mine = rows[(rows["node"] == b"client") | (rows["node"] == b"uplink")]
        return sorted(map(tuple, mine[["client", "kind", "step", "started_s", "ended_s"]][mine["kind"] != b"model"]))

    assert of_clients(0.01) == of_clients(1000.0)


def test_a_message_crosses_beside_the_backward_pass():
    *_, rows = simulate("one_way", task([8], device=None), 1)
    (sent,) = rows[rows["kind"] == b"smashed"]
    (passed,) = rows[(rows["kind"] == b"backward") & (rows["step"] == 1)]
    assert sent["started_s"] == passed["started_s"]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_nobody_waits_for_a_client_that_goes_away(share):
    """It may be lost while it computes, while its message is on the way, or while its job waits."""
    usual = {"rounds": [range(4)], "momentum": 0.0}
    _, _, (rows,) = lossy_world.run("one_way", device=None, **usual)
    away = lossy_world.gone_at({3: lossy_world.instant(rows, 3, share)})
    alone, clock, _ = lossy_world.run("one_way", presence=away, **usual)
    assert {loss.client for loss in clock.records.take_dropouts()} == {3}
    assert set(alone.copies) == {0, 1, 2}
    expected, *_ = lossy_world.run("one_way", [range(3)], momentum=0.0)
    for one, other in zip(alone.client_model.members, expected.client_model.members, strict=True):
        assert torch.equal(one.weights.flat, other.weights.flat)


def test_who_waits_in_vain_is_told_for_what():
    """The flow that takes expects a message more than is put."""
    clock = EventClock(fleet(1), Timing(), ORDERS["fcfs"])
    mailbox = Mailbox(7, ahead=1)

    def taking():
        yield from mailbox.take()
        yield from mailbox.take()

    with pytest.raises(DeadlockError, match="a flow waits for client 7 to have sent message 1"):
        clock.run(side_by_side(mailbox.put(Value("smashed")), taking()), 1)


def side_by_side(*flows):
    yield par(flows)
