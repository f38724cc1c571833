"""Methods on real processes: the same numbers to the bit, every message as large as it is priced, and lost nodes."""

import os
import signal
from collections import deque
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import psutil
import pytest
from live_nodes import Fails, OfAnotherTime, SmallImages, Touch, on_nodes, one_agent, small_nodes, thread_nodes, until

from sfl_sim.errors import ScenarioError
from sfl_sim.features.live import agent
from sfl_sim.features.live.links import RunKey, address_of
from sfl_sim.features.live.machines import Machines, NeverSent, NodeFailed
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


def gone(agent):
    """Let an agent go away."""
    agent._loop.call_soon_threadsafe(agent._ended.set)


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
    with thread_nodes(3, sum(USUAL.samples)) as (nodes, _), pytest.raises(NeverSent, match=r"at 0, .* at server"):
        on_nodes(Careless(USUAL.work()), nodes, USUAL, rounds=1)


def test_the_error_of_a_step_is_that_of_its_node():
    samples = sum(USUAL.samples)
    with thread_nodes(3, samples) as (nodes, _), pytest.raises(NodeFailed, match="server: ZeroDivision") as raised:
        on_nodes(Broken(USUAL.work()), nodes, USUAL, rounds=1)
    assert "in run" in raised.value.__notes__[0]


@contextmanager
def killed_processes():
    """Nodes as processes, and what kills client 1."""
    with small_nodes(USUAL.samples) as machines:
        zygote = max(psutil.Process().children(), key=lambda child: child.create_time())
        victim = sorted(zygote.children(), key=lambda child: child.pid)[2].pid  # after the server and client 0
        yield machines, lambda: os.kill(victim, signal.SIGKILL)


@contextmanager
def ended_threads():
    """Nodes as threads, and what ends client 1."""
    with thread_nodes(3, sum(USUAL.samples)) as (machines, agents):
        yield machines, lambda: gone(agents[1])


@pytest.mark.parametrize(
    ("name", "nodes_of"),
    [("splitfed_v2", killed_processes), *((name, ended_threads) for name in ("splitfed_v1", "fedavg", "hydra"))],
)
def test_a_node_that_goes_away_is_a_lost_client(name, nodes_of):
    case = cases_of(METHODS[name])[0]
    with nodes_of() as (machines, end):
        begun, ends = machines.run, [end]

        def run_and_end(op, *more):
            begun(op, *more)
            if op.node == 1 and ends:
                ends.pop()()

        machines.run = run_and_end
        run, _, _ = on_nodes(case.method(USUAL.work()), machines, USUAL)
        assert machines.lost == {1}
        assert {dropout.client for dropout in run.clock.records.dropouts} == {1}
        trained = run.rows[(run.rows["round"] == 2) & (run.rows["macs"] > 0)]["client"]
        assert {0, 2} <= set(trained)


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


# Who is there, with nodes in threads of this process


@pytest.fixture
def driver():
    """A driver that waits for two clients, and its address."""
    machines = Machines(RunKey.new(), 2)
    yield machines, machines.listen("tcp://127.0.0.1")
    machines.close()


def test_a_driver_says_who_has_not_come(driver):
    machines, address = driver
    one_agent(1, address, machines.key)
    until(machines, lambda: machines.there == [1])
    with pytest.raises(ScenarioError, match=r"^nodes: 2 of 3 nodes .*: server, 0; nobody comes"):
        machines.gather(60, lambda: "nobody comes")
    with pytest.raises(ScenarioError, match=r"server, 0$"):
        machines.gather(0)


def refused(machines, number, address):
    """The error with which an agent ends that shows this number."""
    _, thread, errors = one_agent(number, address, machines.key)
    until(machines, lambda: errors)
    thread.join(10)
    assert errors[0].key == "--client"
    assert errors[0].found == number
    return errors[0]


def test_an_agent_whose_number_is_taken_is_refused_while_the_first_one_lives(driver):
    machines, address = driver
    first, thread, _ = one_agent(1, address, machines.key)
    until(machines, lambda: machines.there)
    refused(machines, 1, address)
    assert machines.there == [1]
    assert thread.is_alive()
    gone(first)
    until(machines, lambda: not machines.there)


def test_an_agent_may_be_started_again_as_long_as_others_are_waited_for(driver):
    machines, address = driver
    first, thread, _ = one_agent(1, address, machines.key)
    until(machines, lambda: machines.there)
    gone(first)
    thread.join(10)
    until(machines, lambda: not machines.there)
    assert machines.lost == {1}
    one_agent(1, address, machines.key)
    until(machines, lambda: machines.there)
    assert machines.lost == set()


@pytest.mark.parametrize("number", [2, 99, -1])
def test_an_agent_with_a_number_that_no_client_has_ends_alone(number, driver):
    machines, address = driver
    machines.tell = (told := []).append
    one_agent(1, address, machines.key)
    until(machines, lambda: machines.there)
    assert refused(machines, number, address).allowed == "0 to 1"
    assert machines.there == [1]
    assert len(told) == 1
    assert str(number) in told[0]


def test_an_agent_of_another_release_is_refused_and_one_of_other_code_is_noted(driver, monkeypatch):
    machines, address = driver
    monkeypatch.setattr(agent, "code_version", lambda: "other code")
    one_agent(0, address, machines.key)
    until(machines, lambda: machines.there)
    assert machines.differ == [0]
    monkeypatch.setattr(agent, "version", lambda package: "0.0.1")
    assert "0.0.1" in refused(machines, 1, address).problem


def test_an_agent_with_another_key_is_not_there(driver):
    machines, address = driver
    one_agent(0, address, RunKey.new())
    with pytest.raises(ScenarioError, match="3 of 3"):
        machines.gather(0.1)


def test_a_late_agent_is_refused_and_disturbs_nobody():
    with thread_nodes(2) as (machines, agents):
        address = machines._socket.last_endpoint.decode()
        for number in (1, 7):
            refused(machines, number, address)
        machines.compare_clocks()
        assert machines.lost == set()
        assert agents[1].own.keys() == {agent.IMAGES}


def test_nodes_with_other_samples_than_the_server_are_refused():
    with thread_nodes(2, samples=0) as (machines, agents):
        agents[1].make_own = lambda _: agent.own_of(SmallImages(7))
        with pytest.raises(ScenarioError) as raised:
            machines.begin(SmallImages(8))
    assert raised.value.key == "data"
    assert "node 1 " in raised.value.problem


def test_a_client_that_goes_away_while_it_gets_ready_ends_the_run():
    with thread_nodes(2, samples=0) as (machines, agents):
        agents[1].make_own = lambda _: gone(agents[1])
        with pytest.raises(ScenarioError, match="node 1") as raised:
            machines.begin(SmallImages(8))
    assert raised.value.key == "nodes"


def test_clocks_of_one_machine_are_equal_within_the_bound():
    with thread_nodes(2) as (machines, _):
        assert machines.offsets.keys() == set(machines.nodes)
        assert all(abs(offset.s) <= offset.bound_s < 1 for offset in machines.offsets.values())


def test_a_lost_client_is_told_once_and_gets_no_more_orders():
    with thread_nodes(2) as (machines, agents):
        machines.on_lost, machines.tell = (lost := []).append, (told := []).append
        gone(agents[0])
        until(machines, lambda: lost)
        machines.order(0, "ping", 0.0)
        machines.compare_clocks()
        assert lost == [0]
        assert told == ["client 0 has gone away"]
        assert machines.there == [SERVER, 1]
        assert machines.offsets[0].bound_s == float("inf")


def test_without_its_server_a_run_fails():
    with thread_nodes(1) as (machines, agents):
        gone(agents[SERVER])
        with pytest.raises(NodeFailed, match="server"):
            until(machines, lambda: False)


def test_without_its_server_a_run_tells_its_clients_why_it_ends():
    with thread_nodes(2) as (machines, agents):
        gone(agents[SERVER])
        with pytest.raises(NodeFailed) as raised:
            until(machines, lambda: False)
        machines.problem = str(raised.value)
    assert all(machines.problem in str(agents[client]._problem) for client in (0, 1))


def test_without_any_client_a_run_fails():
    with thread_nodes(2) as (machines, agents):
        gone(agents[0])
        until(machines, lambda: machines.lost)
        gone(agents[1])
        with pytest.raises(NodeFailed, match="all clients"):
            until(machines, lambda: False)


def test_what_no_flow_holds_any_more_leaves_the_nodes():
    case, kept = cases_of(METHODS["splitfed_v2"])[0], []
    for rounds in (1, 3):
        with thread_nodes(3, sum(USUAL.samples)) as (machines, agents):
            _, steps, _ = on_nodes(case.method(USUAL.work()), machines, USUAL, rounds)
            seen = deque(maxlen=50)

            def is_settled(agents=agents, seen=seen):
                seen.append(sum(len(node.things) for node in agents.values()))
                return seen.count(seen[0]) == seen.maxlen

            until(machines, is_settled)  # nodes hear a little later what is no longer held
            kept.append(seen[-1])
            assert kept[-1] < len(steps)
    assert kept[0] == kept[1]


def test_contents_are_at_the_driver_only_while_it_looks_at_them():
    case = cases_of(METHODS["splitfed_v2"])[0]
    with thread_nodes(3, sum(USUAL.samples)) as (machines, _):
        method = case.method(USUAL.work())
        on_nodes(method, machines, USUAL)
        assert method.part2.content is None
        with machines.at_the_driver():
            assert method.part2.content is not None
        assert method.part2.content is None


def test_an_address_that_is_taken_is_one_line(driver):
    _, address = driver
    with pytest.raises(ScenarioError) as raised:
        Machines(RunKey.new(), 1).listen(address)
    assert (raised.value.key, raised.value.found) == ("--listen", address)


def test_a_message_between_clients_is_lost_with_its_receiver():
    with thread_nodes(2) as (machines, agents):
        gone(agents[1])
        until(machines, lambda: machines.lost)
        agents[0].report("unreachable", address_of(1))  # as a node does that learns of it first
        machines.compare_clocks()
        assert machines.lost == {1}
