"""Devices by name."""

import pytest
import torch

from sfl_sim.errors import ScenarioError
from sfl_sim.training.device import pick_device


def test_auto_is_a_gpu_if_there_is_one():
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "CPU", "cpu:x"])
def test_an_unknown_device_is_one_short_line(name):
    with pytest.raises(ScenarioError) as error:
        pick_device(name)
    expected = f"--device: there is no such device (found '{name}'; allowed: auto, cpu, cuda)"
    assert str(error.value) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_missing_says_what_is_missing():
    with pytest.raises(ScenarioError, match=r"^--device: cannot be used: \S.*found 'cuda'; allowed: auto, cpu, cuda"):
        pick_device("cuda")
