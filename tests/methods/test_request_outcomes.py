"""Which sample of its client's test set a request is about."""

import numpy as np
import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.request_outcomes import draw_rows
from sfl_sim.rng import stream

OWNERS = np.array([2, 0, 2, 0, 2, 5])


def test_requests_are_about_their_own_clients_samples_and_all_of_them_alike():
    clients = stream(0, "clients").choice([0, 2, 5], 6_000)
    rows = draw_rows(OWNERS, clients, stream(0, "samples"))
    assert (OWNERS[rows] == clients).all()
    for client in (0, 2):
        drawn = np.bincount(rows[clients == client])[OWNERS[: rows[clients == client].max() + 1] == client]
        assert drawn == pytest.approx(drawn.mean(), rel=0.15)


def test_a_client_without_samples_cannot_be_asked():
    with pytest.raises(ScenarioError, match="client 3 has requests"):
        draw_rows(OWNERS, np.array([0, 3, 7]), stream(0, "samples"))
