"""The allocator settings."""

import platform
import resource

import pytest
import torch

from sfl_sim.training.allocator import keep_freed_memory


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
