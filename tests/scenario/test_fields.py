"""Texts that mean numbers, with the units in which people write them."""

import pytest
from pydantic import Field

from sfl_sim.build.registry import method_options
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.fedprox import FedProx
from sfl_sim.scenario.fields import Described
from sfl_sim.scenario.load import digest, parse
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


def test_the_text_below_a_field_describes_it_also_where_it_is_inherited():
    class Speed(Described):
        number: float = 1.0
        """How fast
        it is."""
        quiet: bool = False

    class Mine(Speed):
        own: int = Field(1, description="What pydantic is told.")

    assert Mine.descriptions() == {"number": "How fast\nit is."}
    properties = Mine.model_json_schema()["properties"]
    assert properties["number"]["description"] == "How fast\nit is."
    assert properties["own"]["description"] == "What pydantic is told."
    assert "description" not in properties["quiet"]
