"""Whether steps can be compiled here."""

from __future__ import annotations

import logging
from functools import cache

import torch

from sfl_sim.errors import ScenarioError


@cache
def check_compiler(device: torch.device) -> None:
    """Compile a function once, so that a missing compiler is one line before anything is trained.

    On a CPU torch.compile needs a C++ compiler, on a GPU Triton. On two CPU cores it gains next to nothing and takes 3
    to 17 s a part (shared/PERFORMANCE.md); `sfl-sim SCENARIO --calibrate` says what it gains here.
    """
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # that there is no GPU is no news
    try:
        torch.compile(torch.square, fullgraph=True)(torch.ones(8, device=device))
    except Exception as error:  # whatever a compiler fails with
        reason = str(getattr(error, "inner_exception", None) or error).splitlines()[0]
        raise ScenarioError(f"torch.compile does not work here: {reason}", key="train.compile", found=True) from error
