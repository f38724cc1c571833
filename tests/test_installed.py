"""Installed packages bring methods, orders, codecs, models and data sets, which scenarios name as those of sfl-sim."""

import sys

import pytest

import sfl_sim
from sfl_sim import installed
from sfl_sim.build.catalogue import catalogue, choices
from sfl_sim.errors import ScenarioError
from sfl_sim.runs.cache_key import own_code
from sfl_sim.scenario.load import parse

CODE = '''
import numpy as np
from torch import nn
from sfl_sim.methods.splitfed_v2 import SplitFedV2
from sfl_sim.sim.orders import fcfs
from sfl_sim.training.codecs import Fp16

class Mine(SplitFedV2):
    """SplitFedV2 under another name."""

class Half(Fp16):
    """Fp16 under another name."""

def first(roster):
    return fcfs(roster)

def net(input_shape, n_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), 6), nn.Linear(6, n_labels))

def blobs():
    rng = np.random.default_rng(0)
    return rng.random((60, 1, 4, 4)), np.arange(60) % 3, rng.random((9, 1, 4, 4)), np.arange(9) % 3

'''
POINTS = """
[sfl_sim.methods]
mine = brought:Mine
hydra = brought:Mine
gone = brought:Gone
[sfl_sim.orders]
my_order = brought:first
[sfl_sim.codecs]
half = brought:Half
[sfl_sim.models]
my_net = brought:net
[sfl_sim.datasets]
blobs = brought:blobs
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `brought` with entry points, as pip leaves it."""
    (tmp_path / "brought.py").write_text(CODE)
    about = tmp_path / "brought-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.installed.cache_clear()
    yield
    sys.modules.pop("brought", None)
    installed.installed.cache_clear()


def scenario(**sections):
    return {
        "data": {"name": "blobs"}, "model": {"name": "my_net", "cut": 2}, "clients": {"count": 3},
        "method": "mine", "server": {"order": "my_order"}, "wire": {"up": "half"},
        "train": {"rounds": 1, "batch_size": 8}, **sections,
    }  # fmt: skip


def test_a_run_uses_them_without_a_permission(package, tmp_path):
    run = sfl_sim.run(scenario(), out=tmp_path / "run")
    usual = scenario(method="splitfed_v2", server={"order": "fcfs"}, wire={"up": "fp16"})
    same = sfl_sim.run(usual, out=tmp_path / "usual")
    assert run.summary["weights_digest"].tolist() == same.summary["weights_digest"].tolist()
    assert run.summary["method"].tolist() == ["mine"]


def test_a_run_goes_on_only_with_the_code_that_it_began_with(package):
    (variant,) = parse(scenario()).variants
    assert own_code(variant.scenario).keys() == {"brought.py"}


def test_they_are_listed_and_what_comes_with_sfl_sim_keeps_its_name(package):
    methods = catalogue()["methods"]
    assert methods["mine"] == "from brought:Mine"
    assert methods["hydra"] != "from brought:Mine"
    assert {"mine", "hydra"} <= set(choices()["method.name"])
    assert len(choices()["method.name"]) == len(set(choices()["method.name"]))


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"method": "mime"}, "did you mean 'mine'"),
        ({"model": {"name": "my_nat"}}, "did you mean 'my_net'"),
        ({"data": {"name": "blob"}}, "did you mean 'blobs'"),
        ({"server": {"order": "my_odrer"}}, "did you mean 'my_order'"),
        ({"wire": {"up": "halb"}}, "did you mean 'half'"),
        ({"method": "gone"}, "cannot be imported"),
        ({"method": {"name": "mine", "l3": 1}}, "unknown key of mine"),
    ],
)
def test_what_is_wrong_is_one_line(package, tmp_path, sections, problem):
    with pytest.raises(ScenarioError, match=problem):
        sfl_sim.run(scenario(**sections), out=tmp_path / "run")
