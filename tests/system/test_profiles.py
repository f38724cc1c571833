"""Shipped profiles say where they come from; what cannot be used is refused with file, line and column."""

import re
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.optional_sections import Availability, PowerSection
from sfl_sim.scenario.sections import Compute, NetworkSection
from sfl_sim.system import profiles
from sfl_sim.system.availability import draw_presence
from sfl_sim.system.devices import draw_devices
from sfl_sim.system.network import draw_links
from sfl_sim.system.power import read_power
from sfl_sim.system.profiles import available, find, per_client, read_table

KINDS = ("devices", "network", "network/traces", "power", "availability")
SHIPPED = [(kind, name) for kind in KINDS for name in available(kind)]
HEADER = {"what", "source", "unit", "n", "derived", "licence", "caution"}


def draw(kind, profile):
    """Use a profile as a run does."""
    rng = np.random.default_rng(0)
    match kind:
        case "devices":
            draw_devices(2, rng, Compute(profile=str(profile)))
        case "network":
            draw_links(2, rng, NetworkSection(profile=str(profile)))
        case "network/traces":
            draw_links(2, rng, NetworkSection(profile=None, trace=str(profile)))
        case "power":
            read_power(2, PowerSection(compute_w=1.0, radio=str(profile)))
        case "availability":
            draw_presence(2, rng, Availability(profile=str(profile)))


def test_there_are_profiles_of_every_kind():
    assert {"ai_benchmark"} <= set(available("devices"))
    assert {"fedscale", "mobiperf"} <= set(available("network"))
    assert len(available("network/traces")) >= 3
    assert {"lte", "wifi"} <= set(available("power"))
    assert {"fedscale", "flash"} <= set(available("availability"))


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_every_shipped_profile_loads_and_says_where_it_comes_from(kind, name):
    draw(kind, name)
    lines = find(kind, name, "clients").read_text(encoding="utf-8").splitlines()
    header = dict(line.removeprefix("# ").split(": ", 1) for line in lines if line.startswith("#"))
    assert set(header) == HEADER
    assert all(header.values())


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_the_readme_describes_every_shipped_profile(kind, name):
    readme = (find("devices", "ai_benchmark", "").parents[1] / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^## .*\b{name}\b", readme, re.MULTILINE)


def test_the_examples_in_the_readme_can_be_used(tmp_path):
    readme = (find("devices", "ai_benchmark", "").parents[1] / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"```csv\n(.*?)```", readme, re.DOTALL)
    for kind, example in zip((*KINDS, "availability"), examples, strict=True):
        own = tmp_path / "own.csv"
        own.write_text(example)
        draw(kind, own)


def test_an_installed_wheel_has_its_profiles_inside_the_package(tmp_path, monkeypatch):
    inside = tmp_path / "sfl_sim" / "profiles" / "devices"
    inside.mkdir(parents=True)
    (inside / "packed.csv").touch()
    monkeypatch.setattr(profiles, "__file__", str(tmp_path / "sfl_sim" / "system" / "profiles.py"))
    assert available("devices") == ["packed"]


def test_a_misspelt_name_is_answered_with_the_names_there_are():
    with pytest.raises(ScenarioError) as raised:
        draw("network", "mobipref")
    assert str(raised.value) == (
        "clients.network.profile: no file and no shipped profile of this name "
        "(found 'mobipref'; allowed: fedscale, mobiperf; did you mean 'mobiperf'?)"
    )


def test_a_missing_file_is_named():
    with refused("clients.network.trace", found="nowhere/ride.csv"):
        draw("network/traces", "nowhere/ride.csv")


def test_a_profile_may_lie_below_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "rates.csv").write_text("uplink_bps\n2.5\n")
    assert find("network", "~/rates.csv", "key") == tmp_path / "rates.csv"
    assert per_client("~/rates.csv", 1, "clients.network.uplink_bps").tolist() == [2.5]
    assert read_table(Path("~/rates.csv"), ["uplink_bps"], "key").columns == {"uplink_bps": ["2.5"]}
    with refused("key"):
        per_client("~nobody-of-that-name/rates.csv", 1, "key")


def test_a_shipped_name_wins_over_a_file_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mobiperf").write_text("not a profile")
    draw("network", "mobiperf")


def test_comments_blank_lines_other_columns_and_a_byte_order_mark_do_no_harm(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text('\ufeff# source: me\n\nnote, rate\n"a, b", 5\n# later\nc, 7\n', encoding="utf-8")
    table = read_table(own, ["rate"], "key")
    assert table.numbers("rate").tolist() == [5, 7]
    assert table.columns["note"] == ["a, b", "c"]
    assert table.lines == [4, 6]


DEVICES = "device,ms_per_frame,reference_macs\n"
TRACE = "time_s,uplink_bps,downlink_bps\n"
HEADINGS = {
    "devices": DEVICES,
    "network": "quantile,uplink_bps,downlink_bps\n",
    "network/traces": TRACE,
}
KEYS = {
    "devices": "clients.compute.profile",
    "network": "clients.network.profile",
    "network/traces": "clients.network.trace",
}


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        (
            "",
            "",
            "column 'device' is missing (found []; allowed: columns device, ms_per_frame, reference_macs)",
        ),
        ("device,ms\na,1\n", ":1", "column 'ms_per_frame' is missing (found ['device', 'ms']; "),
        ("device;ms_per_frame\na;1\n", ":1", "column 'device' is missing (found ['device;ms_per_frame']; "),
        ("# source: me\n" + DEVICES, ":2", "no row follows the column names (allowed: 1 row or more)"),
        (DEVICES + "a,1,1\nb,2\n", ":3", "row of another width (found 2; allowed: 3 cells)"),
        (
            "# mine\ndevice,ms_per_frame,reference_macs,ms_per_frame\na,1,1,2\n",
            ":2",
            "column 'ms_per_frame' is given twice (found ['device', 'ms_per_frame', 'reference_macs', 'ms_per_frame'])",
        ),
        (DEVICES + "a,1,1\nb\0b,2,1\n", ":3", r"is not text (found '\x00')"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, text, place, problem):
    own = tmp_path / "own.csv"
    own.write_text(text)
    with pytest.raises(ScenarioError) as raised:
        draw("devices", own)
    assert str(raised.value).startswith(f"{own}{place}: clients.compute.profile: {problem}")


@pytest.mark.parametrize(
    ("kind", "rows", "line", "column", "found", "allowed"),
    [
        ("devices", "a,1,1\nb,fast,1", 3, "ms_per_frame", "fast", "a number"),
        ("devices", "a,nan,1", 2, "ms_per_frame", "nan", "a number"),
        ("devices", "a,,1", 2, "ms_per_frame", "", "a number"),
        ("devices", "a,2_0,1", 2, "ms_per_frame", "2_0", "a number"),
        ("devices", "a,٣,1", 2, "ms_per_frame", "٣", "a number"),
        ("devices", "a,0,1", 2, "ms_per_frame", "0", "a number above 0"),
        ("devices", "a,1,-3", 2, "reference_macs", "-3", "a number above 0"),
        ("network", "0,5,5\n1.5,6,6", 3, "quantile", "1.5", "0 to 1"),
        ("network", "-.1,5,5", 2, "quantile", "-.1", "0 to 1"),
        ("network", "0,5,5\n1,6,6\n1,7,7", 4, "quantile", "1", "more than in the row before"),
        ("network", "0,0,5", 2, "uplink_bps", "0", "a number above 0"),
        ("network", "0,5,inf", 2, "downlink_bps", "inf", "a number"),
        ("network", "0,5,5\n1,6,4", 3, "downlink_bps", "4", "at least the rate in the row before"),
        ("network/traces", "1,5,5\n2,5,5", 2, "time_s", "1", "0 in the first row"),
        ("network/traces", "0,5,5\n2,5,5\n2,5,5", 4, "time_s", "2", "later than in the row before"),
        ("network/traces", "0,5,5", 2, "time_s", "0", "another row below, which closes the trace"),
        ("network/traces", "0,5,5\n1,-1,5\n2,5,5", 3, "uplink_bps", "-1", "a number, 0 or above"),
        ("network/traces", "0,5,0\n1,0,0\n2,5,0", 2, "downlink_bps", "0", "a rate above 0 in some row"),
        (
            "network/traces",
            "0,5,5\n1,6,5\n2,6,5",
            4,
            "uplink_bps",
            "6",
            "the first row's rate again, where the",
        ),
    ],
)
def test_a_cell_that_cannot_be_used_is_refused_in_one_line(tmp_path, kind, rows, line, column, found, allowed):
    own = tmp_path / "own.csv"
    own.write_text(HEADINGS[kind] + rows)
    with pytest.raises(ScenarioError) as raised:
        draw(kind, own)
    problem = f"column {column!r} cannot be used (found {found!r}; allowed: {allowed}"
    assert str(raised.value).startswith(f"{own}:{line}: {KEYS[kind]}: {problem}")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    picture = tmp_path / "picture.csv"
    picture.write_bytes(b"\x89PNG\r\n\xff\xfe\x00")
    with refused("clients.compute.profile", says="picture.csv:1"):
        draw("devices", picture)


def test_closed_stretches_are_allowed_in_a_trace(tmp_path):
    ride = tmp_path / "ride.csv"
    ride.write_text(TRACE + "0,0,5\n1,8,0\n2,0,5\n")
    uplinks, downlinks, _ = draw_links(1, np.random.default_rng(0), NetworkSection(profile=None, trace=str(ride)))
    assert (uplinks[0].mean_bps, downlinks[0].mean_bps) == (4.0, 2.5)


# Numbers given for the clients


def test_one_value_stands_for_all_clients_and_a_list_for_each():
    assert per_client(5, 3, "key").tolist() == [5, 5, 5]
    assert per_client([1, 2, 3], 3, "key").tolist() == [1, 2, 3]
    assert per_client(0, 1, "key", zero_allowed=True).tolist() == [0]


@pytest.mark.parametrize("entries", [[1.0], [1.0, 2.0, 3.0, 4.0]])
def test_a_list_of_another_length_is_refused(entries):
    with pytest.raises(ScenarioError, match=rf"clients.x: .*found {len(entries)}; allowed: 3 entries"):
        per_client(entries, 3, "clients.x")


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), [1, 0], [1, -2]])
def test_only_finite_numbers_above_zero_are_rates(value):
    with refused("clients.x"):
        per_client(value, 2, "clients.x")


def test_zero_may_be_allowed_but_nothing_below():
    with refused("key", found=-1.0):
        per_client([0, -1], 2, "key", zero_allowed=True)


def test_a_column_says_which_client_a_row_is_of(tmp_path):
    rates = tmp_path / "rates.csv"
    rates.write_text("client,uplink_bps\n2,30\n0,10\n1,20\n")
    assert per_client(str(rates), 3, "clients.network.uplink_bps").tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ("0 0 1", ":3: clients.network.uplink_bps: .*'client' .*found '0'; allowed: a client that has no row above"),
        ("0 1 3", ":4: clients.network.uplink_bps: .*'client' .*found '3'; allowed: 0 to 2"),
        ("0 1 phone", ":4: clients.network.uplink_bps: .*'client' .*found 'phone'"),
    ],
)
def test_clients_that_are_named_wrongly_are_refused(tmp_path, names, line):
    rates = tmp_path / "rates.csv"
    rates.write_text("client,uplink_bps\n" + "".join(f"{name},10\n" for name in names.split()))
    with pytest.raises(ScenarioError, match=line):
        per_client(str(rates), 3, "clients.network.uplink_bps")


@pytest.mark.parametrize(("rows", "line"), [("1e9\n-2e9\n3e9\n", 3), ("1e9\n2e9\n", None)])
def test_a_number_of_a_client_that_cannot_be_is_told_with_its_row(rows, line, tmp_path):
    file = tmp_path / "phones.csv"
    file.write_text(f"macs_per_s\n{rows}")
    with refused("clients.compute.macs_per_s", file=str(file), line=line):
        per_client(str(file), 3, "clients.compute.macs_per_s")
