"""Hardware that trains: the device, the number of threads and the allocator."""

from __future__ import annotations

import ctypes
import platform

import torch

from sfl_sim.errors import ScenarioError

SMALL_BATCH_MACS = 20e6
"""Forward MACs of a mini-batch below which a second thread costs more than it gains.

A second thread makes lenet5 at batch 64 (27 M) 1.4 to 1.7 times as fast. On cnn_small and 8x8 digits at batch 16 (10 M)
it gains nothing, and on a busy machine its spinning makes a step eight times as slow. One thread also gives the same
bits on any number of cores.
"""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_NEVER_BYTES = 2**31 - 1


def pick_device(name: str) -> torch.device:
    """Return the device of this name; `auto` is the first GPU if there is one, else the CPU.

    Raises:
        ScenarioError: there is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        number = torch.zeros(1, device=name)
        number.item()  # `meta` has none
        return number.device
    except (RuntimeError, AssertionError) as error:
        reason = "there is no such device"
        if name.startswith("cuda"):  # torch says what is missing; for other names it lists all types of devices
            reason = f"cannot be used: {str(error).splitlines()[0]}"
        raise ScenarioError(reason, key="--device", found=name, allowed="auto, cpu, cuda") from error


def threads_for(batch_macs: float, available: int) -> int:
    """Return the number of intra-op threads for steps of `batch_macs` forward MACs, up to `available`."""
    return 1 if batch_macs < SMALL_BATCH_MACS else available


def keep_freed_memory() -> bool:
    """Stop glibc from returning large blocks to the kernel after every step; returns True if that is possible.

    Steps of mobilenet_v1 get 1.25 to 1.34 times as fast, of resnet18 1.02 to 1.07 times, with the same bits and about
    the same peak memory. Other C libraries are left as they are.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return all(libc.mallopt(option, _NEVER_BYTES) == 1 for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD))
