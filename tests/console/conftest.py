import numpy as np
import pytest

from sfl_sim.engine.walk import Round
from sfl_sim.runs.news import Ended
from sfl_sim.store.columns import OP_DTYPE


@pytest.fixture
def ended():
    """Make the news of a round that has ended; rounds take a minute."""

    def make(trial, number, accuracy=0.5, loss=1.0):
        row = {"round": number, "ended_s": 60.0 * number, "accuracy": accuracy, "loss": loss}
        return Ended(trial, Round(row, [], np.zeros(0, OP_DTYPE)))

    return make
