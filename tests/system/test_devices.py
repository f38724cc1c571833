"""Devices are drawn as the profile has them, or have the rates that were given."""

import numpy as np
import pytest
from refusals import refused

from sfl_sim.rng import stream
from sfl_sim.scenario.sections import Compute
from sfl_sim.system.devices import draw_devices
from sfl_sim.system.profiles import find, read_table


def test_the_rate_is_the_reference_networks_macs_over_the_time_of_a_frame(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("device,ms_per_frame,reference_macs\nPi,250,1e9\n")
    names, macs_per_s, _ = draw_devices(2, stream(0, "devices"), Compute(profile=str(own), scale=0.5))
    assert names == ["Pi", "Pi"]
    assert macs_per_s.tolist() == [2e9, 2e9]  # 1e9 MACs in 0.25 s, at half the speed


def test_every_device_is_as_likely_and_keeps_its_own_rate(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("device,ms_per_frame,reference_macs\n" + "".join(f"d{i},{i},1000\n" for i in range(1, 21)))
    names, macs_per_s, _ = draw_devices(20_000, stream(0, "devices"), Compute(profile=str(own)))
    drawn = np.array([int(name[1:]) for name in names])
    assert macs_per_s == pytest.approx(1e6 / drawn)
    counts = np.bincount(drawn, minlength=21)[1:]
    assert np.sum((counts - 1000) ** 2 / 1000) < 43.8  # chi-square, 19 degrees of freedom, 0.1 %


def test_phones_of_the_ai_benchmark_are_drawn_as_it_ranks_them():
    table = read_table(find("devices", "ai_benchmark", ""), ["ms_per_frame", "reference_macs"], "")
    listed = np.sort(table.numbers("reference_macs") / (table.numbers("ms_per_frame") / 1000))
    n = 20_000
    _, drawn, _ = draw_devices(n, stream(0, "devices"), Compute())
    apart = np.searchsorted(np.sort(drawn), listed, "right") / n - np.searchsorted(listed, listed, "right") / len(
        listed
    )
    assert np.abs(apart).max() < 1.95 / np.sqrt(n)  # Kolmogorov-Smirnov, 0.1 %


def test_the_reference_is_mobilenet_v2_whose_published_macs_are_300_million():
    table = read_table(find("devices", "ai_benchmark", ""), ["reference_macs"], "")
    assert table.numbers("reference_macs") == pytest.approx(300e6, rel=0.01)  # Sandler et al. 2018, Table 4


def test_given_rates_take_the_place_of_the_profile():
    assert draw_devices(2, stream(0, "devices"), Compute(macs_per_s=[1e9, 2e9]))[1].tolist() == [1e9, 2e9]
    names, macs_per_s, _ = draw_devices(2, stream(0, "devices"), Compute(macs_per_s=1e9, scale=3))
    assert (names, macs_per_s.tolist()) == (["given", "given"], [3e9, 3e9])


def test_a_wrong_number_of_rates_is_refused():
    with refused("clients.compute.macs_per_s", says=r"found 1; allowed: 2 entries"):
        draw_devices(2, stream(0, "devices"), Compute(macs_per_s=[1e9]))


def test_latencies_of_another_network_than_a_cost_profile_needs_are_refused(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("device,ms_per_frame,reference_macs\nPi,250,1000\nPhone,20,1e9\n")
    with refused("clients.compute.profile", found="1e9", line=3):
        draw_devices(2, stream(0, "devices"), Compute(profile=str(own)), reference_macs=1000)
    assert draw_devices(2, stream(0, "devices"), Compute(macs_per_s=5.0), reference_macs=1000)[1].tolist() == [5.0, 5.0]


def test_a_profile_may_say_how_much_longer_training_takes(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("device,ms_per_frame,reference_macs,training_factor\nslow,2,1000,3.5\n")
    assert draw_devices(2, stream(0, "devices"), Compute(profile=str(own)))[2].tolist() == [3.5, 3.5]
    assert draw_devices(2, stream(0, "devices"), Compute(profile=str(own), training_factor=[1, 2]))[2].tolist() == [
        1,
        2,
    ]
    assert draw_devices(2, stream(0, "devices"), Compute(macs_per_s=5.0))[2].tolist() == [1, 1]
