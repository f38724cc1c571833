"""Texts that mean numbers, with the units in which people write them."""

import pytest

from sfl_sim.build.registry import find_codec, method_options
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.fedprox import FedProx
from sfl_sim.scenario.load import digest, parse
from sfl_sim.scenario.optional_sections import Coding
from sfl_sim.scenario.sections import ModelSection


def network(**section):
    return parse({"clients": {"count": 2, "network": {"downlink_bps": 1e6, **section}}}).base.clients.network


@pytest.mark.parametrize(
    ("text", "rate_bps"),
    [("1e7", 1e7), ("10 Mbit/s", 1e7), ("10Mbps", 1e7), ("250 kbit/s", 250e3), ("1.5 Gbit/s", 1.5e9), ("8 bit/s", 8)],
)
def test_a_rate_is_read_with_its_unit(text, rate_bps):
    assert network(uplink_bps=text).uplink_bps == rate_bps
    assert network(uplink_bps=[text, 5.0]).uplink_bps == [rate_bps, 5.0]


def test_milliseconds_are_the_seconds_that_are_nearest():
    assert network(uplink_bps=1.0, latency_s="9 ms").latency_s == 9 / 1000 != 9 * 1e-3
    assert network(uplink_bps=1.0, latency_s=["50ms", "2 s", "7 µs"]).latency_s == [0.05, 2.0, 7e-6]
    assert network(uplink_bps=1.0, latency_s="7 \u03bcs").latency_s == 7e-6  # the Greek letter


def test_units_are_known_where_a_key_says_the_direction_and_for_bytes():
    shared = {"access_points": 1, "capacity_bps": {"up": "1 Mbit/s", "down": "8 Mbps"}}
    read = network(uplink_bps=1.0, shared=shared, overhead={"message_bytes": "40 B"})
    assert (read.shared.capacity_bps.up, read.shared.capacity_bps.down) == (1e6, 8e6)
    assert read.overhead.message_bytes == 40
    with pytest.raises(ScenarioError) as refused:
        network(uplink_bps=["1 Mbit/s", "1 MB/s"])
    assert (refused.value.key, refused.value.found) == ("clients.network.uplink_bps.1", "1 MB/s")
    assert "Mbit/s" in refused.value.allowed


def test_requests_come_at_a_rate_that_has_no_unit():
    with pytest.raises(ScenarioError) as refused:
        parse({"serving": {"arrivals": {"rate_per_s": "5 GMAC/s"}}})
    assert (refused.value.key, refused.value.found) == ("serving.arrivals.rate_per_s", "5 GMAC/s")
    assert parse({"serving": {"arrivals": {"rate_per_s": "5"}}}).base.serving.arrivals.rate_per_s == 5


def test_quoted_numbers_are_numbers_where_few_are_allowed():
    quoted, plain = (find_codec(Coding(kind="int", bits=bits), "wire.up") for bits in ("4", 4))
    assert quoted == plain


@pytest.mark.parametrize("text", ["2 GFLOPS", "1,000", "50%", "1e"])
def test_what_begins_as_a_number_is_no_name_of_a_profile(text):
    with pytest.raises(ScenarioError) as refused:
        parse({"clients": {"compute": text}})
    assert (refused.value.key, refused.value.found) == ("clients.compute", text)
    assert "MAC/s" in refused.value.allowed
    assert parse({"clients": {"compute": "5g/phones.csv"}}).base.clients.compute.profile == "5g/phones.csv"


def test_keys_of_a_section_are_not_offered_for_a_wrong_number():
    with pytest.raises(ScenarioError) as refused:
        parse({"train": {"lr": "5%"}})
    assert (refused.value.key, refused.value.allowed) == ("train.lr", None)


def test_quoted_numbers_are_the_numbers():
    quoted = {"train": {"lr": "0.05", "batch_size": "16", "server": {"lr": "0.1"}}, "server": {"workers": "4"}}
    plain = {"train": {"lr": 0.05, "batch_size": 16, "server": {"lr": 0.1}}, "server": {"workers": 4}}
    assert digest(parse(quoted)) == digest(parse(plain))
    assert parse({"clients": {"compute": "2e9"}}).base.clients.compute.macs_per_s == 2e9
    varied = parse({"grid": {"train.lr": ["0.1", 0.2]}}).variants
    assert [variant.scenario.train.lr for variant in varied] == [0.1, 0.2]
    options = method_options(FedProx, parse({"method": {"name": "fedprox", "mu": "0.5"}}).base)
    assert options.mu == 0.5


def test_where_a_name_is_wanted_a_text_stays_one():
    assert ModelSection(cut="2").cut == "2"


@pytest.mark.parametrize("text", ["10 MB/s", "10 mbps", "fast", "0.1-0.3", "1,5", "50 ms", "rates", "2024/rates"])
def test_what_is_neither_a_number_nor_looks_like_a_path_is_refused_with_the_unit_wanted(text):
    with pytest.raises(ScenarioError) as refused:
        network(uplink_bps=text)
    assert (refused.value.key, refused.value.found) == ("clients.network.uplink_bps", text)
    assert "bit/s" in refused.value.allowed


@pytest.mark.parametrize("path", ["rates.csv", "./rates", "../rates", "~/rates", "/tmp/rates", "data/rates", "1.csv"])
def test_what_looks_like_a_path_is_one(path):
    assert network(uplink_bps=path).uplink_bps == path
