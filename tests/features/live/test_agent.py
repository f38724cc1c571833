"""A node, in a thread of this process, and what it answers to a driver that sends one order after another."""

import pytest
import torch
import zmq
from live_nodes import Fails, SmallImages, Touch, one_agent

from sfl_sim.features.live import agent
from sfl_sim.features.live.agent import Pace, now_s
from sfl_sim.features.live.links import RunKey, address_of
from sfl_sim.features.live.pickles import read, written
from sfl_sim.ops import SERVER, On, Value
from sfl_sim.runs.cache_key import code_version

PATIENCE_MS = 10_000
"""How long a report may take, on a machine that is busy."""


class Double(Touch):
    """Counts its calls in what it is given."""

    name = "double"

    def run(self, state, value):
        return 2 * value.load()


class Driver:
    """One end of the connection: sends orders, and takes reports."""

    def __init__(self):
        self.key, self.context, self.names = RunKey.new(), zmq.Context(), {}
        self.guard = self.key.guard(self.context)
        self.socket = self.key.server(self.context.socket(zmq.ROUTER))
        self.address = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.server = self.key.server(self.context.socket(zmq.ROUTER))  # which clients send to
        self.at = f"tcp://127.0.0.1:{self.server.bind_to_random_port('tcp://127.0.0.1')}"

    def order(self, node, what, *about):
        self.socket.send_multipart([self.names[address_of(node).decode()], written((what, *about))])

    def take(self, what):
        """The next report, of this kind: who sends it, and what it is about."""
        assert self.socket.poll(PATIENCE_MS), "no report"
        name, message = self.socket.recv_multipart()
        kind, *about = read(message, allow_code=True)
        assert kind == what, about
        node = name.split()[0].decode()
        self.names[node] = name
        return node, about

    def end(self):
        self.guard.stop()
        self.context.destroy(linger=0)


@pytest.fixture
def driver():
    driver = Driver()
    yield driver
    driver.end()


@pytest.fixture
def node(driver):
    """Client 0, ready to run."""
    started, thread, errors = one_agent(0, driver.address, driver.key)
    driver.take("hello")
    begin(driver, 0)
    yield started
    driver.order(0, "end", "")
    thread.join(10)
    assert not thread.is_alive()
    assert not errors


def begin(driver, node, samples=8):
    driver.order(node, "begin", {"own": SmallImages(samples), "threads": 1, "server": driver.at})
    return driver.take("ready")[1][0]


def put(driver, key, thing):
    driver.order(0, "put", [key], written(thing))


def named(key):
    """A thing by its name in messages to a node."""
    thing = object()
    return written(thing, lambda obj: ("thing", key) if obj is thing else None)


def ran(driver, job, step, *args, key=9):
    """What a node reports of a step."""
    driver.order(0, "run", job, "device", written((On(0, step, *args), Value("result"))), key)
    _, (number, measured) = driver.take("done")
    assert number == job
    return measured


def test_a_client_says_hello_and_the_server_where_it_listens(driver):
    threads = [one_agent(node, driver.address, driver.key)[1] for node in (3, SERVER)]
    hellos = dict(driver.take("hello") for _ in threads)
    assert hellos["3"][1:] == [code_version(), 0]
    assert hellos["server"][2] > 0
    for node in (3, SERVER):
        driver.order(node, "end", "")
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_it_makes_its_own_samples_of_what_the_driver_says(driver, node):
    few, many = begin(driver, 0, 8), begin(driver, 0, 9)
    assert begin(driver, 0, 8) == few != many
    assert len(node.own[agent.IMAGES].x) == 8


def test_it_tells_the_time(driver, node):
    before_s = now_s()
    driver.order(0, "ping", before_s)
    _, (sent_s, there_s) = driver.take("pong")
    assert sent_s == before_s <= there_s <= now_s()


def test_a_step_takes_what_is_there_and_its_result_stays(driver, node):
    put(driver, 1, Value("number", content=torch.tensor(21.0)))
    measured = ran(driver, 7, Double(), None, Value("number", content=torch.tensor(4.0)))
    assert measured.began_s <= measured.ended_s
    assert measured.wall_s >= 0
    assert float(node.things[9].content) == 8
    driver.order(0, "fetch", 8, named(9), "number")
    _, (job, data) = driver.take("fetched")
    assert (job, read(data)) == (8, 8.0)


def test_what_no_flow_holds_any_more_is_dropped(driver, node):
    put(driver, 1, Value("number"))
    driver.order(0, "drop", [1, 2])  # of which it never had the second
    driver.order(0, "ping", 0.0)
    driver.take("pong")
    assert 1 not in node.things


def test_a_slow_device_takes_as_long_as_it_shall(driver, node):
    driver.order(0, "pace", Pace(30.0, {}))
    value = Value("number", content=torch.zeros(1000))
    measured = ran(driver, 1, Double(), None, value)
    lasts_s = measured.ended_s - measured.began_s
    assert lasts_s >= 30 * measured.cpu_s > 0
    assert measured.wall_s <= lasts_s


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        (("run", 1, "device", written((On(0, Fails(), None), Value("result"))), 9), "ZeroDivisionError: by nought"),
        (("fetch", 1, named(77), "number"), "KeyError: 77"),
        (("jump",), "AttributeError"),
    ],
)
def test_what_it_cannot_do_it_reports_with_its_traceback(order, problem, driver, node):
    driver.order(0, *order)
    name, (told, trace) = driver.take("failed")
    assert name == "0"
    assert told.startswith(problem)
    assert "Traceback" in trace


def test_without_permission_it_runs_no_code_but_the_simulator_s(driver):
    _, thread, _ = one_agent(0, driver.address, driver.key, allow_code=False)
    driver.take("hello")
    driver.order(0, "begin", {"own": SmallImages(8), "threads": 1, "server": driver.at})
    _, (told, _) = driver.take("failed")
    assert told.startswith("ForeignCode")
    assert "live_nodes.SmallImages" in told
    driver.end()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("order", [("end", "interrupted"), None], ids=["its driver says so", "its driver is gone"])
def test_it_tells_a_run_that_ends_early_from_one_that_is_over(order, driver):
    _, thread, errors = one_agent(0, driver.address, driver.key)
    driver.take("hello")
    if order:
        driver.order(0, *order)
    else:
        driver.end()
    thread.join(10)
    (error,) = errors
    assert isinstance(error, agent.EndedEarly)
    assert ("interrupted" in str(error)) == bool(order)


@pytest.mark.parametrize(("there", "problem"), [(False, "nobody"), (True, "key")])
def test_it_says_why_no_driver_answers(there, problem, driver, monkeypatch):
    monkeypatch.setattr(agent, "ANSWERS_S", 0.15)
    address = driver.address if there else "tcp://127.0.0.1:9"
    _, thread, errors = one_agent(0, address, RunKey.new())
    thread.join(10)
    (error,) = errors
    assert error.key == "--server"
    assert error.found == address.removeprefix("tcp://")
    assert problem in error.problem


def test_a_message_goes_to_the_server_in_the_time_of_its_link(driver, node):
    assert driver.server.recv_multipart()[:2] == [b"0", b"server"]  # by which the server knows the way back
    driver.order(0, "pace", Pace(1.0, {b"1": (1e7, 0.01)}))
    put(driver, 1, value := Value("number", content=torch.arange(1000.0)))
    driver.order(0, "send", 4, b"1", named(1), [2], written(value.envelope()))
    sender, receiver, head, envelope, packed = driver.server.recv_multipart()
    assert (sender, receiver) == (b"0", b"1")
    job, whose, began_s, due_s, keys = read(head)
    assert (job, whose, keys) == (4, 0, [2])
    size = len(envelope) + len(packed)
    assert due_s - began_s == pytest.approx(8 * size / 1e7 + 0.01)
    assert now_s() - began_s >= 8 * size / 1e7
    assert torch.equal(read(packed), value.content)
    assert node.things.keys() >= {1, 2}  # a gradient at what was sent may come back


def arrive(driver, job, keys, value, due_s=0.0):
    """Let a message of client 1 come through the server."""
    driver.server.recv_multipart()
    head = written((job, 1, now_s(), due_s, keys))
    driver.server.send_multipart([b"0", b"0", head, written(value.envelope()), written(value.packed())])


def test_a_message_is_there_when_it_is_due(driver, node):
    value = Value("number", content=torch.tensor(5.0))
    due_s = now_s() + 0.05
    arrive(driver, 3, [6], value, due_s)
    _, (job, measured) = driver.take("done")
    assert job == 3
    assert measured.sender == 1
    assert measured.ended_s >= due_s
    assert measured.moved_bytes > len(written(value.packed()))
    assert float(node.things[6].content) == 5


def test_a_message_that_overtakes_what_it_needs_waits_for_it(driver, node):
    thing = object()
    packed = written(thing, lambda obj: ("thing", 40) if obj is thing else None)
    driver.server.recv_multipart()
    envelope = written(Value("number"))
    driver.server.send_multipart([b"0", b"0", written((3, 1, now_s(), 0.0, [6])), envelope, packed])
    driver.order(0, "ping", 0.0)
    driver.take("pong")
    assert 6 not in node.things
    put(driver, 40, torch.tensor(5.0))
    _, (job, _) = driver.take("done")
    assert job == 3
    assert float(node.things[6].content) == 5


def test_what_never_comes_is_an_error(driver, node, monkeypatch):
    monkeypatch.setattr(agent, "OVERTAKES_S", 0.02)
    thing = object()
    packed = written(thing, lambda obj: ("thing", 40) if obj is thing else None)
    driver.server.recv_multipart()
    driver.server.send_multipart([b"0", b"0", written((3, 1, now_s(), 0.0, [6])), written(Value("number")), packed])
    _, (told, _) = driver.take("failed")
    assert told == "KeyError: 40"


def test_a_copy_for_oneself_is_another_thing(driver, node):
    put(driver, 1, Value("number", content=torch.tensor(5.0)))
    driver.order(0, "copy", 2, named(1), [3])
    assert driver.take("done")[1][0] == 2
    assert float(node.things[3].content) == 5
