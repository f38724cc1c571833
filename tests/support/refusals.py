"""Refusals of bad input: one line that names the key."""

import re
from contextlib import contextmanager

import pytest

from sfl_sim.errors import ScenarioError


@contextmanager
def refused(key, says="", **about):
    """Expect a ScenarioError of one line with this key, with these other attributes, and that matches `says`."""
    with pytest.raises(ScenarioError) as caught:
        yield caught
    error = caught.value
    found = {name: getattr(error, name) for name in about}
    assert (error.key, found) == (key, about), error
    assert re.search(says, str(error)), error
    assert "\n" not in str(error), error
