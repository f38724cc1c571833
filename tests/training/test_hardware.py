"""Devices by name, and an allocator that keeps freed memory."""

import platform
import resource

import pytest
import torch

from sfl_sim.errors import ScenarioError
from sfl_sim.training.hardware import keep_freed_memory, pick_device


def test_auto_is_a_gpu_if_there_is_one():
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "CPU", "cpu:x", "meta"])
def test_an_unknown_device_is_one_short_line(name):
    with pytest.raises(ScenarioError) as error:
        pick_device(name)
    expected = f"--device: there is no such device (found '{name}'; allowed: auto, cpu, cuda)"
    assert str(error.value) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_missing_says_what_is_missing():
    with pytest.raises(ScenarioError, match=r"^--device: cannot be used: \S.*found 'cuda'; allowed: auto, cpu, cuda"):
        pick_device("cuda")


def page_faults_of_large_blocks():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(2**24)  # 64 MiB, above every threshold that glibc would choose itself: touched and freed
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_freed_blocks_are_used_again_without_page_faults():
    assert keep_freed_memory()
    for _ in range(4):  # the heap grows until a block of this size has its place
        page_faults_of_large_blocks()
    assert page_faults_of_large_blocks() < 1_000  # by default 82,000: every block is mapped anew
