"""Processes of nodes on this machine that do not come, or do not end."""

import psutil
import pytest
from live_nodes import FailingRecipe, LazyRecipe, TalkingRecipe

from sfl_sim.features.live import local
from sfl_sim.features.live.links import RunKey
from sfl_sim.features.live.local import LocalNodes


def started(recipe):
    return LocalNodes([0], "tcp://127.0.0.1:9", RunKey.new(), recipe, "tcp://127.0.0.1")


@pytest.mark.parametrize("recipe", [FailingRecipe(), TalkingRecipe()])
def test_processes_that_have_ended_say_why(recipe):
    nodes = started(recipe)
    nodes._process.wait(60)
    assert nodes.why_gone().endswith("ZeroDivisionError: by nought")
    nodes.end()


def test_processes_that_listen_to_nobody_are_killed(monkeypatch):
    monkeypatch.setattr(local, "ENDS_WITHIN_S", 0.0)
    nodes = started(LazyRecipe())
    process = psutil.Process(nodes._process.pid)
    assert nodes.why_gone() is None
    nodes.end()
    with pytest.raises(psutil.NoSuchProcess):
        process.status()
