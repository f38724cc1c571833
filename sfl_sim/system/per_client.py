"""A setting that holds for all clients, or one for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sfl_sim.errors import ScenarioError
from sfl_sim.system.profiles import LARGEST, SMALLEST, in_range

FloatArray = npt.NDArray[np.float64]
PerClient = float | Sequence[float]


def per_client(value: PerClient, n: int, key: str, *, zero_allowed: bool = False) -> FloatArray:
    """`value` as n numbers above 0 (or 0, if that is allowed) that can be reckoned with, one per client.

    Raises:
        ScenarioError: with `key`, if a list has not n entries or a number is out of range.
    """
    values = np.asarray(value, dtype=float)
    if values.ndim and values.shape != (n,):
        raise ScenarioError("a list needs one entry per client", key=key, found=values.size, allowed=f"{n} entries")
    signed = np.isfinite(values) & ((values >= 0) if zero_allowed else (values > 0))
    for fits, allowed in (
        (signed, "a number, 0 or above" if zero_allowed else "a number above 0"),
        (in_range(values), f"from {SMALLEST:g} to {LARGEST:g}"),
    ):
        if not fits.all():
            found = float(values[~fits][0])
            raise ScenarioError("number out of range", key=key, found=found, allowed=allowed)
    return np.broadcast_to(values, n)
