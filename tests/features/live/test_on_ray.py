"""Where a Ray cluster places the agents of clients; the cluster is made up."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.features.live import on_ray
from sfl_sim.features.live.links import RunKey
from sfl_sim.features.live.on_ray import agents_on_ray


class Cluster:
    """Takes the place of Ray: remembers which agents it was asked for."""

    def __init__(self, resources):
        self.resources, self.options, self.served, self.killed, self.ended = resources, [], [], [], []
        self.exceptions = SimpleNamespace(RayError=RuntimeError)

    def cluster_resources(self):
        return self.resources

    def remote(self, max_restarts):
        assert max_restarts == 0

        def start(options):
            self.options.append(options)
            return SimpleNamespace(serve=SimpleNamespace(remote=self.serve))

        return lambda kind: SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda: start(options)))

    def serve(self, *about):
        self.served.append(about)
        return len(self.served)

    def wait(self, tasks, timeout):
        assert timeout == 0
        return [task for task in tasks if task in self.ended], []

    def get(self, tasks):
        if tasks:
            raise RuntimeError("the board has no memory left")

    def kill(self, actor):
        self.killed.append(actor)


@pytest.fixture
def cluster(monkeypatch):
    """Makes a cluster with these resources."""

    @contextmanager
    def connected(ray, address):
        yield

    def make(**resources):
        found = Cluster(resources)
        monkeypatch.setattr(on_ray, "find_ray", lambda: found)
        monkeypatch.setattr(on_ray, "connected", connected)
        return found

    return make


def test_a_client_runs_where_the_cluster_has_its_board(cluster):
    found = cluster(sfl_client_0=1, sfl_client_1=1, CPU=8)
    key = RunKey.new()
    with agents_on_ray("auto", 2, "tcp://10.0.0.1:5", key):
        assert found.options == [{"resources": {"sfl_client_0": 1}}, {"resources": {"sfl_client_1": 1}}]
        assert [about[:3] for about in found.served] == [(n, "tcp://10.0.0.1:5", key.secret) for n in (0, 1)]
        assert not found.killed
    assert len(found.killed) == 2


def test_without_boards_of_their_own_clients_run_anywhere(cluster):
    found = cluster(CPU=8)
    with agents_on_ray("auto", 3, "tcp://10.0.0.1:5", RunKey.new()):
        assert found.options == [{"num_cpus": 0}] * 3


def test_a_client_without_a_board_is_refused_if_others_have_one(cluster):
    cluster(sfl_client_0=1, sfl_client_2=1)
    with pytest.raises(ScenarioError) as raised, agents_on_ray("auto", 3, "tcp://10.0.0.1:5", RunKey.new()):
        pass
    assert (raised.value.key, raised.value.found) == ("--ray", "sfl_client_1")


def test_an_agent_that_has_ended_says_why(cluster):
    found = cluster(CPU=8)
    with agents_on_ray("auto", 2, "tcp://10.0.0.1:5", RunKey.new()) as why_gone:
        assert why_gone() is None
        found.ended.append(2)
        assert why_gone() == "RuntimeError: the board has no memory left"


def test_agents_end_with_a_run_that_fails(cluster):
    found = cluster(CPU=8)
    with pytest.raises(ZeroDivisionError), agents_on_ray("auto", 2, "tcp://10.0.0.1:5", RunKey.new()):
        raise ZeroDivisionError
    assert len(found.killed) == 2
