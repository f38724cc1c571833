import importlib
import sys

import pytest
from command import TINY

MY_NETS = """\
from torch import nn

def make(input_shape, n_labels):
    channels, height, width = input_shape
    features = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 12), nn.ReLU())
    return nn.Sequential(features, nn.Linear(12, 8), nn.Linear(8, n_labels))

ready = make((1, 8, 8), 10)
"""


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture
def my_nets(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(MY_NETS)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("my_nets")
    sys.modules.pop("my_nets")
