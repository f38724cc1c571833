"""Random generators that belong to the whole process: code of a user's own may draw from them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
    before = states()
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        seed_all(seed)
        yield
    finally:
        if of_gpus:
            torch.cuda.set_rng_state_all(of_gpus)
        else:
            torch.cuda.manual_seed_all(torch.initial_seed())  # with which they would have begun
        restore(before)


States = tuple[torch.Tensor, Any, Any]
"""States of the global generators of torch on the CPU, numpy and Python."""


def states() -> States:
    """Return the states of the global generators."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def has_drawn_since(before: States) -> bool:
    """Return True if something has drawn since the generators had these states."""
    of_torch, of_numpy, of_python = states()
    key, where = (before[1][1], of_numpy[1]), (before[1][2:], of_numpy[2:])
    same = torch.equal(of_torch, before[0]) and np.array_equal(*key) and where[0] == where[1] and of_python == before[2]
    return not same


def restore(before: States) -> None:
    """Give the global generators the states that they had."""
    torch.set_rng_state(before[0])
    np.random.set_state(before[1])  # noqa: NPY002
    random.setstate(before[2])


@contextmanager
def apart() -> Iterator[None]:
    """Return a context after which the global generators on the CPU are as before."""
    before = states()
    try:
        yield
    finally:
        restore(before)
