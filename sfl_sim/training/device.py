"""Where steps run."""

from __future__ import annotations

import torch

from sfl_sim.errors import ScenarioError


def pick_device(name: str) -> torch.device:
    """`auto` is the first GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = "there is no such device"
        if name.startswith("cuda"):  # what is missing; of other names torch lists every type that it was ever built for
            reason = f"cannot be used: {str(error).splitlines()[0]}"
        raise ScenarioError(reason, key="--device", found=name, allowed="auto, cpu, cuda") from error
