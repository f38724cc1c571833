"""Random generators that belong to the whole process: code of a user's own may draw from them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Let the global generators of torch, numpy and Python begin with `seed`."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (that which others draw from)
    random.seed(seed)


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Return a context in which the global generators begin with `seed`; their draws afterwards are as without it."""
    of_cpu, of_numpy, of_python = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        seed_all(seed)
        yield
    finally:
        torch.set_rng_state(of_cpu)
        if of_gpus:
            torch.cuda.set_rng_state_all(of_gpus)
        else:
            torch.cuda.manual_seed_all(torch.initial_seed())  # with which they would have begun
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)
