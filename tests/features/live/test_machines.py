"""Methods on real processes: the same numbers to the bit, every message as large as it is priced, and lost nodes."""

import os
import signal
from dataclasses import replace

import numpy as np
import psutil
import pytest
from live_nodes import Fails, OfAnotherTime, Touch, on_nodes, small_nodes

from sfl_sim.features.live.machines import NeverSent, NodeFailed
from sfl_sim.features.live.pickles import ForeignCode
from sfl_sim.methods import METHODS
from sfl_sim.methods.split import SplitMethod
from sfl_sim.methods.wire import Wire
from sfl_sim.ops import AGGREGATOR, SERVER, on, par, send
from sfl_sim.store import places
from sfl_sim.testing import USUAL, bits, cases_of, simulate
from sfl_sim.training.codecs import Fp16, Int, SplitFC, TopK
from sfl_sim.training.defences import Noisy
from sfl_sim.training.steps import Average

IN_TURN = replace(USUAL, order="cyclic")
CASES = [case for kind in METHODS.values() for case in cases_of(kind)]
FRAMING_BYTES = 2000
"""Of the largest message: what names it, and where its tensors begin."""


@pytest.fixture(scope="module")
def nodes():
    with small_nodes(USUAL.samples) as machines:
        yield machines


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.kind.depends_on_time or case.kind.follows_order], ids=str
)
def test_nodes_train_what_the_simulator_trains(case, nodes):
    simulated = IN_TURN.run(case)
    run, steps, found = on_nodes(case.method(IN_TURN.work()), nodes, IN_TURN)
    assert found == bits(simulated.method)
    assert len(run.rows) == len(simulated.rows) == len(steps)
    assert run.rows["bytes"].sum() == simulated.rows["bytes"].sum()


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.kind.depends_on_time and not case.kind.follows_order], ids=str
)
def test_methods_that_look_at_the_clock_come_to_an_end(case, nodes):
    run, _, _ = on_nodes(case.method(USUAL.work()), nodes, USUAL)
    assert len(run.rows)


def test_in_the_recorded_sequence_the_simulator_trains_what_nodes_have_trained(nodes):
    (case,) = cases_of(METHODS["splitfed_v2"])[:1]
    run, _, found = on_nodes(case.method(USUAL.work()), nodes, USUAL)
    jobs = run.rows[(run.rows["node"] == b"server") & (run.rows["kind"] == b"train")]
    jobs = jobs[jobs["started_s"].argsort()]
    turns = {number: jobs["client"][jobs["round"] == number].tolist() for number in (1, 2)}
    method = case.method(USUAL.work())
    simulate(method, USUAL.rounds, "recorded", USUAL.fleet, workers=1, recorded=turns)
    assert bits(method) == found


WIRES = {
    "integers": {"up": Int(), "down": Int(bits=4), "update": Int()},
    "largest": {"up": TopK(keep=0.25), "down": Fp16(), "update": TopK(keep=0.1)},
    "columns": {"up": SplitFC(ratio=2), "down": Int(per="channel")},
    "noise": {"up": Noisy(clip=1.0, sigma=0.1, inner=Int(per="channel", rounding="stochastic"))},
    "errors": {"update": TopK(keep=0.1), "error_feedback": True},
}


@pytest.mark.parametrize("name", ["splitfed_v1", "splitfed_v2", "mergesfl", "korea"])
@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_codecs_pack_and_unpack_to_the_same_bits(wire, name, nodes):
    case = cases_of(METHODS[name])[0]
    simulated = IN_TURN.run(case, wire=Wire(**wire))
    _, steps, found = on_nodes(case.method(IN_TURN.work(wire=Wire(**wire))), nodes, IN_TURN)
    assert found == bits(simulated.method)
    messages = [step for step in steps if step["node"] in places.LINKS]
    assert all(0 < step["moved_bytes"] - step["size_bytes"] < FRAMING_BYTES for step in messages)


class Careless(SplitMethod):
    """Averages at the aggregator what clients have never sent."""

    def round(self, round, clients):
        copies = yield par([self.copy(c) for c in clients])
        yield on(AGGREGATOR, Average(), self.part1, copies, self.task.shares(clients))

    def copy(self, c):
        copy = yield send(self.part1, AGGREGATOR, c)
        yield on(c, Touch(), copy)
        return copy


class Broken(Careless):
    """Runs a step that fails."""

    def copy(self, c):
        yield on(SERVER, Fails(), self.part2)


def test_a_value_is_nowhere_but_where_it_was_sent():
    never = r"is at 0, and is used at server, to which it has never been sent"
    with small_nodes(USUAL.samples) as nodes, pytest.raises(NeverSent, match=never):
        on_nodes(Careless(USUAL.work()), nodes, USUAL, rounds=1)


def test_the_error_of_a_step_is_that_of_its_node():
    with small_nodes(USUAL.samples) as nodes, pytest.raises(NodeFailed, match=r"node server: ZeroDivision") as raised:
        on_nodes(Broken(USUAL.work()), nodes, USUAL, rounds=1)
    assert "in run" in raised.value.__notes__[0]


@pytest.mark.parametrize("name", ["splitfed_v2", "splitfed_v1", "fedavg", "hydra"])
def test_a_node_that_goes_away_is_a_lost_client(name):
    case = cases_of(METHODS[name])[0]
    with small_nodes(USUAL.samples) as machines:
        method, begun = case.method(USUAL.work()), machines.run

        def run_and_kill(op, *more):
            begun(op, *more)
            if op.node == 1 and 1 not in machines.lost and victims:
                os.kill(victims.pop(), signal.SIGKILL)

        zygote = max(psutil.Process().children(), key=lambda child: child.create_time())
        victims = [sorted(zygote.children(), key=lambda child: child.pid)[2].pid]  # after the server and client 0
        machines.run = run_and_kill
        run, _, _ = on_nodes(method, machines, USUAL)
        assert machines.lost == {1}
        assert {dropout.client for dropout in run.clock.records.dropouts} == {1}
        trained = run.rows[(run.rows["round"] == 2) & (run.rows["macs"] > 0)]["client"]
        assert 0 in trained
        assert 2 in trained


def test_clocks_that_differ_are_compared():
    case = cases_of(METHODS["splitfed_v1"])[0]
    with small_nodes(USUAL.samples, OfAnotherTime) as machines:
        run, steps, _ = on_nodes(case.method(USUAL.work()), machines, USUAL)
        offsets = machines.offsets.values()
    assert {round(offset.s, -2) for offset in offsets} <= {1000, 1100, 1200, 1300}
    assert all(offset.bound_s < 0.1 for offset in offsets)
    bound_s = max(offset.bound_s for offset in offsets)
    assert all(-2 * bound_s < step["lasts_s"] < 10 for step in steps)
    assert np.ptp(run.rows["ended_s"]) < 60


def test_no_process_is_left():
    with small_nodes((4, 4)):
        zygote = max(psutil.Process().children(), key=lambda child: child.create_time())
        processes = [zygote, *zygote.children()]
        assert len(processes) == 4
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def test_foreign_code_needs_permission():
    from sfl_sim.features.live.pickles import read, written

    message = written(Touch())
    with pytest.raises(ForeignCode, match=r"--allow-code"):
        read(message)
    assert isinstance(read(message, allow_code=True), Touch)
    with pytest.raises(ForeignCode, match=r"builtins.eval"):
        read(b"cbuiltins\neval\n.")
