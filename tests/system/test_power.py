"""The powers of a fleet: of a shipped radio, or given; one number for all clients, or one for each."""

import pytest
from refusals import refused

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.optional_sections import PowerSection
from sfl_sim.scenario.sections import Clients, Server
from sfl_sim.system.fleet import build_fleet
from sfl_sim.system.power import read_power


def test_nobody_guesses_a_fleets_power():
    assert build_fleet(2, 0, Clients(), Server()).power is None


def test_a_fleet_has_the_power_that_it_is_given():
    power = {"compute_w": [2.0, 3.0], "uplink_w": 1.0, "downlink_w": 0.5, "idle_w": 0.1}
    fleet = build_fleet(2, 0, Clients(power=power), Server())
    assert fleet.power == read_power(2, PowerSection(**power))
    assert fleet.power is not None
    assert (fleet.power.compute_w, fleet.power.uplink_w, fleet.power.idle_w) == ([2.0, 3.0], [1.0, 1.0], [0.1, 0.1])


@pytest.mark.parametrize("uplink_bps", [1e5, 1e7])
def test_lte_draws_more_than_wifi_but_no_more_than_a_phone_can(uplink_bps):
    power = [read_power(1, PowerSection(compute_w=1.0, radio=radio)) for radio in ("lte", "wifi")]
    lte_w, wifi_w = (p.uplink_w[0] + p.uplink_joule_per_bit[0] * uplink_bps for p in power)
    assert 0.1 < wifi_w < lte_w < 7


def test_what_cannot_be_used_is_named(tmp_path):
    for problem, options in {
        "clients.power.radio: no file and no shipped profile .*allowed: lte, wifi": {"radio": "6g"},
        "clients.power.uplink_w: a list needs one entry per client": {"uplink_w": [1.0], "downlink_w": 1.0},
    }.items():
        with pytest.raises(ScenarioError, match=problem):
            read_power(2, PowerSection(compute_w=1.0, **options))
    own = tmp_path / "radio.csv"
    own.write_text("base_mw,uplink_mw_per_mbps,downlink_mw_per_mbps\n1000,-1,2\n")
    with refused("clients.power.radio", found="-1", says="radio.csv:2"):
        read_power(2, PowerSection(compute_w=1.0, radio=str(own)))
    own.write_text("base_mw,uplink_mw_per_mbps,downlink_mw_per_mbps\n1000,100,2\n2,2,2\n")
    with pytest.raises(ScenarioError, match="a second row"):
        read_power(2, PowerSection(compute_w=1.0, radio=str(own)))
