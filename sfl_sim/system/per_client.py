"""A setting that holds for all clients, or one for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sfl_sim.errors import ScenarioError

FloatArray = npt.NDArray[np.float64]
PerClient = float | Sequence[float]


def per_client(value: PerClient, n: int, key: str, *, zero_allowed: bool = False) -> FloatArray:
    """`value` as n finite numbers above 0 (or 0, if that is allowed), one per client.

    Raises:
        ScenarioError: with `key`, if a list has not n entries or a number is out of range.
    """
    values = np.asarray(value, dtype=float)
    if values.ndim and values.shape != (n,):
        raise ScenarioError("a list needs one entry per client", key=key, found=values.size, allowed=f"{n} entries")
    fits = np.isfinite(values) & ((values >= 0) if zero_allowed else (values > 0))
    if not fits.all():
        raise ScenarioError(
            "number out of range",
            key=key,
            found=float(values[~fits][0]),
            allowed="a number, 0 or above" if zero_allowed else "a number above 0",
        )
    return np.broadcast_to(values, n)
