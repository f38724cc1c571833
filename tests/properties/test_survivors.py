"""Rounds with lost clients: the result for the others, and the remains of the lost ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from lossy_world import EVERYBODY, SURVIVORS, gone_at, instant, own, replayed, run
from small_world import ANY_CUT, task

from sfl_sim.methods import METHODS
from sfl_sim.models.replica import Replica
from sfl_sim.ops import AGGREGATOR, Lost
from sfl_sim.testing import LOSSY, check_lost


def test_the_copy_of_a_lost_client_is_missing_in_the_average():
    """Two clients download; one of them is gone then, and the other's copy is all that there is to be averaged."""
    method = METHODS["fedavg"](task([4, 4], device=None))
    flow = method.round(1, [0, 1])
    going, staying = next(flow).flows
    next(going), next(staying)
    with pytest.raises(Lost):
        going.throw(Lost(0))
    copy = method.whole.snapshot()
    average = flow.send({1: copy})
    assert average.node == AGGREGATOR
    assert average.args == ([copy], [1.0])


def test_the_current_model_is_that_of_those_who_are_left():
    """If all are lost it is the round's initial one."""
    method = METHODS["splitfed_v2"](task([4, 4]))
    flow = method.round(1, [0, 1])
    next(flow), flow.send(None)
    going, staying = flow.send(None).flows
    next(going), next(staying)
    copy = method.part1.snapshot()
    copy.weights.flat.add_(1.0)
    staying.send(copy)
    with pytest.raises(Lost):
        going.throw(Lost(0))
    assert torch.equal(method.current()[0].weights.flat, copy.weights.flat)
    with pytest.raises(Lost):
        staying.throw(Lost(1))
    assert method.current()[0] is method.part1


@pytest.mark.parametrize("case", ANY_CUT, ids=str)
def test_whoever_is_lost_leaves_nothing_whatever_the_cuts(case):
    check_lost(case, replace(LOSSY, settings={"local_epochs": 2, "cuts": [1, 2, 1, 2]}))


def served(rows):
    """The jobs of the server, in order."""
    return np.sort(
        rows[(rows["kind"] == b"train") & (rows["node"] == b"server") & (rows["macs"] > 0)], order="started_s"
    )


@pytest.mark.parametrize("order", ["cyclic", "fcfs"])
def test_the_shared_part_keeps_what_it_has_learned_from_a_lost_client(order):
    """Part-2 is what the jobs have made of it that were served; part-1 is the average of the others."""
    _, _, (undisturbed,) = run("splitfed_v2", [EVERYBODY], order=order, device=None)
    method, _, (rows,) = run("splitfed_v2", [EVERYBODY], gone_at({3: instant(undisturbed, 3, 0.5)}), order=order)
    work, jobs = method.task, served(rows)
    assert 0 < (jobs["client"] == 3).sum() < work.data.n_batches(3)
    assert [(jobs["client"] == c).sum() for c in SURVIVORS] == [work.data.n_batches(c) for c in SURVIVORS]
    initial, part2 = work.split(1)
    part1s = {c: initial.snapshot() for c in EVERYBODY}
    replayed(work, part1s, part2, jobs, round=1)
    assert torch.equal(method.part2.weights.flat, part2.weights.flat)
    part1 = Replica.averaged([part1s[c] for c in SURVIVORS], work.shares(SURVIVORS))
    assert torch.equal(method.part1.weights.flat, part1.weights.flat)


def test_a_head_whose_clients_are_all_lost_is_not_averaged():
    """Leave a head out even if it has been trained before the loss."""
    method, _, (undisturbed,) = run("hydra", [EVERYBODY], device=None)
    groups = method.groups
    lost = [c for c in EVERYBODY if groups[c] == groups[3]]
    left = [c for c in EVERYBODY if c not in lost]
    assert left
    method, _, (rows,) = run("hydra", [EVERYBODY], gone_at({c: instant(undisturbed, c, 0.7) for c in lost}))
    assert 3 in served(rows)["client"]
    heads = [method.heads[group] for group in sorted({groups[c] for c in left})]
    seen = [sum(method.data.seen(c) for c in left if groups[c] == group) for group in sorted({groups[c] for c in left})]
    expected = Replica.averaged(heads, [samples / sum(seen) for samples in seen])
    assert torch.equal(method.head.weights.flat, expected.weights.flat)


def test_a_merged_mini_batch_is_of_those_who_came():
    """Client 3 goes away when two of its five mini-batches have been merged; the others' are merged on."""
    options, work = {"steps": "longest"}, {"samples": [8, 12, 8, 20], "local_epochs": 1}
    _, _, (rows,) = run("mergesfl", [EVERYBODY], options=options, **work, device=None)
    leaves_s = own(rows, 3)[own(rows, 3)["step"] == 2]["started_s"].min() + 0.01
    method, _, (rows,) = run("mergesfl", [EVERYBODY], gone_at({3: leaves_s}), options, **work)
    samples = served(rows)["macs"] / (3 * method.part2.part.macs)
    assert samples.tolist() == [16, 16, 4]


def test_without_a_fallen_runner_the_relay_goes_on_from_its_predecessor():
    """Part-1 is as the others have trained it, one after another; part-2 has learned from the lost client, too."""
    _, _, (rows,) = run("splitnn", [EVERYBODY], device=None)
    runners = list(dict.fromkeys(served(rows)["client"].tolist()))
    fallen = runners[2]
    method, _, (rows,) = run("splitnn", [EVERYBODY], gone_at({fallen: instant(rows, fallen, 0.4)}))
    assert method.holder == runners[3]
    handed = rows[(rows["kind"] == b"model") & (rows["node"] == b"peer")]
    assert handed["client"].tolist() == [runners[0], runners[1], runners[1]]

    part1, part2 = method.task.split(1)
    for c in runners:
        jobs = served(rows)[served(rows)["client"] == c]
        copy = part1.snapshot()
        part2.weights.forget()
        replayed(method.task, {c: copy}, part2, jobs, round=1)
        part1 = part1 if c == fallen else copy
    assert 0 < (served(rows)["client"] == fallen).sum() < method.data.n_batches(fallen)
    assert torch.equal(method.part1.weights.flat, part1.weights.flat)
    assert torch.equal(method.part2.weights.flat, part2.weights.flat)


def test_the_relay_waits_for_whoever_holds_the_model():
    """The last runner goes away while it hands the model on in the next round: nobody else has it, until it is back."""
    first, _, (rows,) = run("splitnn", [EVERYBODY], device=None)
    leaves_s = rows["ended_s"].max() + 0.01
    others = [c for c in EVERYBODY if c != first.holder]
    _, simulator, (_, rows) = run("splitnn", [EVERYBODY, others], gone_at({first.holder: leaves_s}, 500), device=None)
    assert [loss.client for loss in simulator.records.take_dropouts()] == [first.holder]
    broken, whole, _ = rows[rows["node"] == b"peer"]
    assert broken["bytes"] < whole["bytes"] == first.part1.size_bytes
    assert whole["requested_s"] == pytest.approx(leaves_s + 500, abs=0.01)


def test_a_branch_whose_client_is_lost_is_what_it_was():
    """Both parts and its history, so that they fit together; it has been trained in the first round."""
    options = {"alpha": 0.0, "assistants": "all", "proportion": "fixed", "p0": 0.5}  # without a pull to the average
    _, _, (_, undisturbed) = run("korea", [EVERYBODY] * 2, options=options, device=None)
    before, *_ = run("korea", [EVERYBODY], options=options)
    after, *_ = run("korea", [EVERYBODY] * 2, gone_at({3: instant(undisturbed, 3, 0.5)}), options)
    same = [
        torch.equal(now.part1.weights.flat, then.part1.weights.flat)
        and torch.equal(now.part2.weights.flat, then.part2.weights.flat)
        and (now.history.sv == then.history.sv).all()
        for now, then in zip(after.branches, before.branches, strict=True)
    ]
    assert sum(same) == 1


def test_there_are_as_many_branches_as_clients_have_ever_come():
    """One more begins as the global model; of more branches than clients, some have a rest."""
    options = {"alpha": 0.0, "proportion": "off"}
    grown, *_ = run("korea", [[0, 1], [0, 1, 2]], options=options)
    assert len(grown.branches) == 3
    rested, *_ = run("korea", [[0, 1], [0, 1, 2], [3]], options=options)
    same = [
        now.part1 is then.part1 or torch.equal(now.part1.weights.flat, then.part1.weights.flat)
        for now, then in zip(rested.branches, grown.branches, strict=True)
    ]
    assert sorted(same) == [False, True, True]
