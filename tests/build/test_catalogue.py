"""catalogue.json, by which `sfl-sim list` and `sfl-sim list schema` answer without the code that it describes."""

import json

import pytest

from sfl_sim.build.catalogue import FILE, check_names, described
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.scenario.load import parse


def test_it_says_what_the_code_says():
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(described())), "write it anew: python -m sfl_sim.build.catalogue"


def test_a_name_that_is_in_the_code_alone_tells_how_the_catalogue_is_written(monkeypatch):
    monkeypatch.setitem(METHODS, "fcfs", METHODS["fedavg"])
    with pytest.raises(ScenarioError, match="not yet in catalogue"):
        check_names(parse({"method": "fcfs"}))
