"""Named random streams: every source of randomness has its own, so that no draw depends on other draws."""

import zlib

import numpy as np


def stream(seed: int, name: str, *ids: int) -> np.random.Generator:
    """Make the generator of the source `name` (and `ids`, e.g. client and round) in a run with `seed`.

    Equal arguments give equal draws on every machine and under every PYTHONHASHSEED.
    """
    return np.random.default_rng([seed, zlib.crc32(name.encode()), len(ids), *ids])


def torch_seed(seed: int, name: str, *ids: int) -> int:
    """Draw a 63-bit seed for torch from the stream `name`."""
    return int(stream(seed, name, *ids).integers(2**63))
