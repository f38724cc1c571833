"""Python objects stand in for the values of a scenario."""

import subprocess
import sys
import threading
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused
from torch import nn

from sfl_sim.build.registry import named
from sfl_sim.runs.backends import given_to_processes
from sfl_sim.scenario import own_code
from sfl_sim.scenario.given import as_yaml
from sfl_sim.scenario.load import dump, parse
from sfl_sim.scenario.own_code import permitted


def net(seed=0, width=3):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))


def text_of(model):
    return as_yaml(model, "model.factory")


def test_arrays_tensors_and_frames_are_lists():
    frame = pd.DataFrame({"uplink_bps": [1e6, 2e6], "downlink_bps": [3e6, 4e6]})
    given = parse({"clients": {"count": 2, "compute": np.array([1e9])[0], "network": frame, "power": {
        "compute_w": torch.tensor([1.0, 2.0]), "radio": "lte"}}}).base.clients  # fmt: skip
    assert given.compute.macs_per_s == 1e9
    assert given.network.uplink_bps == [1e6, 2e6]
    assert given.power.compute_w == [1.0, 2.0]


@pytest.mark.parametrize("names", [[2, 0, 1], ["2", "0", "1"]])
def test_the_index_of_a_frame_says_which_client_a_row_is_of(names):
    """As `groupby` on names of clients gives it."""
    rates = pd.DataFrame({"uplink_bps": [3e6, 1e6, 2e6], "downlink_bps": [3e7, 1e7, 2e7]}, index=names)
    in_a_column = rates.reset_index(names="client")
    for network in (rates, in_a_column, {"uplink_bps": rates["uplink_bps"], "downlink_bps": [1e7, 2e7, 3e7]}):
        given = parse({"clients": {"count": 3, "network": network}}).base.clients.network
        assert (given.uplink_bps, given.downlink_bps) == ([1e6, 2e6, 3e6], [1e7, 2e7, 3e7])


def test_an_index_that_numbers_no_clients_is_refused():
    slow = pd.Series([1e6, 2e6], index=[4, 7])
    with refused("clients.network.uplink_bps"):
        parse({"clients": {"count": 2, "network": {"uplink_bps": slow, "downlink_bps": slow}}})


def test_a_function_of_a_module_is_its_path_and_other_objects_are_kept_under_a_text():
    assert text_of(net) == f"{__name__}:net"
    model = net()
    assert named(text_of(model), {}, "model.factory") is model
    local = lambda: model  # noqa: E731
    assert named(text_of(local), {}, "model.factory") is local


def test_a_stored_scenario_holds_the_text():
    scenario = parse({"model": {"factory": net()}}).base
    assert f"factory: {scenario.model.factory}" in dump(scenario)


def test_equal_contents_have_equal_texts_and_others_have_others():
    assert text_of(net()) == text_of(net())
    assert len({text_of(model) for model in (net(), net(1), net(width=4))}) == 3
    assert text_of(lambda: net(1)) == text_of(lambda: net(1)) != text_of(lambda: net(2))

    def make(width):
        return lambda: net(width=width)

    assert text_of(make(3)) == text_of(make(3)) != text_of(make(4))


NOTEBOOK = """
import numpy as np
from abc import ABC
from functools import cached_property
WIDTH = 16
def helper(x): return recursive(x, 0)
def recursive(x, depth): return x if depth else recursive(x, 1) * WIDTH
class Mine(ABC):
    scale = 2
    _offset = 5
    def __init__(self, width=8): super().__init__()
    @staticmethod
    def half(x): return x / 2
    @property
    def double(self): return 2 * self.scale
    @cached_property
    def triple(self): return 3 * self.scale
    def __call__(self, x): return helper(self.half(x))
make = lambda x: Mine()(np.abs(x))
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("WIDTH = 16", "WIDTH = 1600"),
        ("scale = 2", "scale = 3"),
        ("_offset = 5", "_offset = 6"),
        ("width=8", "width=9"),
        ("x / 2", "x / 3"),
        ("2 * self", "4 * self"),
        ("3 * self", "4 * self"),
        ("x if depth", "-x if depth"),
        ("np.abs", "np.sign"),
        ("", ""),
    ],
)
def test_what_code_of_a_notebook_refers_to_is_part_of_its_text(before, after, monkeypatch):
    texts = []
    for source in (NOTEBOOK, NOTEBOOK.replace(before, after) if before else NOTEBOOK):
        notebook = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", notebook)
        exec(source, vars(notebook))
        texts.append((text_of(notebook.make), text_of(notebook.Mine())))
    assert (texts[0][0] == texts[1][0]) == (before == after)
    assert (texts[0][1] == texts[1][1]) == (before in ("", "np.abs"))


def test_a_text_does_not_depend_on_the_process(monkeypatch, capsys):
    code = "from torch import nn; import torch; from sfl_sim.scenario.given import as_yaml\n"
    code += "class Mine(nn.Linear):\n    def forward(self, x): return 2 * x\n"
    code += "torch.manual_seed(0)\nprint(as_yaml(nn.Sequential(Mine(2, 2)), 'model.factory'))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    here = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", here)
    exec(code, vars(here))
    assert capsys.readouterr().out == there


def test_what_is_no_content_equals_nothing():
    thing = nn.Sequential(nn.Linear(2, 2))
    thing.lock = threading.Lock()
    assert text_of(thing) != text_of(thing)


def test_in_a_grid_every_choice_may_be_an_object():
    study = parse({"grid": {"model.factory": [net(), net(1)], "clients.compute": np.array([1e9, 2e9])}})
    assert len(study.variants) == 4
    assert {variant.scenario.clients.compute.macs_per_s for variant in study.variants} == {1e9, 2e9}


def test_overrides_may_be_objects_too():
    model = net()
    study = parse({"name": "mine"}, overrides={"model.factory": model, "data.partition": [[0, 1], [2]]})
    assert named(study.base.model.factory, {}, "model.factory") is model
    assert study.base.model.name is None
    assert study.base.data.partition.kind == "indices"


def test_an_object_where_no_code_belongs_is_an_error():
    with refused("train.rounds"):
        parse({"train": {"rounds": lambda: 3}})


def test_what_another_program_has_passed_is_told_in_one_line():
    with refused("model.factory", says=r"pass it again \(from Python\)"):
        named("python:net-0123456789ab", {}, "model.factory")


def test_another_process_gets_the_objects_that_its_scenarios_name(monkeypatch):
    model = net()
    scenario = parse({"model": {"factory": model}, "data": {"factory": (np.zeros((2, 3)), [0, 1])}}).base
    sent = given_to_processes([scenario])
    assert set(sent.objects) == {scenario.model.factory, scenario.data.factory}
    monkeypatch.setattr(own_code, "_objects", {})  # as there
    with permitted(sent):
        there = named(scenario.model.factory, {}, "model.factory")
        assert set(given_to_processes([scenario]).objects) == set(sent.objects)
    assert all(map(torch.equal, there.parameters(), model.parameters()))


def test_what_cannot_be_sent_says_so_and_how_it_could():
    scenario = parse({"model": {"factory": lambda: net()}}).base
    with refused("jobs"):
        given_to_processes([scenario])


def test_what_is_made_in_a_notebook_is_not_sent(monkeypatch):
    notebook = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    exec("def make():\n    pass", vars(notebook))
    scenario = parse({"model": {"factory": notebook.make}}).base
    assert scenario.model.factory.startswith("python:make-")
    with refused("jobs"):
        given_to_processes([scenario])


@pytest.mark.parametrize("guard", [False, True])
def test_a_script_that_other_processes_would_run_again_is_told(guard, tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("if __name__ == '__main__':\n    run()" if guard else "run()")
    main = ModuleType("__main__")
    main.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    if guard:
        given_to_processes([])
    else:
        with refused("jobs", says="train.py"):
            given_to_processes([])
