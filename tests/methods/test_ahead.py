"""Clients that run ahead, here CSE-FSL's: mailboxes, a loop by hand, and clients that go away."""

import lossy_world
import pytest
import torch
from small_world import fleet, simulate, task
from torch.nn.functional import cross_entropy

from sfl_sim.errors import DeadlockError
from sfl_sim.methods.ahead import Mailbox
from sfl_sim.models.heads import exit_network
from sfl_sim.ops import Value, par
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.training.executors import Timing

EVERY_SECOND = {"upload_every": 2}


def networks(method, replicas):
    """Part-1, head and part-2 as plain modules, with the weights of the replicas."""
    front = exit_network(method.task.network, 1)._module(seed=0)
    modules = front[:1], front[1:], method.task.network._module(seed=0)[1:]
    for module, replica in zip(modules, replicas, strict=True):
        module.load_state_dict(dict(replica.weights.named_tensors()))
    return modules


def test_a_client_learns_from_its_head_and_the_server_from_every_second_mini_batch():
    work = task([10])
    method, *_ = simulate("cse_fsl", work, rounds=1, options=EVERY_SECOND)
    begun = type(method)(work, method.options)
    part1, head, part2 = networks(begun, [begun.part1, begun.head, begun.part2])
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
    learned = networks(method, [*method.client_model.members, method.part2])
    for expected, found in zip((part1, head, part2), learned, strict=True):
        for one, other in zip(expected.parameters(), found.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_nobody_waits_for_a_client_that_goes_away(share):
    """It may be lost while it computes, while its message is on the way, or while its job waits."""
    usual = {"options": EVERY_SECOND, "momentum": 0.0}
    _, _, (rows,) = lossy_world.run("cse_fsl", [range(4)], device=None, **usual)
    away = lossy_world.gone_at({3: lossy_world.instant(rows, 3, share)})
    alone, clock, _ = lossy_world.run("cse_fsl", [range(4)], away, **usual)
    assert {loss.client for loss in clock.records.take_dropouts()} == {3}
    assert set(alone.copies) == {0, 1, 2}
    expected, *_ = lossy_world.run("cse_fsl", [range(3)], **usual)
    for one, other in zip(alone.client_model.members, expected.client_model.members, strict=True):
        assert torch.equal(one.weights.flat, other.weights.flat)


def test_who_waits_in_vain_is_told_for_what():
    """The flow that takes expects a message more than is put."""
    clock, mailbox = EventClock(fleet(1), Timing(), ORDERS["fcfs"]), Mailbox(7, ahead=1)

    def taking():
        yield from mailbox.take()
        yield from mailbox.take()

    def side_by_side(*flows):
        yield par(flows)

    with pytest.raises(DeadlockError, match="client 7 to have sent message 1"):
        clock.run(side_by_side(mailbox.put(Value("smashed")), taking()), 1)
