"""Resources that lost clients had spent on a round: seconds of devices and links, and bytes, while present."""

import numpy as np

from sfl_sim.metrics.rounds import spent_by
from sfl_sim.store.columns import OP_DTYPE
from sfl_sim.system.presence import Presence

OPS = [  # node, client, started_s, ended_s, bytes
    ("downlink", 0, 0.0, 2.0, 100),
    ("downlink", 1, 0.0, 3.0, 100),
    ("client", 0, 2.0, 9.0, 0),
    ("client", 1, 3.0, 10.0, 0),
    ("uplink", 1, 10.0, 50.0, 70),  # cut short
    ("server", 1, 50.0, 51.0, 0),
    ("peer", 1, 51.0, 52.0, 5),
    ("aggregator", -1, 52.0, 53.0, 0),
]


def rows():
    found = np.zeros(len(OPS), OP_DTYPE)
    for column, values in zip(["node", "client", "started_s", "ended_s", "bytes"], zip(*OPS, strict=True), strict=True):
        found[column] = values
    return found


def test_lost_clients_have_spent_their_operations_on_devices_and_links():
    assert spent_by(rows(), {1: 60.0}) == (7.0, 44.0, 175)
    assert spent_by(rows(), {0: 60.0, 1: 60.0}) == (14.0, 46.0, 275)


def test_what_they_do_after_they_have_come_back_is_not_lost():
    assert spent_by(rows(), {1: 50.0}) == (7.0, 43.0, 170)


def test_a_round_without_lost_clients_has_wasted_nothing():
    assert spent_by(rows(), {}) == (0.0, 0.0, 0)


def test_nothing_is_spent_while_a_client_is_away():
    always, now_and_then = Presence([(0.0, 100.0)], 100.0), Presence([(0.0, 8.0), (40.0, 100.0)], 100.0)
    assert spent_by(rows(), {1: 60.0}, [always, now_and_then]) == (5.0, 14.0, 175)
    assert spent_by(rows(), {0: 60.0}, [always, now_and_then]) == (7.0, 2.0, 100)
